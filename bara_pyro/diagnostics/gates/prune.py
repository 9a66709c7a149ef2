r"""Prune adapters: drop units that hardly change predictions.

A unit is one of the r directions of a module. At the posterior mean it adds `s B_k c_k(x)` to the layer's
output, with

    c = Phi * theta (additive form),   (Phi * theta) * (A x) (gate form),   A x (LoRA)

Its importance is the root mean square of this term divided by that of the frozen layer's output, over the
real tokens of calibration rows. A closed gate makes a unit unimportant, and so does an empty column of B.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from bara_pyro.core.adapter import Adapter, chosen_rows, tapped
from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.latents import Gates
from bara_pyro.core.likelihood import require_answer_tokens
from bara_pyro.core.modules import module_key
from bara_pyro.core.prediction import RecordedDraws, record
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data import EncodedSplit, batches
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError
from bara_pyro.guides.amortized import AmortizedGuide
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.system import System, assemble

Importance = dict[str, Tensor]
"""Path of a module -> importance of its units, float64, `r`; 0.01 means 1 % of the layer's output."""


@dataclass(frozen=True)
class Pruned:
    """A pruned system and how much its predictions changed."""

    system: System  # the pruned system (with `rank_pattern`), for prediction and not for further training
    kept: int  # number of units kept
    units: int  # number of units before pruning
    tolerance: float  # largest allowed change of a probability on the calibration rows
    difference: float  # largest observed change of a probability on the calibration rows


def prune(system: System, rows: EncodedSplit, tolerance: float = 0.01) -> Pruned:
    """Drop as many units as possible without changing a prediction by more than a tolerance.

    The least important units are dropped first; each module keeps its most important one. Predictions are
    made at the posterior mean (S = 0), because draws of fewer gates would use different noise.

    Args:
        system: a fitted BaRA or LoRA run.
        rows: calibration rows, for example those of the training split.
        tolerance: largest allowed change of a class probability on these rows.

    Raises:
        ConfigError: the method is neither BaRA nor LoRA, the system is already pruned, or the tolerance is
            not positive.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.diagnostics.gates.prune import prune
        >>> run = bp.train(task="micro-wgs", method="bara-gate", steps=2, limit=8, out="runs/first")
        >>> small = prune(run, run.split("train"), tolerance=0.01)
        >>> small.units, small.kept < small.units, small.difference <= 0.01
        (72, True, True)
    """
    if not tolerance > 0:
        raise ConfigError(f"tolerance is {tolerance}: give a positive number, 0.01 for example.")
    importance = unit_importance(system, rows)
    before = draw(system, rows, 0).exp()
    units = sum(map(len, importance.values()))
    best = Pruned(system, units, units, tolerance, 0.0)
    low, high = 0, units - len(importance) + 1  # dropping `low` units is within the tolerance, `high` is not
    while high - low > 1:
        middle = (low + high) // 2
        smaller = without(system, weakest(importance, middle))
        difference = float((draw(smaller, rows, 0).exp() - before).abs().max())
        if difference <= tolerance:
            low, best = middle, Pruned(smaller, units - middle, units, tolerance, difference)
        else:
            high = middle
    return best


@torch.no_grad()
def unit_importance(system: System, rows: EncodedSplit) -> Importance:
    """Return how much each unit adds to its layer's output, relative to the frozen layer's output.

    Raises:
        ConfigError: the method is neither BaRA nor LoRA, or the system is already pruned.
    """
    model = _checked(system)
    added = {target.path: torch.zeros(model.r, dtype=torch.float64) for target in model.targets}
    frozen = {target.path: torch.zeros((), dtype=torch.float64) for target in model.targets}
    for batch in batches(rows, system.answer_ids, system.config.predict.batch_size, by_length=True):
        placed = batch.to(system.backbone.device)
        with tapped(model.adapters.values()) as taps:
            for piece in record(model, system.guide, placed, samples=0):
                for adapter in model.adapters.values():
                    path = adapter.target.path
                    x = taps[path][0]
                    real = piece.mask[:, -x.shape[1] :]
                    added[path] += _added(model, adapter, piece, x, placed)[real].double().sum(0).cpu()
                    frozen[path] += _frozen(system, adapter, x, placed)[real].double().sum().cpu()
    return {path: (added[path] / frozen[path]).sqrt() for path in added}


