"""Posterior collapse: which gates learnt nothing.

A gate whose posterior equals its prior has no cost in the ELBO and learnt nothing from the data (Bowman et
al., CoNLL 2016).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import kl_divergence

from bara_pyro.core.distributions import has_analytic_kl
from bara_pyro.core.guide import SiteGuide, check_guide
from bara_pyro.core.modules import distribution_of
from bara_pyro.core.noise import seeded
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data.types import Batch
from bara_pyro.diagnostics.posterior.joint import gates_of
from bara_pyro.errors import ConfigError, DataError, MissingKLError

EPS = 0.01  # nats


@dataclass(frozen=True)
class Collapse:
    """KL(q || p) of each gate in nats."""

    modules: tuple[str, ...]  # paths of the M modules
    kl: dict[str, Tensor]
    """"phi", "theta" -> float64, `M x r`; NaN above a module's rank. For theta the mean over rows and draws
    at the last token."""

    def share(self, eps: float = EPS) -> dict[str, float]:
        """Return the percentage of units within `eps` nats of the prior, for each kind of gate."""
        return {kind: 100 * float((kl[~kl.isnan()] <= eps).double().mean()) for kind, kl in self.kl.items()}


@torch.no_grad()
def collapse(
    model: AdaptedLM, guide: SiteGuide, batches: Iterable[Batch], *, samples: int = 10, seed: int = 0
) -> Collapse:
    """Return the KL divergence of each gate's posterior from its prior, in nats.

    Args:
        model: the program.
        guide: its fitted guide.
        batches: rows to average the KL of theta over; labels are not used.
        samples: number of draws to average over, because theta's posterior depends on the gates in lower
            layers.
        seed: seed of the draws.

    Raises:
        ConfigError: the program has no gates, the guide is a point estimate or belongs to another model, or
            `samples` is below 1.
        MissingKLError: a pair of posterior and prior has no analytic KL.
        DataError: there are no rows.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.diagnostics.posterior.collapse import collapse
        >>> run = bp.train(task="micro-wgs", method="bara-gate", steps=2, limit=8, out="runs/first")
        >>> rows = bp.batches(run.split("test"), run.answer_ids, 8)
        >>> found = collapse(run.model, run.guide, rows, samples=2)
        >>> found.kl["phi"].shape, bool((found.kl["theta"] >= 0).all())  # modules x r, nats
        (torch.Size([9, 8]), True)
    """
    gates = gates_of(model)
    check_guide(guide, model)
    if not guide.stochastic:
        raise ConfigError(
            f"{type(guide).__name__} is a point estimate, whose KL is infinite: choose another guide."
        )
    if samples < 1:
        raise ConfigError(f"samples is {samples}: give 1 or more.")
    phi, theta, rows = {}, torch.zeros(len(gates.modules), model.r, dtype=torch.float64), 0
    for batch in batches:
        rows += len(batch)
        placed = batch.to(model.backbone.device)
        with seeded(model.backbone.device, seed):
            for _ in range(samples):
                divergences = _divergences(guide, placed)
                phi = {"phi": divergences[gates.phi]} if gates.phi else {}
                for i, path in enumerate(gates.modules if gates.theta else ()):
                    units = divergences[gates.theta[path]][:, -1].sum(0) / samples
                    theta[i, : len(units)] += units
    if not rows:
        raise DataError("There are no rows: give at least one batch.")
    divergences = phi | ({"theta": theta / rows} if gates.theta else {})
    ranks = torch.tensor([model.rank_pattern.get(path, model.r) for path in gates.modules])
    gone = torch.arange(model.r) >= ranks[:, None]
    return Collapse(gates.modules, {kind: kl.masked_fill(gone, math.nan) for kind, kl in divergences.items()})


def _divergences(guide: SiteGuide, batch: Batch) -> dict[str, Tensor]:
    """Return KL(q || p) of every entry of every latent in one forward pass, nats, float64."""
    program, posterior = guide.run(batch)
    out = {}
    for name in guide.model.latents.sites:
        # Use the base distributions: `to_event` would sum over units.
        q, p = (distribution_of(trace.nodes[name]).base_dist for trace in (posterior, program))
        if not has_analytic_kl(q, p):
            raise MissingKLError(
                f"Site {name!r}: no analytic KL({type(q).__name__} || {type(p).__name__}) is registered; "
                "choose another prior or guide."
            )
        out[name] = kl_divergence(q, p).double().cpu()
    return out
