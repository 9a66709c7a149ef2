"""How sure to be of a posterior: what the gates learnt, how much single rows weigh, what the prior says."""

import math

from bara_pyro.data import batches, first_rows
from bara_pyro.diagnostics.arviz.inference_data import to_inference_data
from bara_pyro.diagnostics.arviz.loo import NoSpreadError, loo
from bara_pyro.diagnostics.context import Context
from bara_pyro.diagnostics.posterior.collapse import (
    EPS,
    Collapse,
    PriorPredictive,
    collapse,
    prior_predictive,
)
from bara_pyro.diagnostics.result import Number, Result
from bara_pyro.errors import MissingKLError
from bara_pyro.metrics import posterior_predictive

FEW_ROWS = 32
KL_DRAWS = 5


class GateLearning(Result):
    """KL(q || p) of one kind of gate, nats."""

    kind: str  # "phi" or "theta"
    mean: float  # over units
    at_prior: float  # percent of units within `EPS` nats of their prior
    r: int  # units of a module
    by_module: dict[str, float]  # mean over its units
    at_prior_by_module: dict[str, int]  # how many of them are at the prior


class LeftOut(Result):
    """PSIS-LOO on training rows, beside rows that were never seen."""

    rows: int
    draws: int
    elpd: Number  # mean expected log probability of a left-out training row, nats
    se: Number  # its standard error, nats
    unseen: Number  # the mean log probability of the rows looked at, nats
    unseen_se: Number = 0.0  # its standard error, nats; of older files not known
    good_k: float  # the Pareto k up to which a row can be relied on
    high_k: int  # how many rows are above it
    pareto_k: dict[str, Number]  # by row; null where the draws are too few to fit it

    @property
    def gap(self) -> float:
        """How much better a training row is predicted than one never seen, nats."""
        return self.elpd - self.unseen

    @property
    def gap_se(self) -> float:
        """Its standard error: both sets of rows could have been others."""
        return math.hypot(self.se, self.unseen_se)


class PosteriorTrust(Result):
    """What there is to know of a posterior."""

    learning: list[GateLearning]  # of each kind of gate; empty where no KL is known, and `why_not` says so
    why_not: str  # why there is no KL; empty where there is
    left_out: LeftOut | None  # PSIS-LOO; None where it is not defined, and `not_left_out` says so
    not_left_out: str  # why there is no PSIS-LOO; empty where there is
    prior_predictive: list[PriorPredictive]  # answers with all gates drawn from each of several priors


def posterior_trust(c: Context) -> PosteriorTrust | None:
    """Return how sure to be of the posterior; None for methods without random gates."""
    if not c.has_gates or not c.system.guide.stochastic:
        return None
    few = list(batches(first_rows(c.rows, FEW_ROWS), c.system.answer_ids, FEW_ROWS, by_length=True))
    learning, why_not = [], ""
    try:
        found = collapse(c.system.model, c.system.guide, few, samples=KL_DRAWS)
        learning = [_learning(found, kind) for kind in found.kl]
    except MissingKLError as error:
        why_not = str(error)
    left_out: LeftOut | None = None
    not_left_out = ""
    try:
        left_out = _left_out(c)
    except NoSpreadError as error:
        not_left_out = str(error)
    return PosteriorTrust(
        learning=learning,
        why_not=why_not,
        left_out=left_out,
        not_left_out=not_left_out,
        prior_predictive=list(prior_predictive(c.system.model, few, samples=c.options.prior_draws)),
    )


def _learning(found: Collapse, kind: str) -> GateLearning:
    kl = found.kl[kind]
    return GateLearning(
        kind=kind,
        mean=float(kl.nanmean()),
        at_prior=found.share()[kind],
        r=kl.shape[1],
        by_module=dict(zip(found.modules, kl.nanmean(1).tolist(), strict=True)),
        at_prior_by_module=dict(zip(found.modules, (kl <= EPS).sum(1).tolist(), strict=True)),
    )


def _left_out(c: Context) -> LeftOut:
    samples, rows = c.options.train_draws, min(c.options.train_rows, len(c.system.task.train))
    found = loo(to_inference_data(c.system, split="train", rows=rows, samples=samples, prior=False))
    kept = len(found.ids)  # rows too long are left out
    unseen = posterior_predictive(c.log_probs).gather(1, c.labels[:, None]).squeeze(1)
    return LeftOut(
        rows=kept,
        draws=samples,
        elpd=float(found.pointwise.mean()),
        se=found.se / kept,
        unseen=float(unseen.mean()),
        unseen_se=float(unseen.std() / math.sqrt(len(unseen))) if len(unseen) > 1 else 0.0,
        good_k=found.good_k,
        high_k=len(found.unreliable),
        pareto_k=dict(zip(found.ids, found.pareto_k.tolist(), strict=True)),
    )
