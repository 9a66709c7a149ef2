"""Compute guarantees for new rows: the certified bound, PAC-Bayes and held-out bounds."""

import math

import torch

from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.core.latents import Gates
from bara_pyro.diagnostics.context import Context
from bara_pyro.diagnostics.posterior.gibbs_draws import gibbs_draws
from bara_pyro.diagnostics.result import Number, Result
from bara_pyro.errors import ConfigError, MissingKLError
from bara_pyro.extras.bounds.certificate import Constant
from bara_pyro.extras.bounds.certify import certify_head
from bara_pyro.extras.bounds.pac_bayes import GibbsBound, gibbs_bound, held_out_bound
from bara_pyro.metrics import posterior_predictive

CLIP = 2.0  # R_g, twice the mean of the prior Gamma(1, 1)
LOSSES = ("drawn-answer", "smoothed-nll")
DELTA = 0.05  # of all bounds, as in `gibbs_bound`


class CertifiedHead(Result):
    """The bound of the paper's second appendix, nats."""

    bound: Number  # on the risk
    vacuous: bool  # whether it is at least `loss_cap`
    loss_cap: float  # the largest possible loss
    statement: str  # the bound in sentences, with its assumptions
    constants: list[Constant]  # all constants, and the assumptions


class Bound(Result):
    """One loss with its bounds at 95 %."""

    loss: str  # "drawn-answer", "smoothed-nll", or "average errs" of the averaged predictor
    mean: float  # measured on the rows
    pac_bayes: float | None  # if the rows were used only to fit Phi; None for the averaged predictor
    held_out: float  # if the rows were not used to train or choose anything
    most: float  # the largest possible value of the loss


class PacBayes(Result):
    """Bounds on the risk of drawn answers and of averaged answers."""

    rows: int
    draws: int  # per row
    kl_phi: Number  # KL(q(Phi) || p(Phi)), nats
    bounds: list[Bound]  # of each loss, the averaged predictor's last
    statement: str  # what is assumed, in sentences

    @property
    def drawn(self) -> Bound:
        """The bound for the predictor that draws Phi and its answer."""
        return self.bounds[0]

    @property
    def average(self) -> Bound:
        """The bound for the predictor that averages over draws."""
        return self.bounds[-1]


class Guarantees(Result):
    """Guarantees for new rows."""

    certified: CertifiedHead | None  # None if the theorem does not cover the run
    not_certified: str = ""  # the reason, if it is the language model
    pac_bayes: PacBayes | None  # None without a global gate, or if its divergence is unknown
    not_bounded: str = ""  # why the divergence of the global gate is unknown


def guarantees(c: Context) -> Guarantees | None:
    """Return the certified and PAC-Bayes bounds of a run, or None if it has no random gates."""
    gates = c.system.model.gates
    if gates is None or not c.system.guide.stochastic:
        return None
    bound, reason = None, ""
    try:
        bound = _certified(c, gates)
    except ConfigError as error:
        reason = str(error)
    pac_bayes, unknown = None, ""
    try:
        pac_bayes = _pac_bayes(c, gates.phi) if gates.phi else None
    except MissingKLError as error:
        unknown = str(error)
    return Guarantees(certified=bound, not_certified=reason, pac_bayes=pac_bayes, not_bounded=unknown)


def _certified(c: Context, gates: Gates) -> CertifiedHead | None:
    model = c.system.model
    head = any(target.is_head for target in model.targets)
    if not gates.modulating or len(gates.kinds) < 2 or not head:
        return None
    name, s = c.system.config.task.evaluate_on, max(1, model.r // 2)
    head_certificate = certify_head(
        c.system, name, tau=c.options.tau, s=s, clip=CLIP, cap=c.options.cap, cover="absorbed"
    )
    bound = head_certificate.certificate
    return CertifiedHead(
        bound=bound.bound,
        vacuous=bound.vacuous,
        loss_cap=bound.loss_cap,
        statement=head_certificate.statement(),
        constants=list(head_certificate.constants()),
    )


def _pac_bayes(c: Context, phi: str) -> PacBayes:
    kl = _kl(c, phi)
    # Each row has separate draws: with shared ones, the number of draws would limit the bound.
    draws = gibbs_draws(c.system, c.rows, c.options.bound_draws * len(c.rows), c.system.config.predict.seed)
    # The cap exceeds the loss of a uniform guess for any number of answers.
    cap = max(c.options.cap, math.log(2 * draws.shape[-1]))
    gibbs = [gibbs_bound(draws, c.labels, kl, loss=loss, loss_cap=cap, shared=False) for loss in LOSSES]
    # With fixed draws the averaged predictor is a single predictor, which the test-set bound covers.
    wrong = float((posterior_predictive(c.log_probs).argmax(-1) != c.labels).double().mean())
    held_out = held_out_bound(wrong, len(c.labels), DELTA)
    average = Bound(loss="average errs", mean=wrong, pac_bayes=None, held_out=held_out, most=1.0)
    return PacBayes(
        rows=len(c.rows),
        draws=len(draws),
        kl_phi=kl,
        bounds=[*map(_bound, gibbs), average],
        statement=gibbs[0].statement(),
    )


def _kl(c: Context, site: str) -> float:
    """Return the divergence of one site, even if those of other sites are unknown."""
    batch = c.rows.batch(range(min(8, len(c.rows))), c.system.answer_ids).to(c.system.backbone.device)
    with torch.no_grad():
        prior, posterior = (trace.nodes[site] for trace in c.system.guide.run(batch))
        return float(MeanFieldELBO().divergence(site, posterior, prior).sum())


def _bound(gibbs: GibbsBound) -> Bound:
    # A bound from held-out rows has no divergence term.
    held_out = gibbs.scale * held_out_bound(gibbs.empirical / gibbs.scale, gibbs.n, gibbs.delta)
    return Bound(
        loss=gibbs.loss,
        mean=gibbs.scale * gibbs.mean,
        pac_bayes=gibbs.bound,
        held_out=held_out,
        most=gibbs.scale,
    )
