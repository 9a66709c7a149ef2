"""Start a run from a LoRA that PEFT trained; only JSON and safetensors are read, never a pickle.

Each layer of a PEFT adapter has its own rank r_m and scaling s_m: `alpha_m / r_m`, or `alpha_m / sqrt(r_m)`
with rsLoRA. A program here has one scaling s for all layers, so B is read as `s_m / s B`: the same update.
"""

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from bara_pyro.core.modules import module_key
from bara_pyro.errors import BackboneError, ConfigError
from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.targets import Target, find_targets, shortest
from bara_pyro.runs.config import RunConfig
from bara_pyro.runs.manifest import ADAPTER, CONFIG, PEFT_CONFIG, is_run
from bara_pyro.runs.sections import AdapterConfig
from bara_pyro.runs.store import PEFT_PREFIX
from bara_pyro.untrusted.files import bounded_json, check_tensors, read_json, read_text, there, why
from bara_pyro.untrusted.patterns import matching
from bara_pyro.untrusted.schemas import MOST_MODULES, Rank, RunFile, Text

PICKLES = ("adapter_model.bin", "adapter_model.pt", "adapter_model.pth")
# Settings of PEFT that do not change what a stored adapter computes.
WITHOUT_EFFECT = (
    *("auto_mapping", "peft_version", "revision", "inference_mode", "target_modules", "exclude_modules"),
    *("lora_dropout", "fan_in_fan_out", "layers_to_transform", "layers_pattern", "megatron_core"),
    *("qalora_group_size", "eva_config", "runtime_config", "ensure_weight_tying"),
)
# Values with which an adapter adds `s B A x` and leaves the language model's own weights as they are; PiSSA
# and other initial values of A and B do not.
PLAIN = {
    "task_type": (None, "CAUSAL_LM"),
    "bias": ("none",),
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal"),
}
# Temperature of a calibrated run of LoRA; PEFT does not read it either.
TEMPERATURE = "log_temperature"
KEY = re.compile(re.escape(PEFT_PREFIX) + r"(.*)\.(lora_[AB])\.weight", re.DOTALL)
"""A key of PEFT's for A or B of the layer with a path."""
AGAIN = "restore it, or save the adapter again"
Factors = tuple[Tensor, Tensor]


class PeftFile(BaseModel):
    """PEFT's `adapter_config.json` of a LoRA; `_refuse_others` checks all other settings."""

    model_config = ConfigDict(extra="allow", hide_input_in_errors=True)

    peft_type: Text
    task_type: Text | None = None
    base_model_name_or_path: Text | None = None
    r: Rank
    lora_alpha: Annotated[FiniteFloat, Field(gt=0)]
    use_rslora: bool = False
    bias: Text = "none"
    init_lora_weights: bool | Text | None = True
    rank_pattern: Annotated[dict[Text, Rank], Field(max_length=MOST_MODULES)] = {}
    alpha_pattern: Annotated[
        dict[Text, Annotated[FiniteFloat, Field(gt=0)]], Field(max_length=MOST_MODULES)
    ] = {}


@dataclass(frozen=True)
class GivenAdapter:
    """A LoRA that was read from files.

    Attributes:
        name: the folder or hub name.
        base: the language model that it names; None if it names none.
        r: largest rank of a layer.
        lora_alpha: `lora_alpha / r` is the scaling s of all layers.
        factors: path of a layer -> A, `rank x in`, and B times `s_m / s`, `out x rank`; float32.
    """

    name: str
    base: str | None
    r: int
    lora_alpha: float
    factors: Mapping[str, Factors]

    @property
    def rank_pattern(self) -> dict[str, int]:
        """The ranks below r: path of a layer -> rank."""
        ranks = {path: len(a) for path, (a, _) in self.factors.items()}
        return {path: rank for path, rank in ranks.items() if rank < self.r}


def read_peft(name: str) -> GivenAdapter:
    """Read a LoRA of PEFT from a folder or the hub.

    Args:
        name: a folder with `adapter_config.json` and `adapter_model.safetensors`, a hub name, or the copy
            in the folder of an unfinished run.

    Raises:
        ConfigError: a file is missing or damaged, or the adapter is not a plain LoRA.
    """
    if there(Path(name)) and Path(name).is_file():
        return _read_kept(Path(name))
    settings, weights = _files(name)
    return _scaled(name, _settings(settings, name), _factors(weights, name))


