"""How sure to be of the posterior: what the gates learnt, how much single rows weigh, what the prior says."""

import torch

from bara_pyro.data import batches, first_rows
from bara_pyro.diagnostics.collapse import Collapse, collapse, prior_predictive, prior_predictive_table
from bara_pyro.diagnostics.inference_data import to_inference_data
from bara_pyro.diagnostics.loo import loo
from bara_pyro.errors import MissingKLError
from bara_pyro.inspection.context import Context, Part
from bara_pyro.models.bara import BaRA
from bara_pyro.report import Column, Section, Table

PRIOR_ROWS = 32


def posterior(c: Context) -> Part | None:
    """Return KL by gate, PSIS-LOO on training rows, the prior's own predictions; for BaRA alone."""
    if not isinstance(c.system.model, BaRA) or not c.system.guide.stochastic:
        return None
    parts = [_learnt(c), _rows_that_weigh(c), _prior(c)]
    text = [
        "KL of a gate is how far its posterior has moved from the prior: near 0 it learnt nothing. Pareto's "
        "k of a training row says how much the posterior hangs on it (above 0.7: too much for the estimate). "
        "Both are measured within the family of the guide: against NUTS on a small model it is compared by "
        "`python -m experiments.reference_posterior`."
    ]
    tables = [table for part in parts for table in part.section.tables]
    findings = tuple(sentence for part in parts for sentence in part.findings)
    data = {key: value for part in parts for key, value in part.data.items()}
    return Part(Section("How sure to be of the posterior", text, tables), findings, data)


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
    finite = found.pareto_k[~found.pareto_k.isnan()]
    high = int((finite > found.good_k).sum())
    plain = float(found.pointwise.mean())
    numbers = [
        {"what": "expected log probability of a left-out row (nats)", "value": plain},
        {"what": "standard error", "value": found.se / rows},
        {"what": "largest Pareto k", "value": float(finite.max())},
        {"what": f"rows with k above {found.good_k:.2f}", "value": float(high)},
    ]
    columns = (Column("what", ""), Column("value", "value", format=".3f"))
    table = Table(columns, numbers, f"PSIS-LOO on {rows} training rows, {samples} draws")
    test = float(torch.logsumexp(c.log_probs, 0).gather(1, c.labels[:, None]).mean())
    test -= float(torch.tensor(float(len(c.log_probs))).log())
    gap = plain - test
    sentence = (
        f"Left out by PSIS, a training row has {plain:.3f} nats, a row that was never seen {test:.3f}: the "
        f"difference, {gap:.3f} nats, is what the point weights A and B have learnt by heart; {high} "
        f"of {rows} rows weigh too much for the estimate."
    )
    data = {"elpd": plain, "se": found.se / rows, "high_k": high, "rows": rows, "unseen": test}
    return Part(Section("", tables=[table]), (sentence,), {"loo": data})


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
