"""Draws of the gates of a fitted program: Phi, theta and their product per row, module and rank unit."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from bara_pyro.core.adapter import tapped
from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.handlers import PROGRAM
from bara_pyro.core.latents import Gates
from bara_pyro.core.modules import module_key
from bara_pyro.core.prediction import point_log_probs, record
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError, DataError, unknown


@dataclass(frozen=True)
class GateDraws:
    """Gates at the last token of n prompts under S draws of the posterior (S = 1 for the posterior mean).

    Attributes:
        modules: paths of the M modules.
        ids: identifiers of the n rows.
        phi: float32, `S x M x r`; None for a program without global gates.
        theta: float32, `S x n x M x r`; None for a program without local gates. For LoRA, which has no gates,
            its activations `A x`.
        log_probs: the answers' log-probabilities under the same draws, float64, `S x n x C`.
        ranks: with a rank pattern, the number of units of each module, the first of the r; else empty.
        centre: value subtracted from theta before use; 0 except in the centred additive form.
    """

    modules: tuple[str, ...]
    ids: tuple[str, ...]
    phi: Tensor | None
    theta: Tensor | None
    log_probs: Tensor
    ranks: tuple[int, ...] = ()
    centre: float = 0.0

    @property
    def psi(self) -> Tensor:
        """The effective gate `Phi * (theta - centre)`: `S x n x M x r`; `S x 1 x M x r` without theta."""
        return product(self.phi, self.theta, self.centre)

    def by_kind(self) -> dict[str, Tensor]:
        """Return those of `phi`, `theta` and `psi` that the program has, each `S x n x M x r`."""
        kinds = {"phi": None if self.phi is None else self.phi.unsqueeze(1), "theta": self.theta}
        return {name: value for name, value in kinds.items() if value is not None} | {"psi": self.psi}


def product(phi: Tensor | None, theta: Tensor | None, centre: float = 0.0) -> Tensor:
    """Return `Phi * (theta - centre)`, `S x n x M x r`; without theta `S x 1 x M x r`."""
    if theta is None:
        return torch.as_tensor(phi).unsqueeze(1)
    theta = theta - centre if centre else theta
    return theta if phi is None else theta * phi.unsqueeze(1)


def gate_draws(
    model: AdaptedLM,
    guide: SiteGuide,
    rows: Iterable[Batch],
    *,
    samples: int = 10,
    seed: int = 0,
    modules: Sequence[str] | None = None,
    memory_budget: int | None = None,
    corrected: Callable[[Batch, Tensor, Tensor | None, int], Tensor] | None = None,
) -> GateDraws:
    """Draw the gates at the last token of each row: the draws that `core.prediction.predict` averages over.

    Args:
        model: the program: BaRA for gates, or LoRA for its activations instead of gates.
        guide: its fitted guide.
        rows: batches, with row identifiers.
        samples: number S of draws; 0 for the posterior mean. LoRA has no draws and gives one point.
        seed: seed of the draws.
        modules: paths of the modules to keep; all if None. The result takes 4 S n M r bytes.
        memory_budget: memory per forward, see `core.prediction.predict`.
        corrected: function that corrects the log-probabilities of a batch. Its arguments are the batch, the
            log-probabilities, the draw numbers (None for the mean) and the seed; see
            `posthoc.corrections.Corrections.of_draws`.

    Returns:
        The gates and log-probabilities of all rows.

    Raises:
        ConfigError: an unknown module, or a method that has neither gates nor activations `A x`.
        DataError: there are no rows.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.core.gate_draws import gate_draws
        >>> backbone, task = bp.load_backbone("microworld"), bp.load_task("micro-wgs")
        >>> answers = bp.answer_token_ids(backbone.tokenizer, task.labels)
        >>> rows = bp.encode(task.train[:6], backbone.tokenizer)
        >>> model = bp.models.BaRA(backbone, num_data=len(rows), form="gate", r=4)
        >>> guide = bp.guides.WeibullGuide(model)
        >>> found = gate_draws(model, guide, bp.batches(rows, answers, 3), samples=5, modules=["lm_head"])
        >>> found.phi.shape, found.theta.shape, found.psi.shape  # draws x rows x modules x r
        (torch.Size([5, 1, 4]), torch.Size([5, 6, 1, 4]), torch.Size([5, 6, 1, 4]))
    """
    paths = chosen_modules(model, modules)
    parts: list[GateDraws] = []
    for batch in rows:
        placed = batch.to(model.backbone.device)
        if model.gates is not None:
            part = _gates(model, model.gates, guide, placed, paths, samples, seed, memory_budget)
        elif model.has_activations:
            part = _activations(model, guide, placed, paths)
        else:
            raise ConfigError(
                f"{type(model).__name__} has neither gates nor activations A x: use BaRA or LoRA."
            )
        if corrected is not None:
            numbers = torch.arange(samples) if samples and model.gates is not None else None
            part = replace(part, log_probs=corrected(placed, part.log_probs, numbers, seed))
        parts.append(part)
    if not parts:
        raise DataError("No rows to draw gates for: pass at least one batch.")
    return GateDraws(
        paths,
        tuple(row_id for part in parts for row_id in part.ids),
        parts[0].phi,  # shared by all rows: it depends on the seed only
        None if parts[0].theta is None else torch.cat([torch.as_tensor(part.theta) for part in parts], dim=1),
        torch.cat([part.log_probs for part in parts], dim=1),
        ranks_of(model, paths),
        model.gates.centre if model.gates is not None else 0.0,
    )


def ranks_of(model: AdaptedLM, paths: Sequence[str]) -> tuple[int, ...]:
    """Return the number of units of each module; empty if all have r."""
    return tuple(model.rank_pattern.get(path, model.r) for path in paths) if model.rank_pattern else ()


def chosen_modules(model: AdaptedLM, modules: Sequence[str] | None = None) -> tuple[str, ...]:
    """Return the given module paths in the model's order, None: all; a `ConfigError` for an unknown path."""
    known = [target.path for target in model.targets]
    for path in modules or ():
        if path not in known:
            raise ConfigError(unknown("module", path, known))
    return tuple(known if modules is None else (path for path in known if path in modules))