def _read_kept(file: Path) -> GivenAdapter:
    """Read the A and B of a run from its own file, which holds them in the run's scaling."""
    if not is_run(file.parent):
        raise ConfigError(f"{file} is a file: give the folder of an adapter, with its {PEFT_CONFIG}.")
    stored = read_json(file.parent / CONFIG, RunFile)["config"]
    c = AdapterConfig.model_validate(stored["adapter"])
    return GivenAdapter(str(file), None, c.r, c.lora_alpha, _factors(file, str(file), others=True))


def _files(name: str) -> tuple[Path, Path]:
    """Return the two files of an adapter, downloaded if there is no folder of this name."""
    folder = Path(name)
    if there(folder):
        settings, weights = folder / PEFT_CONFIG, folder / ADAPTER
        if not there(settings):
            raise ConfigError(f"{name!r} has no {PEFT_CONFIG}: give the folder of a LoRA that PEFT saved.")
        if not there(weights) and any(there(folder / pickle) for pickle in PICKLES):
            raise ConfigError(
                f"{name!r} has its weights as a pickle, which can run code and is never read: save them as "
                "safetensors, PEFT's default."
            )
        return settings, weights
    from huggingface_hub import hf_hub_download

    try:
        files = [Path(hf_hub_download(name, file)) for file in (PEFT_CONFIG, ADAPTER)]
    except (OSError, ValueError) as error:  # the hub's errors are of one kind or the other
        raise ConfigError(
            f"There is no folder {name!r}, and no such adapter on the hub with {ADAPTER} "
            f"({type(error).__name__}): give the folder of a LoRA that PEFT saved."
        ) from error
    return files[0], files[1]


def _settings(file: Path, name: str) -> PeftFile:
    """Read and check PEFT's settings."""
    try:
        settings = bounded_json(read_text(file))
    except (OSError, ValueError) as error:
        raise ConfigError(f"Cannot read {file} ({why(error)}): {AGAIN}.") from error
    kind = settings.get("peft_type") if isinstance(settings, dict) else None
    if kind != "LORA":
        kind = str(kind).partition(":")[0]  # that of a run goes on with how to read it
        raise ConfigError(
            f"The adapter {name!r} is of the type {kind[:40]!r}: give a LoRA of PEFT, or make one of a run "
            "with `bara export`."
        )
    try:
        peft = PeftFile.model_validate(settings)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))[:60]
        raise ConfigError(f"{file} is damaged ({place}: {first['msg'].lower()}): {AGAIN}.") from error
    _refuse_others(peft, name)
    return peft


def _refuse_others(peft: PeftFile, name: str) -> None:
    """Refuse every setting by which the adapter computes something other than `s B A x`."""
    off: tuple[Any, ...] = (None, False, {}, [])
    others = {key: value for key, value in (peft.model_extra or {}).items() if key not in WITHOUT_EFFECT}
    for key, value in (others | {key: getattr(peft, key) for key in PLAIN}).items():
        if value not in PLAIN.get(key, off):
            raise ConfigError(
                f"The adapter {name!r} has {key[:40]}={str(value)[:40]}, which is not supported: give a "
                "plain LoRA or rsLoRA of a causal language model."
            )


def _factors(file: Path, name: str, *, others: bool = False) -> dict[str, Factors]:
    """Return A and B of every layer, float32.

    Other tensors in the file are refused, unless `others` lets them be. The temperature of a run is left out.
    """
    try:
        keys = {key: KEY.fullmatch(key) for key in check_tensors(file)}
        with safe_open(file, framework="pt") as stored:
            held = {found.groups(): stored.get_tensor(key) for key, found in keys.items() if found}
    except (OSError, ValueError, SafetensorError) as error:
        raise ConfigError(f"Cannot read {file} ({why(error)}): {AGAIN}.") from error
    strangers = [key for key, found in keys.items() if not found and key != TEMPERATURE]
    if not held or (strangers and not others):
        what = f"also holds {strangers[0][:80]!r}, no A or B" if held else "holds no A and B"
        raise ConfigError(
            f"The adapter {name!r} {what}: give a plain LoRA, without saved modules. Of a run, bara export "
            "writes one."
        )
    paths = dict.fromkeys(path for path, _ in held)
    return {
        path: _checked(path, held.get((path, "lora_A")), held.get((path, "lora_B")), name) for path in paths
    }


def _checked(path: str, a: Tensor | None, b: Tensor | None, name: str) -> Factors:
    """Return A and B in float32 if they fit together."""
    if a is None or b is None or a.dim() != 2 or b.dim() != 2 or not len(a) or len(a) != b.shape[1]:
        raise ConfigError(f"The adapter {name!r} lacks a fitting A and B of {path[:80]!r}: save it again.")
    if not all(x.is_floating_point() and x.isfinite().all() for x in (a, b)):
        raise ConfigError(
            f"The adapter {name!r} has weights of {path[:80]!r} that are not finite numbers: save it again."
        )
    return a.float(), b.float()


