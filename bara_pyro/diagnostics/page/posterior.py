"""How sure to be of the posterior: what the gates learnt, how much single rows weigh, what the prior says."""

import torch
from torch import Tensor

from bara_pyro.data import batches, first_rows
from bara_pyro.diagnostics.arviz.inference_data import to_inference_data
from bara_pyro.diagnostics.arviz.loo import loo
from bara_pyro.diagnostics.page.context import Context, Part, joined
from bara_pyro.diagnostics.posterior.collapse import (
    Collapse,
    collapse,
    prior_predictive,
    prior_predictive_table,
)
from bara_pyro.errors import MissingKLError
from bara_pyro.metrics import posterior_predictive
from bara_pyro.models.bara import BaRA
from bara_pyro.report import Column, Picture, Section, Table
from bara_pyro.report.style import GREY, PALETTE, dress, legend_of, new_figure

PRIOR_ROWS = 32


def posterior(c: Context) -> Part | None:
    """Return KL by gate, PSIS-LOO on training rows, the prior's own predictions; for BaRA alone."""
    if not isinstance(c.system.model, BaRA) or not c.system.guide.stochastic:
        return None
    parts = [_learnt(c), _rows_that_weigh(c), _prior(c)]
    text = [
        "KL of a gate is how far its posterior has moved from the prior: near 0 it learnt nothing. Pareto's "
        "k of a training row says how much the posterior hangs on it (above 0.7, or less with few draws: too "
        "much for the estimate). Both are measured within the family of the guide: against NUTS on a "
        "small model it is compared by `python -m experiments reference_posterior`."
    ]
    return joined("How sure to be of the posterior", parts, text)


def _learnt(c: Context) -> Part:
    few = batches(first_rows(c.rows, PRIOR_ROWS), c.system.answer_ids, PRIOR_ROWS, by_length=True)
    try:
        found: Collapse = collapse(c.system.model, c.system.guide, few, samples=5)
    except MissingKLError as error:
        return Part(Section(""), (f"The KL by gate is not known: {error}",), {"kl": None})
    shares = found.share()
    kinds = {"phi": ("global", found.phi), "theta": ("local", found.theta)}
    findings = tuple(
        f"{shares[key]:.0f} % of the {name} gates are within 0.01 nats of their prior; the mean KL of a "
        f"unit is {float(kl.mean()):.2f} nats."
        for key, (name, kl) in kinds.items()
        if kl is not None
    )
    data = {"at_prior": shares, "kl": {k: float(v.mean()) for k, (_, v) in kinds.items() if v is not None}}
    return Part(Section("", tables=[found.table()]), findings, {"collapse": data})


def _rows_that_weigh(c: Context) -> Part:
    samples = c.options.train_draws
    rows = min(c.options.train_rows, len(c.system.task.train))
    found = loo(to_inference_data(c.system, split="train", rows=rows, samples=samples, prior=False))
    rows, k, high = len(found.ids), found.pareto_k, len(found.unreliable)  # rows too long are left out
    plain = float(found.pointwise.mean())
    numbers = [
        {"what": "expected log probability of a left-out row (nats)", "value": plain},
        {"what": "standard error", "value": found.se / rows},
        {"what": "largest Pareto k", "value": float(k[~k.isnan()].max())},
        {"what": f"rows with k above {found.good_k:.2f}", "value": float(high)},
    ]
    columns = (Column("what", ""), Column("value", "value", format=".3f"))
    table = Table(columns, numbers, f"PSIS-LOO on {rows} training rows, {samples} draws")
    test = float(posterior_predictive(c.log_probs).gather(1, c.labels[:, None]).mean())
    gap = plain - test
    weight, pictures = f"{samples} draws are too few to say how much a row weighs.", {}
    if k.isfinite().any():
        weight = f"{high} of {rows} rows weigh too much for the estimate."
        pictures = {"pareto_k": _pareto_picture(k, found.good_k)}
    sentence = (
        f"Left out by PSIS, a training row has {plain:.3f} nats, a row that was never seen {test:.3f}: the "
        f"difference, {gap:.3f} nats, is what the point weights A and B have learnt by heart; {weight}"
    )
    data = {
        "elpd": plain,
        "se": found.se / rows,
        "high_k": high,
        "rows": rows,
        "unseen": test,
        "pareto_k": dict(zip(found.ids, k.tolist(), strict=True)),
    }
    return Part(Section("", tables=[table]), (sentence,), {"loo": data}, pictures)


def _pareto_picture(k: Tensor, limit: float) -> Picture:
    """Draw the Pareto k of all rows that have one, in rising order, with the limit."""
    values = k[k.isfinite()].sort().values
    places = torch.arange(1, len(values) + 1)
    figure = new_figure(5.6, 3.2)
    axes = figure.add_subplot()
    axes.axhline(limit, color=GREY, linewidth=1.2, linestyle="--", label=f"limit {limit:.2f}")
    for chosen, label, color, marker in (
        (values <= limit, "up to it: to be relied on", PALETTE[0], "o"),
        (values > limit, "above it: not", PALETTE[1], "x"),
    ):
        if chosen.any():
            axes.scatter(places[chosen], values[chosen], s=16, color=color, marker=marker, label=label)
    dress(axes, "Training rows, in the order of k", "Pareto k of a row (no unit)")
    legend_of(figure, loc="outside upper left", ncols=3)
    left_out = len(k) - len(values)
    caption = f"{left_out} rows without a finite k are left out." if left_out else ""
    return Picture(figure, f"Pareto k of {len(values)} training rows against the limit {limit:.2f}.", caption)


def _prior(c: Context) -> Part:
    few = list(batches(first_rows(c.rows, PRIOR_ROWS), c.system.answer_ids, PRIOR_ROWS, by_length=True))
    found = prior_predictive(c.system.model, few, samples=c.options.prior_draws)
    own = found[0]
    sentence = (
        f"With all gates from {own.prior} the trained weights give answers of entropy {own.entropy:.2f} nats "
        f"a draw ({own.saturated:.0f} % of them surer than 0.99)."
    )
    data = {one.prior: {key: value for key, value in vars(one).items() if key != "prior"} for one in found}
    section = Section("", tables=[prior_predictive_table(found)])
    return Part(section, (sentence,), {"prior_predictive": data})
