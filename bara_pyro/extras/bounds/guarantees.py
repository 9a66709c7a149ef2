"""What can be promised for new rows: the certified bound, and bounds that can say something."""

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
    vacuous: bool  # whether it says no more than `loss_cap` does
    loss_cap: float  # the largest loss there is
    statement: str  # the bound in sentences, with its assumptions
    constants: list[Constant]  # all that goes into it, and the assumptions


class Bound(Result):
    """One loss with its bounds at 95 %."""

    loss: str  # "drawn-answer", "smoothed-nll", or "average errs" of the averaged predictor
    mean: float  # measured on the rows
    pac_bayes: float | None  # if the rows chose nothing but Phi; None for the averaged predictor
    held_out: float  # if they chose nothing at all
    most: float  # the largest value that the loss can have


class PacBayes(Result):
    """Bounds on the risk of drawn answers and of the averaged ones."""

    rows: int
    draws: int  # of each row
    kl_phi: Number  # KL(q(Phi) || p(Phi)), nats
    bounds: list[Bound]  # of each loss, the averaged predictor's last
    statement: str  # what is assumed, in sentences

    @property
    def drawn(self) -> Bound:
        """Of the predictor that draws Phi and its answer."""
        return self.bounds[0]

    @property
    def average(self) -> Bound:
        """Of the predictor that averages over the draws."""
        return self.bounds[-1]


class Guarantees(Result):
    """What can be promised."""

    certified: CertifiedHead | None  # None where the run is not of the kind that the theorem is about
    not_certified: str = ""  # why not, where its language model is not of that kind
    pac_bayes: PacBayes | None  # None without a global gate, or where its divergence is not known
    not_bounded: str = ""  # why there is no divergence of the global gate


def guarantees(c: Context) -> Guarantees | None:
    """Return the bounds: certified (gate form, adapted head), PAC-Bayes; None without random gates."""
    gates = c.system.model.gates
    if gates is None or not c.system.guide.stochastic:
        return None
    bound, reason = None, ""
    try:
        bound = _certified(c, gates)
    except ConfigError as error:
        reason = str(error)
    promised, unknown = None, ""
    try:
        promised = _pac_bayes(c, gates.phi) if gates.phi else None
    except MissingKLError as error:
        unknown = str(error)
    return Guarantees(certified=bound, not_certified=reason, pac_bayes=promised, not_bounded=unknown)


def _certified(c: Context, gates: Gates) -> CertifiedHead | None:
    model = c.system.model
    head = any(target.is_head for target in model.targets)
    if not gates.modulating or len(gates.kinds) < 2 or not head:
        return None
    name, s = c.system.config.task.evaluate_on, max(1, model.r // 2)
    found = certify_head(
        c.system, name, tau=c.options.tau, s=s, clip=CLIP, cap=c.options.cap, cover="absorbed"
    )
    bound = found.certificate
    return CertifiedHead(
        bound=bound.bound,
        vacuous=bound.vacuous,
        loss_cap=bound.loss_cap,
        statement=found.statement(),
        constants=list(found.constants()),
    )


def _pac_bayes(c: Context, phi: str) -> PacBayes:
    kl = _kl(c, phi)
    # Each row has draws of its own: as many shared ones would leave the bound to the draws.
    draws = gibbs_draws(c.system, c.rows, c.options.bound_draws * len(c.rows), c.system.config.predict.seed)
    # The loss of a guess is below the cap, however many answers there are.
    cap = max(c.options.cap, math.log(2 * draws.shape[-1]))
    found = [gibbs_bound(draws, c.labels, kl, loss=loss, loss_cap=cap, shared=False) for loss in LOSSES]
    # With its draws fixed the averaged predictor is one predictor, which a test-set bound covers as it is.
    wrong = float((posterior_predictive(c.log_probs).argmax(-1) != c.labels).double().mean())
    held_out = held_out_bound(wrong, len(c.labels), DELTA)
    average = Bound(loss="average errs", mean=wrong, pac_bayes=None, held_out=held_out, most=1.0)
    return PacBayes(
        rows=len(c.rows),
        draws=len(draws),
        kl_phi=kl,
        bounds=[*map(_bound, found), average],
        statement=found[0].statement(),
    )


def _kl(c: Context, site: str) -> float:
    """Return the divergence of one site, whatever is known of the others'."""
    batch = c.rows.batch(range(min(8, len(c.rows))), c.system.answer_ids).to(c.system.backbone.device)
    with torch.no_grad():
        prior, posterior = (trace.nodes[site] for trace in c.system.guide.run(batch))
        return float(MeanFieldELBO().divergence(site, posterior, prior).sum())


def _bound(found: GibbsBound) -> Bound:
    # Rows that nothing was fitted to pay no divergence.
    held_out = found.scale * held_out_bound(found.empirical / found.scale, found.n, found.delta)
    return Bound(
        loss=found.loss,
        mean=found.scale * found.mean,
        pac_bayes=found.bound,
        held_out=held_out,
        most=found.scale,
    )