def _gates(
    model: AdaptedLM,
    gates: Gates,
    guide: SiteGuide,
    batch: Batch,
    paths: tuple[str, ...],
    samples: int,
    seed: int,
    memory_budget: int | None,
) -> GateDraws:
    draws = max(samples, 1)
    phi = torch.empty(draws, len(paths), gates.r) if gates.phi else None
    theta = torch.empty(draws, len(batch), len(paths), gates.r) if gates.theta else None
    chosen = [gates.modules.index(path) for path in paths]
    last = -torch.tensor(batch.asked)
    log_probs = torch.empty(0)
    for piece in record(model, guide, batch, samples=samples, seed=seed, memory_budget=memory_budget):
        if not log_probs.numel():
            log_probs = piece.log_probs.new_empty(draws, len(batch), piece.log_probs.shape[-1])
        log_probs[piece.draws, piece.rows] = piece.log_probs
        drawn = gates.global_gates(piece.values)
        if phi is not None and drawn is not None:
            phi[piece.draws] = drawn[:, chosen].cpu()
        if theta is not None:
            for i, path in enumerate(paths):
                values = piece.values[gates.theta[path]]
                theta[piece.draws, piece.rows, i] = at(values, last[piece.rows]).cpu()
    return GateDraws(paths, batch.ids, phi, theta, log_probs)


def at(values: Tensor, places: Tensor) -> Tensor:
    """Return the values at one token per row, `... x B x d`, from values at all tokens, `... x B x T x d`."""
    return values[..., torch.arange(len(places)), places, :]


@torch.no_grad()
def _activations(model: AdaptedLM, guide: SiteGuide, batch: Batch, paths: tuple[str, ...]) -> GateDraws:
    with PROGRAM, tapped(model.adapters.values()) as taps:
        log_probs = point_log_probs(model, guide, batch)
    down = [model.get_parameter(f"adapters.{module_key(path)}.lora_A") for path in paths]
    last = -torch.tensor(batch.asked)
    rows = [F.linear(at(taps[path][0], last), weight) for path, weight in zip(paths, down, strict=True)]
    rows = [F.pad(row, (0, model.r - row.shape[-1])) for row in rows]  # zeros above a module's rank
    return GateDraws(paths, batch.ids, None, torch.stack(rows, dim=-2)[None].cpu(), log_probs[None])
