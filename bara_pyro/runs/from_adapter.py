"""Start a run from a LoRA that was read from files: its language model, rank, layers, A and B."""

import math
from typing import Any

import torch
from torch import nn

from bara_pyro.core.modules import module_key
from bara_pyro.errors import BackboneError, ConfigError
from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.targets import Target, find_targets, shortest
from bara_pyro.runs.config import RunConfig
from bara_pyro.runs.read_peft import GivenAdapter


def with_base(config: RunConfig, given: GivenAdapter) -> RunConfig:
    """Return the configuration with the language model that the adapter names, unless one was given."""
    if given.base is None or "name" in config.backbone.model_fields_set:
        return config
    return config.updated("backbone", name=given.base)


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
