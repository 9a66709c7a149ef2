"""Quality of a posterior: what the gates learnt, and the influence of single rows.

PSIS-LOO (Vehtari, Gelman and Gabry 2017) estimates how well the posterior would predict a row if it had not
seen it: every draw gets the weight 1 / p(y_i | draw), which removes the row from a posterior *that was
conditioned on it*. It applies to training rows only; for others the plain likelihood is that of unseen data.

The draws come from the guide, not from the exact posterior, and the weights do not correct this. They also
act only on latent variables: the point estimates A and B have seen the row. The estimate is therefore
optimistic, and it does not exist for a method without posterior spread. If you have validation rows, prefer
their likelihood. `arviz.loo` and `arviz.compare` take the exported draws of training rows.
"""

import math

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from bara_pyro.data import first_rows
from bara_pyro.diagnostics import Number, Result
from bara_pyro.diagnostics.arviz.compat import pareto_smoothed
from bara_pyro.diagnostics.context import Context
from bara_pyro.diagnostics.parts import pairs
from bara_pyro.metrics import posterior_predictive
from bara_pyro.report.html import Picture, Section
from bara_pyro.report.style import GREY, PALETTE, WIDTH, dress, legend_of, new_figure
from bara_pyro.report.table import Column, Table
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
    if c.drawn is None:
        return None
    learning = [_learning(kind, kl, c.drawn.modules) for kind, kl in c.drawn.kl_units.items()]
    left_out = _left_out(c) if c.options.thorough else None
    not_left_out = "" if left_out else NOT_COMPUTED
    if c.options.thorough and left_out is None:
        not_left_out = (
            f"All draws of {c.system.config.method.name!r} are the same: PSIS-LOO reweights draws and needs "
            "a posterior with spread."
        )
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


def _left_out(c: Context) -> LeftOut | None:
    """Return PSIS-LOO on training rows; None if all draws are the same."""
    samples = 2 * c.options.samples  # Pareto's k needs enough of them to fit a tail
    rows = first_rows(c.system.split("train"), c.options.train_rows)
    log_probs, labels = draw(c.system, rows, samples), torch.tensor(rows.labels)
    likelihood = log_probs.gather(-1, labels.expand(len(log_probs), -1).unsqueeze(-1))[..., 0]
    if not bool((likelihood.amax(0) > likelihood.amin(0)).any()):
        return None
    left_out, k = psis_loo(likelihood)
    good_k = min(1 - 1 / math.log10(len(likelihood)), 0.7)
    unseen = posterior_predictive(c.log_probs).gather(1, c.labels[:, None]).squeeze(1)
    return LeftOut(
        rows=len(rows),
        draws=samples,
        elpd=float(left_out.mean()),
        se=float((left_out.var(correction=0) / len(rows)).sqrt()),
        unseen=float(unseen.mean()),
        unseen_se=float(unseen.std() / math.sqrt(len(unseen))) if len(unseen) > 1 else 0.0,
        good_k=good_k,
        high_k=int((k > good_k).sum()),
        pareto_k=dict(zip(rows.ids, k.tolist(), strict=True)),
    )


