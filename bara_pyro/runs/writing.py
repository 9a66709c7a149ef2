"""Write a run to its folder, in files that PEFT reads.

PEFT reads `adapter_config.json`, and `adapter_model.safetensors` with tensors under its names. Methods whose
mean is a LoRA are stored as PEFT's LoRA. BaRA is stored as the method that `bara_pyro.peft` registers: the
guide's parameters of a module are beside its `lora_B`, so PEFT finds the whole adapter in one file. Other
methods use PEFT's names for tensors, but PEFT cannot read them.
"""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Final

from torch import Tensor

from bara_pyro.atomic import write_json
from bara_pyro.core.modules import module_key
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data import Task
from bara_pyro.errors import ConfigError
from bara_pyro.guides.amortized import AmortizedGuide
from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.loading import resolve
from bara_pyro.lm.targets import shortest
from bara_pyro.lm.verifying import computation, fingerprint
from bara_pyro.methods import METHODS
from bara_pyro.models.bara import PHI, THETA, BaRA
from bara_pyro.registry import PLUGINS
from bara_pyro.runs.config import RunConfig
from bara_pyro.runs.manifest import ADAPTER, CONFIG, GUIDE, PEFT_CONFIG, START, TRAINED, record_files
from bara_pyro.runs.store import peft_key, write_tensors
from bara_pyro.runs.system import System
from bara_pyro.types import Json
from bara_pyro.untrusted.schemas import SCHEMA

# PEFT's error for an unknown type prints its name, so the name says what to do.
PEFT_TYPE: Final = "BARA: pip install bara-pyro and `import bara_pyro.peft` before PEFT reads this adapter"
NOT_PEFT: Final = "no adapter of PEFT's, read it with bara_pyro.load_system(folder)"


def is_bara(system: System) -> bool:
    """Whether `bara_pyro.peft` can read a system: BaRA with an amortised guide per module."""
    model, guide = system.model, system.guide
    return isinstance(model, BaRA) and isinstance(guide, AmortizedGuide) and is_by_module(guide)


def is_by_module(guide: AmortizedGuide) -> bool:
    """Whether a guide has only parameters of single modules: the PEFT file cannot hold others."""
    return all(name.startswith("sites.") for name, _ in guide.named_parameters())


def peft_config(system: System) -> Json:
    """Return the content of PEFT's `adapter_config.json` for a system."""
    config = system.config
    name = config.method.name
    common = {
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model(config.backbone.name),
        "inference_mode": True,
        "r": config.adapter.r,
        "lora_alpha": config.adapter.lora_alpha,
        "target_modules": shortest(system.backbone.lm, [target.path for target in system.model.targets]),
    }
    ranks, c = system.model.rank_pattern, config.adapter
    patterns: Json = {"rank_pattern": ranks} if ranks else {}
    if is_bara(system):
        return {
            "peft_type": PEFT_TYPE,
            **common,
            **patterns,
            "method": config.method.model_dump(mode="json"),
            "backbone_fingerprint": fingerprint(system.backbone),
        }
    # The prefix avoids PEFT's methods of the same name (AdaLoRA), whose files have another format.
    kind = "LORA" if METHODS[name].peft else f"BARA_PYRO_{name.upper()}: {NOT_PEFT}"
    if ranks:  # every module keeps the scaling alpha / r
        patterns["alpha_pattern"] = {path: c.lora_alpha * rank / c.r for path, rank in ranks.items()}
    return {"peft_type": kind, **common, "lora_dropout": 0.0, "bias": "none", **patterns}


def base_model(name: str) -> str:
    """Return a language model's name for transformers: a hub name, or the absolute path of a folder."""
    place = resolve(name)
    return os.path.abspath(place) if os.path.isdir(place) else place


def lora_tensors(model: AdaptedLM) -> dict[str, Tensor]:
    """Return a program's parameters by PEFT's keys; PEFT has none for one of the whole program."""
    tensors: dict[str, Tensor] = {}
    for name, value in model.named_parameters():
        key = name
        if name.startswith("adapters."):  # such as `adapters.model/layers/0/self_attn/q_proj.lora_B`
            path, parameter = name.removeprefix("adapters.").rsplit(".", 1)
            key = peft_key(path.replace("/", "."), parameter)
        tensors[key] = value
    return tensors


