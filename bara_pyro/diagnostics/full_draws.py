"""Posterior draws of gates and answers for rows, with the KL of each draw and of each gate."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from torch import Tensor
from torch.distributions import Distribution, Independent, kl_divergence

from bara_pyro.core.distributions import has_analytic_kl
from bara_pyro.core.gate_draws import product
from bara_pyro.core.guide import PRIOR, SiteGuide
from bara_pyro.core.latents import Gates
from bara_pyro.core.likelihood import require_answer_tokens
from bara_pyro.core.modules import distribution_of
from bara_pyro.core.noise import noise_seed
from bara_pyro.core.prediction import RecordedDraws
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data import EncodedSplit, batches, first_rows
from bara_pyro.errors import ConfigError, DataError, unknown
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.system import System

SPLITS = ("train", "validation", "test")
Rows = int | Sequence[str]


@dataclass
class FullDraws:
    """S draws for n rows. A gate is None if the program lacks it, a KL if it has no closed form."""

    log_probs: Tensor  # float64, `S x n x C`
    phi: Tensor | None = None  # float32, `S x M x r`
    theta: Tensor | None = None  # float32, `S x n x M x r`, at the last token
    kl_phi: Tensor | None = None  # float64, `S`, nats: KL of all modules, with weight 1
    kl_theta: Tensor | None = None  # float64, `S x n`, nats: KL of all modules and real tokens, with weight 1
    # "phi", "theta" -> float64, `M x r`, nats: KL of each unit, mean over rows and draws at the last token;
    # NaN above a module's rank. A unit with a KL near 0 learnt nothing (Bowman et al., CoNLL 2016).
    kl_units: dict[str, Tensor] = field(default_factory=dict)
    unknown_kl: str = ""  # a latent whose KL has no closed form, in a sentence
    centre: float = 0.0  # subtracted from theta in the gate

    @property
    def psi(self) -> Tensor:
        """The gate `Phi * (theta - centre)`: `S x n x M x r`, or `S x 1 x M x r` without theta."""
        return product(self.phi, self.theta, self.centre)

    def first(self, rows: int) -> "FullDraws":
        """Return the draws of the first rows."""
        by_row = {name: getattr(self, name) for name in ("theta", "kl_theta")}
        kept = {name: value[:, :rows] for name, value in by_row.items() if value is not None}
        return replace(self, log_probs=self.log_probs[:, :rows], **kept)

    def gates(self) -> dict[str, Tensor]:
        """Return the program's gates by name, and their product as `gate` if it has both kinds."""
        by_kind = {"phi": self.phi, "theta": self.theta}
        if self.phi is not None and self.theta is not None:
            by_kind["gate"] = self.psi
        return {name: value for name, value in by_kind.items() if value is not None}


def wanted_rows(system: System, split: str, rows: Rows) -> EncodedSplit:
    """Return the first rows of a split, or rows by identifier in the given order.

    Raises:
        ConfigError: the split is unknown, no row is given, or a row is given twice.
        DataError: a row is unknown.
    """
    if split not in SPLITS:
        raise ConfigError(unknown("split", split, SPLITS))
    encoded = system.split(split)
    if isinstance(rows, int):
        if rows < 1:
            raise ConfigError(f"rows is {rows}: give 1 or more, or a list of row identifiers.")
        return first_rows(encoded, rows)
    place = {row_id: i for i, row_id in enumerate(encoded.ids)}
    for row_id in rows:
        if row_id not in place:
            raise DataError(f"There is no row {row_id!r} among the {len(encoded)} rows of the {split} split.")
    if not rows or len(set(rows)) < len(rows):
        raise ConfigError(f"rows is {list(rows)}: name at least one row, and each row once.")
    return encoded.take([place[row_id] for row_id in rows])


def full_draws(
    system: System,
    guide: SiteGuide,
    part: EncodedSplit,
    samples: int,
    seed: int,
    modules: Sequence[str],
    *,
    batch_size: int | None = None,
) -> FullDraws:
    """Return draws of answers and, if the method has them, gates: the draws of `core.prediction.predict`.

    Draws of the n rows in `part`, in their order, for the latents of a guide or of the prior. Gates are kept
    of the `modules`, which are paths, at the last token.
    """
    model, gates, c = system.model, system.model.gates, system.config.predict
    require_answer_tokens(model.likelihood, "Diagnostics of draws")
    if gates is None:
        return FullDraws(draw(system, part, samples, seed=seed))
    rows, units = (samples, len(part)), (len(modules), gates.r)
    out = FullDraws(
        torch.empty(*rows, len(system.task.labels), dtype=torch.float64),
        phi=torch.empty(samples, *units) if gates.phi else None,
        theta=torch.empty(*rows, *units) if gates.theta else None,
        kl_theta=torch.zeros(rows, dtype=torch.float64) if gates.theta else None,
        kl_units={kind: torch.zeros(units, dtype=torch.float64) for kind in gates.kinds},
        centre=gates.centre,
    )
    divergences = _Divergences(model)
    place = {row_id: i for i, row_id in enumerate(part.ids)}
    for batch in batches(part, system.answer_ids, batch_size or c.batch_size, by_length=True):
        numbers = torch.tensor([place[row_id] for row_id in batch.ids])
        placed, budget = batch.to(system.backbone.device), c.memory_budget
        with divergences:
            for piece in system.corrections.record(
                model, guide, placed, samples=samples, seed=seed, memory_budget=budget
            ):
                _keep(out, piece, numbers[piece.rows], gates, modules, divergences)
                divergences.seen, divergences.units = {}, {}
    out.unknown_kl = divergences.unknown
    ranks = torch.tensor([model.rank_pattern.get(path, model.r) for path in modules])
    absent = torch.arange(gates.r) >= ranks[:, None]
    out.kl_units = {kind: kl.masked_fill(absent, math.nan) for kind, kl in out.kl_units.items()}
    return out