def psis_loo(log_likelihood: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log probability of each row as if it were left out, and the Pareto k of its weights.

    Both are float64, `n`. The log-likelihoods are those of n training rows in S draws, `S x n`, nats. k is
    infinite with too few draws to fit a tail (below about 25).
    """
    smoothed, k = zip(*(pareto_smoothed(-row) for row in log_likelihood.T.numpy()), strict=True)
    weights = torch.from_numpy(np.stack(smoothed, axis=1)).log_softmax(0)
    return (weights + log_likelihood).logsumexp(0), torch.tensor(k, dtype=torch.float64)


KINDS = {"phi": "global", "theta": "local"}
ABOUT = (
    "The KL of a gate measures how far its posterior is from its prior; a gate with a KL near 0 learnt "
    "nothing. The Pareto k of a training row measures how strongly the posterior depends on that row. Above "
    "0.7 (less with few draws) the estimate for the row is unreliable. Neither shows whether the guide's "
    "family of distributions is adequate. To check that, python -m experiments.nuts compares a guide "
    "with NUTS on a small model."
)


def render_posterior(found: PosteriorTrust) -> Section:
    """Return the section with the KL by gate and PSIS-LOO on training rows."""
    technical = [
        f"{one.at_prior:.0f} % of the {KINDS[one.kind]} gates are within {EPS:g} nats of their prior; the "
        f"mean KL of a unit is {one.mean:.2f} nats."
        for one in found.learning
    ]
    if found.why_not:
        technical.append(f"The KL by gate is unknown: {found.why_not}")
    technical.append(_weighing(found.left_out) if found.left_out else found.not_left_out)
    tables = [_learning_table(found.learning)] if found.learning else []
    if found.left_out:
        tables.append(_left_out_table(found.left_out))
    pictures = _pictures(found.left_out) if found.left_out else []
    return Section("The posterior", [*pictures, ABOUT, *tables], _plain(found), technical)


def _plain(trust: PosteriorTrust) -> str:
    words = _learnt({KINDS[one.kind]: 100 - one.at_prior for one in trust.learning})
    left = trust.left_out
    if trust.not_left_out == NOT_COMPUTED:
        return f"{words}Whether training rows were memorized was not checked."
    if left is None:
        return f"{words}All draws give the same answers, so the posterior has no spread."
    if not _finite(left):
        return f"{words}There are too few draws to measure how much was memorized: give more --samples."
    if left.gap <= 2 * left.gap_se:
        return f"{words}Training questions are predicted no better than new ones: no sign of memorization."
    ratio = math.exp(left.gap)
    return (
        f"{words}The right answers to training questions get {ratio:.2f} times the probability of those to "
        "new questions: part of the training data was memorized."
    )


def _learnt(share: dict[str, float]) -> str:
    """Return a sentence on the share (percent) of gates of each kind that differ from their prior.

    A guide may start away from the prior, so a difference does not prove that data moved the gate.
    """
    if not share:
        return ""
    if min(share.values()) > 99.5:
        return "Every gate differs from its prior. "
    if max(share.values()) < 0.5:
        return "No gate differs from its prior: nothing was learnt from the data. "
    parts = " and ".join(f"{value:.0f} % of the {kind} gates" for kind, value in share.items())
    return f"{parts} differ from their prior; the others learnt nothing from the data. "


def _weighing(left: LeftOut) -> str:
    weight = f"{left.high_k} of {left.rows} rows have a Pareto k that is too high for a reliable estimate."
    if not _finite(left):
        weight = f"{left.draws} draws are too few to estimate Pareto's k."
    what = "The point estimates A and B memorized this much."
    if left.gap <= 2 * left.gap_se:
        what = f"This is within two standard errors ({left.gap_se:.3f} nats)."
    return (
        f"A training row left out by PSIS has an expected log probability of {left.elpd:.3f} nats, an unseen "
        f"row of {left.unseen:.3f}, a difference of {left.gap:.3f}. {what} {weight}"
    )


def _learning_table(learning: list[GateLearning]) -> Table:
    columns = [Column("module", "module")]
    rows: dict[str, dict[str, object]] = {module: {"module": module} for module in learning[0].by_module}
    for one in learning:
        columns += [
            Column(one.kind, f"mean KL of {one.kind}", "nats", ".3f"),
            Column(f"{one.kind} at prior", f"{one.kind} at prior", f"of {one.r}", "d"),
        ]
        for module, row in rows.items():
            row[one.kind], row[f"{one.kind} at prior"] = one.by_module[module], one.at_prior_by_module[module]
    caption = f"KL of posterior and prior by module; at prior: units within {EPS:g} nats"
    return Table(columns, list(rows.values()), caption)


def _left_out_table(left: LeftOut) -> Table:
    k = _finite(left)
    rows = (
        ("expected log probability of a left-out row (nats)", left.elpd),
        ("standard error (nats)", left.se),
        ("largest Pareto k", max(k) if k else None),
        (f"rows with k above {left.good_k:.2f}", f"{left.high_k} of {left.rows}"),
    )
    caption = f"PSIS-LOO on {left.rows} training rows, {left.draws} draws"
    return pairs(rows, ("quantity", "value"), caption, ".3f")


def _finite(left: LeftOut) -> list[float]:
    return sorted(k for k in left.pareto_k.values() if math.isfinite(k))


def _pictures(left: LeftOut) -> list[Picture]:
    k = _finite(left)
    if not k:
        return []
    missing = len(left.pareto_k) - len(k)
    caption = "How strongly the posterior depends on single training rows."
    return [
        Picture(
            pareto_figure(k, left.good_k),
            f"Pareto k of {len(k)} training rows against the limit {left.good_k:.2f}.",
            f"{caption} {missing} rows without a finite k are left out." if missing else caption,
            "pareto_k",
        )
    ]


def pareto_figure(k: list[float], limit: float) -> Figure:
    """Plot the finite Pareto k of training rows in increasing order, with the limit."""
    figure = new_figure(WIDTH, 3.2)
    axes = figure.add_subplot()
    axes.axhline(limit, color=GREY, linewidth=1.2, linestyle="--", label=f"limit {limit:.2f}")
    points = list(enumerate(sorted(k), 1))
    for chosen, label, color, marker in (
        ([point for point in points if point[1] <= limit], "below", PALETTE[0], "o"),
        ([point for point in points if point[1] > limit], "above", PALETTE[1], "x"),
    ):
        if chosen:
            places, values = zip(*chosen, strict=True)
            axes.scatter(places, values, s=16, color=color, marker=marker, label=label)
    dress(axes, "Training rows, sorted by k", "Pareto k of a row (no unit)")
    legend_of(figure, loc="outside upper left", ncols=3)
    return figure
