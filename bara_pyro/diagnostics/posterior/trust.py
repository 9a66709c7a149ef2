"""Quality of a posterior: what the gates learnt, and the influence of single rows."""

import math

import torch
from torch import Tensor

from bara_pyro.data import first_rows
from bara_pyro.diagnostics.arviz.loo import NoSpreadError, loo_of
from bara_pyro.diagnostics.context import Context
from bara_pyro.diagnostics.result import Number, Result
from bara_pyro.metrics import posterior_predictive
from bara_pyro.runs.evaluate import draw

EPS = 0.01  # nats
NOT_COMPUTED = "PSIS-LOO was not computed."


class GateLearning(Result):
    """KL(q || p) of one kind of gate, in nats."""

    kind: str  # "phi" or "theta"
    mean: float  # mean over units
    at_prior: float  # percentage of units within `EPS` nats of their prior
    r: int  # units in a module
    by_module: dict[str, float]  # mean over the units of each module
    at_prior_by_module: dict[str, int]  # number of units at the prior in each module


class LeftOut(Result):
    """PSIS-LOO on training rows, compared with unseen rows."""

    rows: int  # number of training rows
    draws: int
    elpd: Number  # mean expected log probability of a left-out training row, nats
    se: Number  # standard error of `elpd`, nats
    unseen: Number  # mean log probability of the inspected (unseen) rows, nats
    unseen_se: Number  # standard error of `unseen`, nats
    good_k: float  # largest Pareto k of a reliable row
    high_k: int  # number of rows above `good_k`
    pareto_k: dict[str, Number]  # Pareto k of each row; null with too few draws to fit it

    @property
    def gap(self) -> float:
        """How much better training rows are predicted than unseen rows, in nats."""
        return self.elpd - self.unseen

    @property
    def gap_se(self) -> float:
        """The standard error of the gap in nats, over both sets of rows."""
        return math.hypot(self.se, self.unseen_se)


class PosteriorTrust(Result):
    """The quality of a posterior."""

    learning: list[GateLearning]  # KL of each kind of gate; empty if unknown
    why_not: str  # the reason if the KL is unknown, otherwise empty
    left_out: LeftOut | None  # PSIS-LOO; None if it does not exist
    not_left_out: str  # the reason if PSIS-LOO does not exist, otherwise empty


def posterior_trust(c: Context) -> PosteriorTrust | None:
    """Return the quality of a run's posterior; None for methods without random gates."""
    if c.drawn is None or c.gates is None:
        return None
    learning = [_learning(kind, kl, c.gates.modules) for kind, kl in c.drawn.kl_units.items()]
    left_out: LeftOut | None = None
    not_left_out = NOT_COMPUTED
    if c.options.thorough:
        not_left_out = ""
        try:
            left_out = _left_out(c)
        except NoSpreadError as error:
            not_left_out = str(error)
    return PosteriorTrust(
        learning=learning, why_not=c.drawn.unknown_kl, left_out=left_out, not_left_out=not_left_out
    )


def _learning(kind: str, kl: Tensor, modules: tuple[str, ...]) -> GateLearning:
    at_prior = kl <= EPS  # False for units above a module's rank, which are NaN
    return GateLearning(
        kind=kind,
        mean=float(kl.nanmean()),
        at_prior=100 * float(at_prior.sum() / (~kl.isnan()).sum()),
        r=kl.shape[1],
        by_module=dict(zip(modules, kl.nanmean(1).tolist(), strict=True)),
        at_prior_by_module=dict(zip(modules, at_prior.sum(1).tolist(), strict=True)),
    )


def _left_out(c: Context) -> LeftOut:
    samples = 2 * c.options.samples  # Pareto's k needs enough of them to fit a tail
    rows = first_rows(c.system.split("train"), c.options.train_rows)
    log_probs, labels = draw(c.system, rows, samples), torch.tensor(rows.labels)
    likelihood = log_probs.gather(-1, labels.expand(len(log_probs), -1).unsqueeze(-1))[..., 0]
    result = loo_of(likelihood, rows.ids, c.system.config.method.name)
    count = len(result.ids)  # rows that are too long were dropped
    unseen = posterior_predictive(c.log_probs).gather(1, c.labels[:, None]).squeeze(1)
    return LeftOut(
        rows=count,
        draws=samples,
        elpd=float(result.pointwise.mean()),
        se=result.se / count,
        unseen=float(unseen.mean()),
        unseen_se=float(unseen.std() / math.sqrt(len(unseen))) if len(unseen) > 1 else 0.0,
        good_k=result.good_k,
        high_k=len(result.unreliable),
        pareto_k=dict(zip(result.ids, result.pareto_k.tolist(), strict=True)),
    )
