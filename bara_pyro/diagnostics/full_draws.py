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
from bara_pyro.core.gate_draws import GateDraws, ranks_of
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


@dataclass(frozen=True)
class FullDraws(GateDraws):
    """The gates and answers of n rows in S draws, with their KL; a KL is None if it has no closed form.

    Attributes:
        kl_phi: KL of all modules, with weight 1, float64, `S`, nats.
        kl_theta: KL of all modules and real tokens, with weight 1, float64, `S x n`, nats.
        kl_units: "phi", "theta" -> KL of each unit, mean over rows and draws at the last token, float64, `M x
            r`, nats; NaN above a module's rank. A unit with a KL near 0 learnt nothing (Bowman et al., CoNLL
            2016).
        unknown_kl: a sentence on a latent whose KL has no closed form; "" if there is none.
    """

    kl_phi: Tensor | None = None
    kl_theta: Tensor | None = None
    kl_units: dict[str, Tensor] = field(default_factory=dict)
    unknown_kl: str = ""

    def first(self, rows: int) -> "FullDraws":
        """Return the draws of the first rows."""
        by_row = {name: getattr(self, name) for name in ("log_probs", "theta", "kl_theta")}
        kept = {name: value[:, :rows] for name, value in by_row.items() if value is not None}
        return replace(self, ids=self.ids[:rows], **kept)

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
        return FullDraws((), part.ids, None, None, draw(system, part, samples, seed=seed))
    rows, units = (samples, len(part)), (len(modules), gates.r)
    out = FullDraws(
        tuple(modules),
        part.ids,
        torch.empty(samples, *units) if gates.phi else None,
        torch.empty(*rows, *units) if gates.theta else None,
        torch.empty(*rows, len(system.task.labels), dtype=torch.float64),
        ranks_of(model, modules),
        gates.centre,
        kl_theta=torch.zeros(rows, dtype=torch.float64) if gates.theta else None,
        kl_units={kind: torch.zeros(units, dtype=torch.float64) for kind in gates.kinds},
    )
    kl = _Divergences(model)
    place = {row_id: i for i, row_id in enumerate(part.ids)}
    for batch in batches(part, system.answer_ids, batch_size or c.batch_size, by_length=True):
        numbers = torch.tensor([place[row_id] for row_id in batch.ids])
        placed, budget = batch.to(system.backbone.device), c.memory_budget
        with kl:
            for piece in system.corrections.record(
                model, guide, placed, samples=samples, seed=seed, memory_budget=budget
            ):
                _keep(out, piece, numbers[piece.rows], gates, kl)
    known = {"phi": str(gates.phi) in kl.seen, "theta": kl.seen.keys() >= set(gates.theta.values())}
    if known["phi"]:  # the same in every forward pass
        places = [gates.modules.index(path) for path in modules]
        out.kl_units["phi"] = kl.units[str(gates.phi)].reshape(-1, gates.r)[places]
    ranks = torch.tensor([model.rank_pattern.get(path, model.r) for path in modules])
    absent = torch.arange(gates.r) >= ranks[:, None]
    return replace(
        out,
        kl_phi=kl.seen[str(gates.phi)].double().sum().cpu().expand(samples) if known["phi"] else None,
        kl_theta=out.kl_theta if known["theta"] else None,
        kl_units={k: of.masked_fill(absent, math.nan) for k, of in out.kl_units.items() if known[k]},
        unknown_kl=kl.unknown,
    )


def _keep(out: FullDraws, piece: RecordedDraws, rows: Tensor, gates: Gates, kl: "_Divergences") -> None:
    """Store the draws of one forward pass, and add its KL of local gates."""
    out.log_probs[piece.draws, rows] = piece.log_probs
    phi = gates.global_gates(piece.values)
    if out.phi is not None and phi is not None:
        out.phi[piece.draws] = phi[:, [gates.modules.index(path) for path in out.modules]].cpu()
    if out.theta is None or out.kl_theta is None:
        return
    for path, site in gates.theta.items():
        place = out.modules.index(path) if path in out.modules else None
        if place is not None:
            out.theta[piece.draws, rows, place] = piece.values[site][..., -1, :].cpu()
        if site not in kl.seen:
            continue
        divergence = kl.seen[site]
        real = divergence.masked_fill(~piece.mask[:, -divergence.shape[-1] :], 0.0)
        out.kl_theta[piece.draws, rows] += real.sum(-1, dtype=torch.float64).cpu()
        if place is not None:
            last = kl.units[site].expand(*piece.log_probs.shape[:2], -1).sum((0, 1))
            units = out.kl_units["theta"][place, : len(last)]
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