def _keep(
    out: FullDraws,
    piece: RecordedDraws,
    rows: Tensor,
    gates: Gates,
    modules: Sequence[str],
    kl: "_Divergences",
) -> None:
    """Store the draws of one forward pass."""
    out.log_probs[piece.draws, rows] = piece.log_probs
    phi = gates.global_gates(piece.values)
    if out.phi is not None and phi is not None:
        places, site = [gates.modules.index(path) for path in modules], str(gates.phi)
        out.phi[piece.draws] = phi[:, places].cpu()
        if site in kl.seen:  # the same in every forward pass
            out.kl_phi = kl.seen[site].double().sum().cpu().expand(len(out.phi))
            out.kl_units["phi"] = kl.units[site].reshape(-1, gates.r)[places]
        else:
            out.kl_units.pop("phi", None)
    if out.theta is None:
        return
    for i, path in enumerate(modules):
        out.theta[piece.draws, rows, i] = piece.values[gates.theta[path]][..., -1, :].cpu()
    for path, site in gates.theta.items():
        if site not in kl.seen or out.kl_theta is None:
            out.kl_theta = None
            out.kl_units.pop("theta", None)
            return
        divergence = kl.seen[site]
        real = divergence.masked_fill(~piece.mask[:, -divergence.shape[-1] :], 0.0)
        out.kl_theta[piece.draws, rows] += real.sum(-1, dtype=torch.float64).cpu()
        if path in modules:
            last = kl.units[site].expand(*piece.log_probs.shape[:2], -1).sum((0, 1))
            units = out.kl_units["theta"][modules.index(path), : len(last)]
            units += last / math.prod(out.log_probs.shape[:2])


def by_unit(fn: Distribution) -> Distribution:
    """Return a distribution whose KL is that of each unit; a joint one, which has none, as it is."""
    return fn.base_dist if isinstance(fn, Independent) else fn


class _Divergences(Messenger):
    """Records KL(posterior || prior) of every latent as it is drawn, without weights and masks.

    Attributes:
        seen: site -> KL in nats, of the posterior's batch shape; without sites that have no closed form.
        units: site -> the same for each unit, float64: of a local site at the last token only.
        unknown: a sentence on a site without a closed form; "" if there is none.
    """

    def __init__(self, model: AdaptedLM) -> None:
        super().__init__()
        self.latents = model.latents
        self.seen: dict[str, Tensor] = {}
        self.units: dict[str, Tensor] = {}
        self.unknown = ""

    def _pyro_post_sample(self, msg: Message) -> None:
        name, infer = msg["name"], msg["infer"]
        if name is None or infer is None or name not in self.latents.sites:
            return
        posterior, prior = by_unit(distribution_of(msg)), by_unit(infer[PRIOR])
        if not has_analytic_kl(posterior, prior):
            self.unknown = (
                f"Site {name!r}: no analytic KL({type(posterior).__name__} || {type(prior).__name__}) is "
                "registered; choose another prior or guide."
            )
            return
        units = kl_divergence(posterior, prior).expand(posterior.batch_shape)
        self.seen[name] = units.sum(-1)
        last = units if name in self.latents.global_sites else units[..., -1, :]
        self.units[name] = last.double().cpu()


def answers(log_probs: Tensor, ids: Sequence[str], seed: int, key: str) -> Tensor:
    """Draw an answer from the probabilities of every draw, long, `S x n`.

    The noise of a row depends on the seed, the key and its identifier, not on the other rows. `log_probs` are
    `S x n x C`, NaN raises a `DataError`, and the key makes the noise of several calls independent.
    """
    if log_probs.isnan().any():
        row = ids[int(log_probs.isnan().any(dim=-1).any(dim=0).nonzero()[0])]
        raise DataError(
            f"The probabilities of row {row!r} are NaN in a draw because its gates overflow: choose a prior "
            "with lighter tails, or leave the prior out with prior=False."
        )
    uniform = torch.empty(log_probs.shape[:2], dtype=torch.float64)
    for i, row_id in enumerate(ids):
        generator = torch.Generator().manual_seed(noise_seed(seed, f"{key}/{row_id}"))
        uniform[:, i] = torch.rand(len(log_probs), generator=generator, dtype=torch.float64)
    below = log_probs.exp().cumsum(dim=-1) <= uniform.unsqueeze(-1)
    return below.sum(dim=-1).clamp(max=log_probs.shape[-1] - 1)  # rounding can leave the sum below 1
