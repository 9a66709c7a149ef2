"""What the gates of a fitted program do: draws of Phi, theta and their product, by row, module, rank unit."""

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
        ids: of the rows.
        phi: float32, `S x M x r`; None where the program has no global gate.
        theta: float32, `S x n x M x r`; None where it has no local one. LoRA has no gate: its activations
            `A x` stand here.
        log_probs: float64, `S x n x C`: the answers' log-probabilities under the same draws.
        ranks: of a pruned program, the units that each module has, which are the first of the r; empty: all.
        centre: what is taken from theta before it acts; 0 but for the centred additive form.
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
        """The gate as it acts, `Phi * (theta - centre)`: `S x n x M x r`, of Phi alone `S x 1 x M x r`."""
        return product(self.phi, self.theta, self.centre)

    def by_kind(self) -> dict[str, Tensor]:
        """Return `phi`, `theta` and `psi` as far as there are such gates, each `S x n x M x r`."""
        found = {"phi": None if self.phi is None else self.phi.unsqueeze(1), "theta": self.theta}
        return {name: value for name, value in found.items() if value is not None} | {"psi": self.psi}


def product(phi: Tensor | None, theta: Tensor | None, centre: float = 0.0) -> Tensor:
    """Return `Phi * (theta - centre)` of what there is, `S x n x M x r`; of Phi alone `S x 1 x M x r`."""
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
    """Draw the gates at the last token of rows: the draws that `core.prediction.predict` averages over.

    Args:
        model: the program: BaRA, or LoRA for the activations in place of gates.
        guide: its fitted guide.
        rows: batches to look at, with identifiers.
        samples: number S of draws; 0 stands for the posterior mean. LoRA has one point whatever S is.
        seed: of the draws.
        modules: paths of the modules to keep; all if None. What is kept takes 4 S n M r bytes.
        memory_budget: of the forwards, see `core.prediction.predict`.
        corrected: what is done to the log-probabilities of a batch: given the batch, these, the numbers of
            the draws (None: the mean) and their seed, see `posthoc.corrections.Corrections.of_draws`.

    Raises:
        ConfigError: an unknown module, or a method that has neither gates nor one down-projection a layer.
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
                f"{type(model).__name__} has neither gates nor activations A x: look at BaRA or LoRA."
            )
        if corrected is not None:
            numbers = torch.arange(samples) if samples and model.gates is not None else None
            part = replace(part, log_probs=corrected(placed, part.log_probs, numbers, seed))
        parts.append(part)
    if not parts:
        raise DataError("There are no rows to draw gates for: give at least one batch.")
    return GateDraws(
        paths,
        tuple(row_id for part in parts for row_id in part.ids),
        parts[0].phi,  # one draw a seed, shared by all rows
        None if parts[0].theta is None else torch.cat([torch.as_tensor(part.theta) for part in parts], dim=1),
        torch.cat([part.log_probs for part in parts], dim=1),
        tuple(model.rank_pattern.get(path, model.r) for path in paths) if model.rank_pattern else (),
        model.gates.centre if model.gates is not None else 0.0,
    )


def chosen_modules(model: AdaptedLM, modules: Sequence[str] | None = None) -> tuple[str, ...]:
    """Return the paths of the modules to look at, in the model's order; all if None.

    Raises:
        ConfigError: a path is not one of an adapted module.
    """
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
    """Return the entry of each row, `... x B x d`, of values at its tokens, `... x B x T x d`."""
    return values[..., torch.arange(len(places)), places, :]


@torch.no_grad()
def _activations(model: AdaptedLM, guide: SiteGuide, batch: Batch, paths: tuple[str, ...]) -> GateDraws:
    with PROGRAM, tapped(model.adapters.values()) as seen:
        log_probs = point_log_probs(model, guide, batch)
    down = [model.get_parameter(f"adapters.{module_key(path)}.lora_A") for path in paths]
    last = -torch.tensor(batch.asked)
    rows = [F.linear(at(seen[path][0], last), weight) for path, weight in zip(paths, down, strict=True)]
    rows = [F.pad(row, (0, model.r - row.shape[-1])) for row in rows]  # units that a pruned module lacks
    return GateDraws(paths, batch.ids, None, torch.stack(rows, dim=-2)[None].cpu(), log_probs[None])
