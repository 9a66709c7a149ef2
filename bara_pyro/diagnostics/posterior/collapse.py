"""Posterior collapse and prior predictive checks: which gates learnt nothing, and what the prior predicts.

A gate whose posterior equals its prior has no cost in the ELBO and learnt nothing from the data (Bowman et
al., CoNLL 2016). Prior predictions show whether the starting point of training is sensible (Gelman et al.,
Bayesian Workflow, 2020).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import kl_divergence

from bara_pyro.core.distributions import has_analytic_kl
from bara_pyro.core.guide import SiteGuide, check_guide
from bara_pyro.core.modules import distribution_of
from bara_pyro.core.noise import seeded
from bara_pyro.core.prediction import predict
from bara_pyro.core.priors import make_prior
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data.types import Batch
from bara_pyro.diagnostics.posterior.joint import gates_of
from bara_pyro.diagnostics.result import Number
from bara_pyro.errors import ConfigError, DataError, MissingKLError
from bara_pyro.metrics import posterior_predictive
from bara_pyro.types import Fields, Json

EPS = 0.01  # nats
SATURATED = 0.99

GAMMAS: dict[str, Json] = {
    f"Gamma({a:g}, {b:g})": {"name": "gamma", "concentration": a, "rate": b}
    for a, b in ((1.0, 1.0), (0.5, 1.0), (2.0, 1.0), (1.0, 0.5), (1.0, 2.0))
}
"""The paper's five priors, Gamma(shape, rate)."""


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


@dataclass(frozen=True)
class PriorPredictive:
    """Predictions of a model with all gates drawn from a prior, averaged over n rows."""

    prior: str  # name of the prior
    entropy: Number  # entropy of a draw's prediction, nats, mean over draws and rows; at most log C
    largest: Number  # largest probability of an answer in a draw, mean over draws and rows
    saturated: float  # percentage of draws and rows with a largest probability above 0.99
    averaged_entropy: Number  # entropy of the average over draws, nats, mean over rows


class _Gates(SiteGuide):
    """Draws every gate from one given distribution, and other latents from their priors."""

    def __init__(self, model: AdaptedLM, entry: TorchDistribution) -> None:
        super().__init__(model)
        gates = gates_of(model)
        self.sites = {gates.phi, *gates.theta.values()}
        self.entry = entry

    def get_posterior(self, name: str, prior: TorchDistribution) -> TorchDistribution:
        if name not in self.sites:
            return prior
        return self.entry.expand(prior.batch_shape + prior.event_shape).to_event(len(prior.event_shape))


def prior_predictive(
    model: AdaptedLM,
    batches: Sequence[Batch],
    priors: Mapping[str, Fields] = GAMMAS,
    *,
    samples: int = 100,
    seed: int = 0,
) -> tuple[PriorPredictive, ...]:
    """Return summaries of predictions with gates drawn from each of several priors and the current weights.

    Args:
        model: a program with gates.
        batches: rows to predict.
        priors: name -> prior of every gate (see `bara_pyro.core.priors.make_prior`).
        samples: number of draws.
        seed: seed of the draws.

    Raises:
        ConfigError: the program has no gates, a prior cannot be used, or `samples` is below 1.
        DataError: there are no rows.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.diagnostics.posterior.collapse import prior_predictive
        >>> run = bp.train(task="micro-wgs", method="bara-gate", steps=2, limit=8, out="runs/first")
        >>> rows = list(bp.batches(run.split("test"), run.answer_ids, 8))
        >>> [found] = prior_predictive(run.model, rows, {"paper": {"name": "gamma"}}, samples=4)
        >>> found.prior, 0 < found.entropy < 0.6932  # nats, at most log 2
        ('paper', True)
    """
    gates_of(model)
    if samples < 1:
        raise ConfigError(f"samples is {samples}: give 1 or more.")
    if not batches:
        raise DataError("There are no rows: give at least one batch.")
    device, results = model.backbone.device, []
    for name, prior in priors.items():
        guide = _Gates(model, make_prior(**prior, device=device))
        parts = [predict(model, guide, batch.to(device), samples=samples, seed=seed) for batch in batches]
        draws = torch.cat(parts, dim=1)
        largest = draws.exp().amax(-1)
        results.append(
            PriorPredictive(
                name,
                float(_entropy(draws).mean()),
                float(largest.mean()),
                100 * float((largest > SATURATED).double().mean()),
                float(_entropy(posterior_predictive(draws)).mean()),
            )
        )
    return tuple(results)


def _entropy(log_probs: Tensor) -> Tensor:
    """Return the entropy over the last dimension in nats; answers with probability 0 count as 0."""
    return torch.special.entr(log_probs.exp()).sum(-1)
