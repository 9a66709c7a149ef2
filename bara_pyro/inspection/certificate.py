"""How much can be guaranteed: the certified bound with its assumptions, and bounds that can say something."""

from typing import Any

import torch

from bara_pyro.diagnostics.certify import certify_head
from bara_pyro.diagnostics.pac_bayes import GibbsBound, gibbs_bound, held_out_bound
from bara_pyro.elbo import MeanFieldELBO
from bara_pyro.evaluate import draw
from bara_pyro.inspection.context import Context, Part
from bara_pyro.metrics import posterior_predictive
from bara_pyro.models.bara import PHI, BaRA
from bara_pyro.report import Column, Section, Table

CLIP = 2.0  # R_g, twice the mean of the prior Gamma(1, 1)
LOSSES = ("drawn-answer", "smoothed-nll")
DELTA = 0.05


def certificate(c: Context) -> Part | None:
    """Return the bounds: certified (gate form, adapted head), PAC-Bayes; nothing without random gates."""
    model = c.system.model
    if not isinstance(model, BaRA) or not c.system.guide.stochastic:
        return None
    text: list[str] = []
    tables: list[Table] = []
    data: dict[str, Any] = {}
    findings: list[str] = []
    heads = [target for target in model.targets if target.is_head]
    if model.form == "gate" and heads and model.latent == "phi*theta":
        name = c.system.config.task.evaluate_on
        found = certify_head(
            c.system,
            name,
            tau=c.options.tau,
            s=max(1, model.r // 2),
            clip=CLIP,
            cap=c.options.cap,
            cover="absorbed",
        )
        bound = found.certificate
        text.append(f"Certified bound, of the answer head alone. {found.statement()}")
        tables.append(found.table())
        data["certified"] = {"bound": bound.bound, "vacuous": bound.vacuous, "scores": found.scores}
        data["certified"]["held_out"] = found.held_out
        findings.append(
            f"The certified bound is {bound.bound:.3g} nats where no loss exceeds {bound.loss_cap:g}: "
            f"{'it says nothing' if bound.vacuous else 'it says something'}; it covers the answer head alone."
        )
    else:
        text.append(
            "The certified bound of the paper's second appendix is about the gate form with both gates and "
            "an adapted answer head (Definition 1): this run is not of that kind."
        )
    if PHI in model.latents.global_sites:
        rows, numbers = _pac_bayes(c)
        columns = (
            Column("loss", "loss"),
            Column("mean", "mean of the draws", format=".3f"),
            Column("bound", "PAC-Bayes bound", format=".3f"),
            Column("held_out", "held-out bound", format=".3f"),
            Column("most", "never above", format=".3f"),
        )
        kl = numbers["kl_phi"]
        samples = c.options.bound_draws
        caption = f"Bounds, {len(c.rows)} rows, KL(Φ) = {kl:.1f} nats, {samples} draws, 95 %"
        tables.append(Table(columns, rows, caption))
        text.append(numbers.pop("statement"))
        data["pac_bayes"] = numbers
        best = rows[0]
        findings.append(
            f"PAC-Bayes: with 95 % probability the predictor that draws Φ and its answer errs at most "
            f"{100 * best['bound']:.0f} % of the time (measured: {100 * best['mean']:.0f} %) if these rows "
            f"chose nothing but Φ, and at most {100 * best['held_out']:.0f} % if they chose nothing at all; "
            f"then the averaged predictor errs at most {100 * rows[-1]['held_out']:.0f} % of the time "
            f"(measured: {100 * rows[-1]['mean']:.0f} %)."
        )
    return Part(Section("How much can be guaranteed", text, tables), tuple(findings), data)


def _pac_bayes(c: Context) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    draws = draw(c.system, c.rows, c.options.bound_draws)
    batch = c.rows.batch(range(min(8, len(c.rows))), c.system.answer_ids).to(c.system.backbone.device)
    with torch.no_grad():
        terms = MeanFieldELBO().terms(c.system.model, c.system.guide, batch)
    kl = float(terms.kl[PHI])
    bounds = {loss: gibbs_bound(draws, c.labels, kl, loss=loss, loss_cap=c.options.cap) for loss in LOSSES}
    numbers: dict[str, Any] = {
        loss: {"mean": b.scale * b.mean, "bound": b.bound, "held_out": _held_out(b)}
        for loss, b in bounds.items()
    }
    rows = [{"loss": loss, **numbers[loss], "most": b.scale} for loss, b in bounds.items()]
    # With its draws fixed the averaged predictor is one predictor, which a test-set bound covers as it is.
    wrong = float((posterior_predictive(draws).argmax(-1) != c.labels).double().mean())
    error = {"mean": wrong, "held_out": held_out_bound(wrong, len(c.labels), DELTA)}
    rows.append({"loss": "average errs", **error, "bound": None, "most": 1.0})
    numbers["average"] = error
    return rows, {"kl_phi": kl, "statement": bounds[LOSSES[0]].statement(), **numbers}


def _held_out(found: GibbsBound) -> float:
    """Return the bound on the same risk by rows that nothing was fitted to: no divergence to pay."""
    return found.scale * held_out_bound(found.empirical / found.scale, found.n, found.delta)
