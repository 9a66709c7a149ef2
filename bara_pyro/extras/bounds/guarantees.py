"""Compute guarantees for new rows: the certified bound, PAC-Bayes and held-out bounds."""

import math
from dataclasses import replace

import pyro
import torch
from pyro.distributions import Distribution
from torch import Tensor

from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.latents import Gates
from bara_pyro.core.noise import seeded
from bara_pyro.core.posterior import Posterior
from bara_pyro.data import EncodedSplit, batches
from bara_pyro.data.labels import among_offered
from bara_pyro.diagnostics import Number, Result
from bara_pyro.diagnostics.context import Context
from bara_pyro.errors import ConfigError
from bara_pyro.extras.bounds.certificate import Constant
from bara_pyro.extras.bounds.certify import certify_head
from bara_pyro.extras.bounds.pac_bayes import LOSSES, GibbsBound, gibbs_bound, held_out_bound
from bara_pyro.metrics import posterior_predictive
from bara_pyro.runs.system import System

CAP = 4.6  # of the NLL, nats
CLIP = 2.0  # R_g, twice the mean of the prior Gamma(1, 1)
DELTA = 0.05  # of all bounds, as in `gibbs_bound`
SEQUENCES = 128  # the most draws times rows in a forward pass


class CertifiedHead(Result):
    """The bound of the paper's second appendix, nats."""

    bound: Number  # on the risk
    vacuous: bool  # whether it is at least `loss_cap`
    loss_cap: float  # the largest possible loss
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
    if gates is None or c.drawn is None:
        return None
    bound, reason = None, ""
    try:
        bound = _certified(c, gates)
    except ConfigError as error:
        reason = str(error)
    kl = c.drawn.kl_phi
    pac_bayes = None if kl is None else _pac_bayes(c, float(kl[0]))
    unknown = c.drawn.unknown_kl if gates.phi and kl is None else ""
    return Guarantees(certified=bound, not_certified=reason, pac_bayes=pac_bayes, not_bounded=unknown)


def _certified(c: Context, gates: Gates) -> CertifiedHead | None:
    model = c.system.model
    head = any(target.is_head for target in model.targets)
    if not gates.modulating or len(gates.kinds) < 2 or not head:
        return None
    name, s = c.system.config.task.evaluate_on, max(1, model.r // 2)
    head_certificate = certify_head(
        c.system, name, tau=c.options.tau, s=s, clip=CLIP, cap=CAP, cover="absorbed"
    )
    bound = head_certificate.certificate
    return CertifiedHead(
        bound=bound.bound,
        vacuous=bound.vacuous,
        loss_cap=bound.loss_cap,
        constants=list(head_certificate.constants()),
    )


def _pac_bayes(c: Context, kl: float) -> PacBayes:
    # Each row has separate draws: with shared ones, the number of draws would limit the bound.
    draws = gibbs_draws(c.system, c.rows, c.options.samples * len(c.rows), c.system.config.predict.seed)
    # The cap exceeds the loss of a uniform guess for any number of answers.
    cap = max(CAP, math.log(2 * draws.shape[-1]))
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


class EachRowItsOwn(Posterior):
    """Independent draws of Phi for every row (`draws` each), which define the Gibbs predictor."""

    def __init__(self, guide: SiteGuide, draws: int, rows: int) -> None:
        super().__init__(guide)
        self.shape = (draws, rows)

    def value(self, name: str, fn: Distribution) -> Tensor:
        """Return draws of Phi (`draws x rows x modules x r`) or theta (`draws x rows x T x r`)."""
        return fn.sample(self.shape if name in self.guide.model.latents.global_sites else ())


def gibbs_draws(system: System, split: EncodedSplit, total: int, seed: int) -> Tensor:
    """Return log-probabilities (float64, `S x n x C`) under S n >= `total` independent draws of Phi.

    The draws of `core.prediction.predict` are shared by all rows and would give only S independent ones.

    Args:
        system: the run.
        split: the n rows.
        total: smallest number of independent draws.
        seed: seed of the draws.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.extras.bounds.guarantees import gibbs_draws
        >>> run = bp.train(task="micro-wgs", method="bara-gate", steps=2, limit=8, out="runs/first")
        >>> gibbs_draws(run, run.split("test"), total=20, seed=0).shape  # 3 draws for each row
        torch.Size([3, 8, 2])
    """
    draws = -(-total // len(split))
    pieces = [min(SEQUENCES, draws - first) for first in range(0, draws, SEQUENCES)]
    by_batch = []
    with torch.no_grad(), seeded(system.model.backbone.device, seed):
        for batch in batches(split, system.answer_ids, max(1, SEQUENCES // draws)):
            unlabelled = replace(batch, labels=None).to(system.backbone.device)
            parts = []
            for size in pieces:
                with pyro.plate("draws", size, dim=-3), EachRowItsOwn(system.guide, size, len(batch)):
                    parts.append(system.model.forward(unlabelled).double().log_softmax(-1).cpu())
            by_batch.append(torch.cat(parts))
    return among_offered(torch.cat(by_batch, dim=1), split.offered)