def split_guide(system: System) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the guide's parameters in two parts: those for PEFT, by PEFT's keys, and the others.

    For BaRA, `lora_phi` of a module are the parameters of its gate Phi, and `lora_theta` the weights of the
    amortiser of its theta, if the method has these gates.
    """
    others: dict[str, Tensor] = dict(system.guide.named_parameters())
    if not is_bara(system):
        return {}, others
    ours: dict[str, Tensor] = {}
    phi = others.pop(_raw(PHI), None)
    for target in system.model.targets:
        if phi is not None:
            ours[peft_key(target.path, "lora_phi")] = phi[target.index]
        theta = others.pop(_raw(target.site(THETA)), None)
        if theta is not None:
            ours[peft_key(target.path, "lora_theta")] = theta
    return ours, others


def _raw(site: str) -> str:
    """Return the name of the guide's parameter behind a site."""
    return f"sites.{module_key(site)}.weight"


def write_config(system: System, folder: str | Path) -> None:
    """Write `bara_config.json` and PEFT's `adapter_config.json` before training starts.

    Raises:
        ConfigError: the dtype of the language model's weights differs from the settings.
    """
    folder, config = Path(folder), system.config
    check_type(system.backbone, config)
    write_json(
        folder / CONFIG,
        {
            "schema": SCHEMA,
            "config": config.dump(),
            "config_hash": config.hash,
            "num_data": system.model.num_data,
            "backbone_fingerprint": fingerprint(system.backbone),
            "backbone_computation": computation(system.backbone),
            "task": system.task.name,
            "labels": list(system.task.labels),
            "names": list(system.task.names),
            "columns": _columns(system.task),
            **({"chat": asdict(system.task.chat)} if system.task.chat else {}),
            **system.fingerprints(),
            **({"rank_pattern": system.model.rank_pattern} if system.model.rank_pattern else {}),
            **({"plugins": PLUGINS} if PLUGINS else {}),
        },
    )
    write_json(folder / PEFT_CONFIG, peft_config(system))


def begin(system: System, folder: Path) -> None:
    """Write what a run needs to be resumed before its first checkpoint: settings, and a given adapter."""
    write_config(system, folder)
    if system.config.adapter.start is not None and not (folder / START).exists():
        write_tensors(folder / START, lora_tensors(system.model), {"config_hash": system.config.hash})


def _columns(task: Task) -> Json | None:
    """Return the columns of a user's rows, with the column of identifiers only if it is not called "id"."""
    if task.columns is None:
        return None
    return {kind: name for kind, name in asdict(task.columns).items() if kind != "id" or name is not None}


def check_type(backbone: Backbone, config: RunConfig) -> None:
    """Raise a `ConfigError` for weights of another dtype, which the fingerprint does not distinguish."""
    if (dtype := backbone.settings["dtype"]) != config.backbone.dtype:
        raise ConfigError(
            f"The language model has {dtype} weights, but the run needs {config.backbone.dtype!r} "
            "(backbone.dtype): load the model with this dtype."
        )


def save_system(system: System, folder: str | Path, step: int) -> None:
    """Write the parameters after `step` steps as safetensors, and the manifest of the run's files.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.runs.config import load_config
        >>> from bara_pyro.runs.writing import save_system, write_config
        >>> from bara_pyro.runs.system import build_system
        >>> config = load_config(overrides={"method": "bara-gate", "task.limit": 8, "train.steps": 1})
        >>> system, folder = build_system(config), "runs/mine"
        >>> write_config(system, folder)
        >>> save_system(system, folder, step=1)
        >>> bp.load_system(folder).config == system.config
        True
    """
    folder = Path(folder)
    metadata = {
        "method": system.config.method.name,
        "config_hash": system.config.hash,
        "backbone_fingerprint": fingerprint(system.backbone),
        "step": step,
    }
    adapter, guide = split_guide(system)
    write_tensors(
        folder / ADAPTER, lora_tensors(system.model) | system.corrections.stored() | adapter, metadata
    )
    # The guide is written last: if it exists, the run is complete.
    write_tensors(folder / GUIDE, guide, metadata)
    record_files(folder, *TRAINED)
