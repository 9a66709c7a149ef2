"""How much can be guaranteed: the certified bound with its assumptions, and bounds that can say something."""

from typing import Any

import torch

from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.core.latents import Gates
from bara_pyro.diagnostics.bounds.certify import certify_head
from bara_pyro.diagnostics.bounds.pac_bayes import GibbsBound, gibbs_bound, held_out_bound
from bara_pyro.diagnostics.page.context import Context, Part, joined
from bara_pyro.diagnostics.posterior.gibbs_draws import gibbs_draws
from bara_pyro.metrics import posterior_predictive
from bara_pyro.models.bara import PHI
from bara_pyro.report import Column, Section, Table

CLIP = 2.0  # R_g, twice the mean of the prior Gamma(1, 1)
LOSSES = ("drawn-answer", "smoothed-nll")
DELTA = 0.05  # of all bounds, as in `gibbs_bound`
COLUMNS = (
    Column("loss", "loss"),
    Column("mean", "measured", format=".3f"),
    Column("bound", "PAC-Bayes bound", format=".3f"),
    Column("held_out", "held-out bound", format=".3f"),
    Column("most", "never above", format=".3f"),
)


def certificate(c: Context) -> Part | None:
    """Return the bounds: certified (gate form, adapted head), PAC-Bayes; nothing without random gates."""
    model = c.system.model
    if model.gates is None or not c.system.guide.stochastic:
        return None
    parts = [_certified(c, model.gates)] + ([_pac_bayes(c)] if model.gates.phi else [])
    return joined("How much can be guaranteed", parts)


def _certified(c: Context, gates: Gates) -> Part:
    """Return the bound of the paper's second appendix, or why there is none."""
    heads = [target for target in c.system.model.targets if target.is_head]
    if not gates.modulating or gates.kinds != ("phi", "theta") or not heads:
        text = (
            "The certified bound of the paper's second appendix is about the gate form with both gates and "
            "an adapted answer head (Definition 1): this run is not of that kind."
        )
        return Part(Section("", [text]), (), {})
    name, s = c.system.config.task.evaluate_on, max(1, gates.r // 2)
    found = certify_head(
        c.system, name, tau=c.options.tau, s=s, clip=CLIP, cap=c.options.cap, cover="absorbed"
    )
    bound = found.certificate
    sentence = (
        f"The certified bound is {bound.bound:.3g} nats where no loss exceeds {bound.loss_cap:g}: "
        f"{'it says nothing' if bound.vacuous else 'it says something'}; it covers the answer head alone."
    )
    data = {
        "bound": bound.bound,
        "vacuous": bound.vacuous,
        "scores": found.scores,
        "held_out": found.held_out,
    }
    text = f"Certified bound, of the answer head alone. {found.statement()}"
    return Part(Section("", [text], [found.table()]), (sentence,), {"certified": data})


def _pac_bayes(c: Context) -> Part:
    """Return bounds on the risk of drawn answers and of the averaged ones."""
    # Each row has draws of its own: as many shared ones would leave the bound to the draws.
    draws = gibbs_draws(c.system, c.rows, c.options.bound_draws * len(c.rows), c.system.config.predict.seed)
    kl, cap = _kl_of_phi(c), c.options.cap
    bounds = {
        loss: gibbs_bound(draws, c.labels, kl, loss=loss, loss_cap=cap, shared=False) for loss in LOSSES
    }
    numbers: dict[str, Any] = {
        loss: {"mean": b.scale * b.mean, "bound": b.bound, "held_out": _held_out(b)}
        for loss, b in bounds.items()
    }
    # With its draws fixed the averaged predictor is one predictor, which a test-set bound covers as it is.
    wrong = float((posterior_predictive(c.log_probs).argmax(-1) != c.labels).double().mean())
    numbers["average"] = {"mean": wrong, "held_out": held_out_bound(wrong, len(c.labels), DELTA)}
    rows = [{"loss": loss, **numbers[loss], "most": b.scale} for loss, b in bounds.items()]
    rows.append({"loss": "average errs", **numbers["average"], "bound": None, "most": 1.0})
    caption = f"Bounds (95 %), {len(c.rows)} rows, {len(draws)} draws each, KL(Φ) = {kl:.1f} nats"
    drawn, average = rows[0], rows[-1]
    sentence = (
        f"PAC-Bayes: with 95 % probability the predictor that draws Φ and its answer "
        f"errs at most {100 * drawn['bound']:.0f} % of the time (measured: {100 * drawn['mean']:.0f} %) if "
        f"these rows chose nothing but Φ, and at most {100 * drawn['held_out']:.0f} % if they chose nothing "
        f"at all; then the averaged predictor errs at most {100 * average['held_out']:.0f} % of the time "
        f"(measured: {100 * average['mean']:.0f} %)."
    )
    section = Section("", [bounds[LOSSES[0]].statement()], [Table(COLUMNS, rows, caption)])
    return Part(section, (sentence,), {"pac_bayes": {"kl_phi": kl, **numbers}})


def _kl_of_phi(c: Context) -> float:
    batch = c.rows.batch(range(min(8, len(c.rows))), c.system.answer_ids).to(c.system.backbone.device)
    with torch.no_grad():
        return float(MeanFieldELBO().terms(c.system.model, c.system.guide, batch).kl[PHI])


def _held_out(found: GibbsBound) -> float:
    """Return the bound on the same risk by rows that nothing was fitted to: no divergence to pay."""
    return found.scale * held_out_bound(found.empirical / found.scale, found.n, found.delta)