def weakest(importance: Importance, drop: int) -> dict[str, Tensor]:
    """Return which units stay if the `drop` least important ones are dropped: path -> bool, `r`."""
    keep = {path: torch.ones(len(values), dtype=torch.bool) for path, values in importance.items()}
    candidates = [
        (float(value), path, unit)
        for path, values in importance.items()
        for unit, value in enumerate(values)
        if unit != int(values.argmax())
    ]
    for _, path, unit in sorted(candidates)[:drop]:
        keep[path][unit] = False
    return keep


@torch.no_grad()
def without(system: System, keep: Mapping[str, Tensor]) -> System:
    """Return a system with only the chosen units.

    `keep` has for each path which units stay (bool, `r`), at least one in each module.
    """
    model = _checked(system)
    ranks = {path: int(chosen.sum()) for path, chosen in keep.items() if not chosen.all()}
    smaller = assemble(system.config, system.backbone, system.task, model.num_data, ranks)
    # Kept units come first, in their order. Phi still has entries for all r units; the others are unused.
    order = {path: torch.argsort(~chosen, stable=True) for path, chosen in keep.items()}
    for target in model.targets:
        path = target.path
        new, old = (m.adapters[module_key(path)] for m in (smaller.model, model))
        units = order[path][: new.r].to(old.lora_B.device)
        new.lora_B.copy_(old.lora_B[:, units])
        if hasattr(old, "lora_A"):
            new.lora_A.copy_(old.lora_A[units])
    if model.gates is not None:
        _copy_posterior(system.guide, smaller.guide, model.gates, order)
    smaller.corrections.load_state_dict(system.corrections.state_dict())
    return smaller


def _copy_posterior(old: SiteGuide, new: SiteGuide, gates: Gates, order: dict[str, Tensor]) -> None:
    if not isinstance(old, AmortizedGuide) or not isinstance(new, AmortizedGuide):
        raise ConfigError(f"{type(old).__name__} cannot be pruned: choose an amortized guide.")
    for i, path in enumerate(gates.modules):
        if gates.theta:
            site = module_key(gates.theta[path])
            rank, levels = new.sizes[gates.theta[path]]
            units = order[path][:rank].to(old.sites[site].weight.device)
            parts = old.sites[site].weight.split((gates.r, len(old.sites[site].weight) - gates.r))
            # A single noise level for all units is kept.
            noise = parts[1] if levels <= 1 and len(parts[1]) <= 1 else parts[1][units]
            new.sites[site].weight.copy_(torch.cat([parts[0][units], noise]))
        if gates.phi:
            site = module_key(gates.phi)
            row = old.sites[site].weight[i].unflatten(0, (-1, gates.r))
            new.sites[site].weight[i] = row[:, order[path].to(row.device)].flatten()
        for name in new.by_unit:
            parameter = getattr(old, name)
            getattr(new, name)[i] = parameter[i, order[path].to(parameter.device)]
    # Other parameters of a user's guide, which do not belong to units.
    for name, value in old.named_parameters():
        if not name.startswith("sites.") and name not in new.by_unit:
            if value.shape != new.get_parameter(name).shape:
                raise ConfigError(
                    f"{type(old).__name__} cannot be pruned: its parameter {name!r} depends on the rank; "
                    "add it to `by_unit`."
                )
            new.get_parameter(name).copy_(value)


def _checked(system: System) -> AdaptedLM:
    model = system.model
    require_answer_tokens(model.likelihood, "Pruned adapters")
    if not model.prunable:
        raise ConfigError(f"{system.config.method.name} cannot be pruned: BaRA and LoRA can.")
    if model.rank_pattern:
        raise ConfigError("This run is already pruned: prune the original run instead.")
    return model


def _added(model: AdaptedLM, adapter: Adapter, piece: RecordedDraws, x: Tensor, batch: Batch) -> Tensor:
    """Return the squared norm of each unit's contribution, `B x T x r`."""
    up = chosen_rows(adapter.lora_B, batch.answer_ids if adapter.target.is_head else None)
    total = up.square().sum(0) * adapter.scaling**2
    if model.gates is not None:
        total = total * model.gates.of(piece.values, adapter.target.path)[0].square()
    if hasattr(adapter, "lora_A"):
        total = total * F.linear(x, adapter.lora_A).square()
    return total.expand(*x.shape[:-1], -1)


def _frozen(system: System, adapter: Adapter, x: Tensor, batch: Batch) -> Tensor:
    """Return the squared norm of the frozen layer's output, `B x T`."""
    if adapter.target.is_head:
        return system.backbone.logits(x.to(system.backbone.dtype), batch.answer_ids).float().square().sum(-1)
    layer = system.backbone.lm.get_submodule(adapter.target.path)
    return layer(x.to(system.backbone.dtype)).float().square().sum(-1)
