"""Which linear layers of a language model are adapted: by name, by regular expression, or all of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from bara_pyro.errors import BackboneError, ConfigError, is_whole, unknown
from bara_pyro.fast.frozen_states import decoder_layers
from bara_pyro.untrusted.patterns import matching

# Names of the query and value projections by architecture. The output embedding is looked up, because its
# name differs between versions of transformers.
DEFAULT_TARGETS: dict[str, tuple[str, ...]] = {
    "falcon": ("query_key_value",),
    "gpt2": ("c_attn",),
    "gpt_neox": ("query_key_value",),
    "phi3": ("qkv_proj",),
}
FALLBACK_TARGETS = ("q_proj", "v_proj")
ALL_LINEAR = "all-linear"


@dataclass(frozen=True)
class Target:
    """One linear layer to adapt.

    Attributes:
        path: dotted module path inside the language model.
        index: position among the adapted modules (the row of `phi` that belongs to it).
        in_features, out_features: its widths.
        is_head: whether it is the output embedding (its input is the last position only).
    """

    path: str
    index: int
    in_features: int
    out_features: int
    is_head: bool

    def site(self, family: str) -> str:
        """Return the name of this module's site of a family: `theta/model.layers.0.self_attn.q_proj`."""
        return f"{family}/{self.path}"


def widths(layer: nn.Module) -> tuple[int, int]:
    """Return `(in_features, out_features)` of a linear layer; GPT-2's `Conv1D` stores them transposed."""
    if isinstance(layer, Conv1D):
        return layer.weight.shape[0], layer.weight.shape[1]
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    raise BackboneError(
        f"Cannot adapt a {type(layer).__name__}: only nn.Linear and Conv1D layers are supported."
    )


def _linears(lm: PreTrainedModel) -> dict[str, nn.Module]:
    """Return the linear layers of the text model, without those of an image tower."""
    text = {id(layer) for layer in (*lm.get_decoder().modules(), lm.get_output_embeddings())}
    linears = {name: layer for name, layer in lm.named_modules() if isinstance(layer, nn.Linear | Conv1D)}
    return {name: layer for name, layer in linears.items() if id(layer) in text}


def _select(
    pattern: str | Sequence[str], linears: dict[str, nn.Module], head: str, mixtures: tuple[str, ...]
) -> list[str]:
    if pattern == ALL_LINEAR:
        pattern = [ALL_LINEAR]
    if isinstance(pattern, str):
        try:
            names = matching(pattern, [*linears])
        except ValueError as error:
            raise BackboneError(
                f"target_modules={pattern!r} is not a valid regular expression: {error}."
            ) from error
        return _require(names, pattern, linears)
    chosen = []
    for item in dict.fromkeys(pattern):
        if item == ALL_LINEAR:
            # As in PEFT, without the output embedding: its rows are words, not features.
            chosen += [name for name in linears if name != head and not name.startswith(mixtures)]
            continue
        chosen += _require([n for n in linears if n == item or n.endswith("." + item)], item, linears)
    return [name for name in linears if name in set(chosen)]


def _require(chosen: list[str], pattern: str, linears: dict[str, nn.Module]) -> list[str]:
    if not chosen:
        names = ", ".join(sorted({name.rsplit(".", 1)[-1] for name in linears}))
        raise BackboneError(f"target_modules: {pattern!r} matches no linear layer: choose from {names}.")
    return chosen


def _in_top_layers(lm: PreTrainedModel, top_layers: int, names: list[str], head: str) -> list[str]:
    """Return the names in the last layers, and the output embedding if it is among them."""
    path, layers = decoder_layers(lm)
    if not layers:
        raise BackboneError(
            f"top_layers={top_layers}: the layers of a {type(lm).__name__} are not one list; name the "
            "modules to adapt with target_modules."
        )
    if not is_whole(top_layers) or not 1 <= top_layers <= len(layers):
        raise BackboneError(f"top_layers={top_layers} is out of range: choose 1 to {len(layers)} layers.")
    top = tuple(f"{path}.{index}." for index in range(len(layers) - top_layers, len(layers)))
    chosen = [name for name in names if name == head or name.startswith(top)]
    if not chosen:
        raise BackboneError(
            f"target_modules: none of these modules is in the last {top_layers} of {len(layers)} layers; "
            "raise top_layers or name other modules."
        )
    return chosen


def find_targets(
    lm: PreTrainedModel,
    target_modules: str | Sequence[str] | None = None,
    top_layers: int | None = None,
) -> list[Target]:
    """Return the layers to adapt, in the model's order.

    Args:
        lm: a Hugging Face causal language model.
        target_modules: one of

            - a list of names, each matching a whole path or its end;
            - a regular expression that matches a whole path (RE2 syntax, no backreferences or lookaround);
            - `"all-linear"`: all linear layers except the output embedding and mixtures of experts, whose
              layers see single tokens; in a list, these and further names;
            - None: query and value projections and the output embedding (the paper's targets, Section V-A).

        top_layers: keep only those in the last transformer layers, this many, and the output embedding if
            it is among them (PEFT's `layers_to_transform`); None keeps all.

    Raises:
        BackboneError: a name or an expression matches no linear layer, the model has fewer layers than
            `top_layers`, or no layer is chosen.
    """
    linears = _linears(lm)
    head = head_path(lm)
    if target_modules is None:
        target_modules = (
            *DEFAULT_TARGETS.get(lm.config.get_text_config().model_type, FALLBACK_TARGETS),
            head,
        )
    # Path prefixes of mixtures of experts, including routers and shared experts.
    mixtures = tuple(f"{name}." for name, layer in lm.named_modules() if hasattr(layer, "experts"))
    names = _select(target_modules, linears, head, mixtures)
    if not names:
        raise BackboneError("target_modules is empty: name at least one linear layer to adapt.")
    if top_layers is not None:
        names = _in_top_layers(lm, top_layers, names, head)
    return [Target(name, i, *widths(linears[name]), name == head) for i, name in enumerate(names)]


def shortest(lm: PreTrainedModel, paths: list[str]) -> list[str]:
    """Return the last names of layers, or their whole paths if these names match more layers."""
    names = sorted({path.rsplit(".", 1)[-1] for path in paths})
    return names if len(find_targets(lm, names)) == len(paths) else paths


def head_path(lm: PreTrainedModel) -> str:
    """Return the path of the output embedding (`lm_head`, `embed_out`); a `BackboneError` without one."""
    head = lm.get_output_embeddings()
    for name, layer in lm.named_modules():
        if layer is head:
            return name
    raise BackboneError(f"{type(lm).__name__} has no output embedding: load a causal language model.")


def checked_ranks(ranks: Mapping[str, int], targets: Sequence[Target], r: int) -> dict[str, int]:
    """Return a rank pattern, path -> rank; a `ConfigError` for an unknown module or a wrong rank."""
    known = [target.path for target in targets]
    for path, rank in ranks.items():
        if path not in known:
            raise ConfigError(unknown("module of the rank pattern", path, known))
        check_rank(path, rank, r)
    return dict(ranks)


def check_rank(path: str, rank: int, r: int) -> None:
    """Raise a `ConfigError` unless a module's rank is 1 to r."""
    if not 1 <= rank <= r:
        raise ConfigError(f"The rank pattern gives {path} a rank of {rank}: choose 1 to r={r}.")