def _scaled(name: str, peft: PeftFile, factors: Mapping[str, Factors]) -> GivenAdapter:
    """Return the adapter with one scaling for all layers."""
    ranks = _by_pattern(peft.rank_pattern, factors, peft.r, name)
    alphas = _by_pattern(peft.alpha_pattern, factors, peft.lora_alpha, name)
    for path, (a, _) in factors.items():
        if len(a) != ranks[path]:
            raise ConfigError(
                f"The adapter {name!r} has rank {len(a)} in {path[:60]!r}, but {PEFT_CONFIG} says "
                f"{ranks[path]}: restore the file."
            )
    root = math.sqrt if peft.use_rslora else float
    scalings = {path: alphas[path] / root(ranks[path]) for path in factors}
    r = max(ranks.values())
    plain = not (peft.use_rslora or peft.rank_pattern or peft.alpha_pattern)
    # Without patterns this is PEFT's own number, and not the result of a division.
    alpha = peft.lora_alpha if plain else r * next(s for path, s in scalings.items() if ranks[path] == r)
    scaled = {path: (a, b * (scalings[path] / (alpha / r))) for path, (a, b) in factors.items()}
    return GivenAdapter(name, peft.base_model_name_or_path, r, alpha, scaled)


def _by_pattern(
    pattern: Mapping[str, Any], paths: Collection[str], otherwise: Any, name: str
) -> dict[str, Any]:
    """Return the value of each path: that of PEFT's first pattern that matches the path or its end."""
    values: dict[str, Any] = {}
    for key, value in pattern.items():
        try:
            matched = matching(rf"(.*\.)?({key})", [*paths])
        except ValueError as error:
            raise ConfigError(
                f"The adapter {name!r} has the pattern {key[:60]!r}, no regular expression of RE2: write the "
                "layers' paths there."
            ) from error
        values |= {path: value for path in matched if path not in values}
    return {path: values.get(path, otherwise) for path in paths}


def with_adapter(config: RunConfig, given: GivenAdapter, backbone: Backbone) -> RunConfig:
    """Return the configuration with the adapter's rank, scaling and layers.

    Raises:
        ConfigError: one of these was given with another value, or the adapter does not fit the model.
    """
    c = config.adapter
    paths = [target.path for target in _layers(given, backbone)]
    settings: dict[str, Any] = {"r": given.r, "lora_alpha": given.lora_alpha}
    for key, value in settings.items():
        if key in c.model_fields_set and not math.isclose(requested := getattr(c, key), value):
            raise ConfigError(
                f"{key}={requested:g} differs from that of the adapter to start from, {value:g}: "
                f"leave {key} out."
            )
    chosen = shortest(backbone.lm, paths) if c.target_modules is None else c.target_modules
    if {target.path for target in find_targets(backbone.lm, chosen, c.top_layers)} != set(paths):
        key = "top_layers" if c.target_modules is None else "target_modules"
        raise ConfigError(
            f"{key}={str(getattr(c, key))[:60]} chooses other layers than the adapter to start from has: "
            f"leave {key} out."
        )
    settings["target_modules"] = chosen
    return config.updated("adapter", **settings)


def _layers(given: GivenAdapter, backbone: Backbone) -> list[Target]:
    """Return the adapter's layers in the language model."""
    known = {name for name, _ in backbone.lm.named_modules()}
    if lacking := sorted(given.factors.keys() - known):
        raise _other_model(given, backbone, f"has no layer {lacking[0][:60]!r}")
    try:
        targets = find_targets(backbone.lm, list(given.factors))
    except BackboneError as error:
        raise _other_model(given, backbone, "has layers of another kind") from error
    for target in targets:
        a, b = given.factors.get(target.path, (torch.empty(0, 0), ()))
        if (a.shape[1], len(b)) != (target.in_features, target.out_features):
            raise _other_model(given, backbone, f"has other widths in {target.path!r}")
    return targets


def _other_model(given: GivenAdapter, backbone: Backbone, reason: str) -> ConfigError:
    return ConfigError(
        f"The language model {backbone.name!r} {reason}, which the adapter {given.name!r} needs: give the "
        "model that it was trained on (--model)."
    )


@torch.no_grad()
def put(given: GivenAdapter, model: nn.Module) -> None:
    """Copy A and B into a program's adapters."""
    for path, factors in given.factors.items():
        for name, value in zip(("lora_A", "lora_B"), factors, strict=True):
            model.get_parameter(f"adapters.{module_key(path)}.{name}").copy_(value)
