r"""Distance awareness: noise on the answers' logits that grows with a row's distance from the training rows.

    z(x) = f(x) + Z g(x),      Z_cj ~ N(0, sigma^2),      p(y | x) = E softmax z(x)

    w = W (h(x) - mu),   d^2 = |w|^2,   g(x) = sqrt(relu(1 - q / d^2)) w / d

f are the logits of any method. h(x) is the last hidden state of the *frozen* language model at the last
token, mu and W are its mean and whitening on the training rows, and q is the square of the radius within
which 95 % of them lie. The noise is a Gaussian process with kernel `sigma^2 g(x) . g(x')`. Its posterior
equals its prior: 95 % of the training rows have g = 0 and carry no information about Z, so training leaves Z
out. Beyond the radius the variance of each logit rises from 0 to sigma^2, so that draws disagree on
out-of-distribution rows.

Two design choices: the hinge at the radius keeps the predictions of rows like the training rows, and h is
frozen because an adapter learns to map unfamiliar rows onto familiar ones, which would hide the distance.
"""

from collections.abc import Sequence

import pyro
import torch
from pyro.distributions import Normal
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from torch import Tensor

from bara_pyro.core.handlers import PROGRAM
from bara_pyro.core.modules import distribution_of, frozen
from bara_pyro.core.noise import CounterNoise
from bara_pyro.data.clusters import folds
from bara_pyro.posthoc.correction import Correction, PredictedRows, TrainingRows

SITE = "distance"
INSIDE, FOLDS = 0.95, 5


class Distance(Correction):
    """Distance-dependent noise on a program's answers; no noise before `fit`."""

    name, option = "distance", "distance_aware"
    subject = "Distance-aware predictions"
    adds_noise = True

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mean = frozen(torch.zeros(width))
        self.whitening = frozen(torch.zeros(width, width))
        self.radius = frozen(torch.tensor(torch.inf))  # q
        self.scale = frozen(torch.zeros(()))  # sigma

    @property
    def fitted(self) -> bool:
        """Whether the noise has been fitted."""
        return bool(self.scale > 0)

    def squares(self, states: Tensor) -> Tensor:
        """Return the squared distances d^2 of hidden states, `... x d`, from the training rows: `...`."""
        return self._whitened(states).square().sum(-1)

    def directions(self, states: Tensor) -> Tensor:
        """Return g of hidden states, `... x d`: 0 within the radius, shorter than 1 outside."""
        white = self._whitened(states)
        squared = white.square().sum(-1, keepdim=True).clamp_min(torch.finfo(white.dtype).tiny)
        return ((1 - self.radius / squared).clamp_min(0) / squared).sqrt() * white

    def _whitened(self, states: Tensor) -> Tensor:
        return (states.float() - self.mean) @ self.whitening

    def forward(self, log_probs: Tensor, states: Tensor) -> Tensor:
        """Sample Z, shared by all rows; return log-probabilities, `[draws x] B x C`, with its noise.

        `states` are `frozen_states`, `B x d`.
        """
        distribution = Normal(torch.zeros_like(self.scale), self.scale)
        weights = pyro.sample(SITE, distribution.expand([log_probs.shape[-1], len(self.mean)]).to_event(2))
        noise = self.directions(states) @ weights.mT
        return (log_probs + noise.to(log_probs)).log_softmax(-1)

    def correct(self, draws: Tensor, rows: PredictedRows) -> Tensor:
        """Return draws with noise, which the number of a draw determines."""
        if rows.numbers is None:
            return draws
        states = rows.frozen_states
        numbers = rows.numbers.to(states.device)
        draws = draws.repeat_interleave(len(numbers) // len(draws), 0)  # repeats ensemble members
        with PROGRAM, InTurn(rows.seed, numbers):
            noisy: Tensor = self(draws.to(states.device), states)
        return noisy.cpu()

    @torch.no_grad()
    def fit(self, rows: TrainingRows) -> dict[str, float]:
        """Set mean, whitening, radius and scale from training rows.

        Return `radius` (q); `scale` (sigma, the root mean square over rows of the offered answers' logits
        about their mean); `shrinkage` of the covariance; and the number of `rows`.
        """
        states, log_probs = rows.frozen_states, rows.among_offered(rows.points)
        mean, whitening, shrinkage = whitened(states)
        self.mean.copy_(mean)
        self.whitening.copy_(whitening)
        self.radius.copy_(held_out_squares(states, rows.groups).quantile(INSIDE))
        offered = ~log_probs.isneginf()
        logits, counts = log_probs.masked_fill(~offered, 0.0), offered.sum(-1, keepdim=True)
        centred = (logits - logits.sum(-1, keepdim=True) / counts).masked_fill(~offered, 0.0)
        self.scale.copy_((centred.square().sum(-1, keepdim=True) / counts).mean().sqrt())
        return {
            "radius": float(self.radius),
            "scale": float(self.scale),
            "shrinkage": shrinkage,
            "rows": len(states),
        }


def whitened(states: Tensor) -> tuple[Tensor, Tensor, float]:
    """Return mean, whitening matrix (`d x d`, float64) and shrinkage of `n x d` states.

    The covariance is the estimate of Ledoit and Wolf (J. Multivariate Analysis 88, 2004), which is invertible
    for any number of rows.
    """
    states = states.double()
    mean = states.mean(0)
    centred = states - mean
    rows, width = centred.shape
    covariance = centred.mT @ centred / rows
    size = covariance.diagonal().mean()
    spread = covariance.square().sum() - width * size**2
    # Mean over rows of |x x' - S|^2, the error of the covariance S.
    error = (centred.square().sum(-1).square().sum() / rows - covariance.square().sum()) / rows
    shrinkage = float((error / spread).clamp(0, 1)) if spread > 0 else 1.0
    shrunk = (1 - shrinkage) * covariance
    shrunk.diagonal().add_(shrinkage * size)
    values, vectors = torch.linalg.eigh(shrunk)
    # States that do not vary have no scale; keep the divisor above 0.
    least = values[-1].clamp_min(torch.finfo(values.dtype).tiny) * 1e-10
    return mean, vectors * values.clamp_min(least).rsqrt(), shrinkage


def held_out_squares(states: Tensor, groups: Sequence[str] | None = None) -> Tensor:
    """Return cross-validated d^2 of `n x d` states, float64, each with mean and covariance of other folds.

    With mean and covariance of all rows, d^2 would be too small, because they were fitted to the same rows.
    For the same reason the rows of a group are in one fold.
    """
    fold = torch.tensor(folds([""] * len(states) if groups is None else groups[: len(states)], FOLDS))
    squares = torch.empty(len(states), dtype=torch.float64)
    for k in fold.unique().tolist():
        mean, whitening, _ = whitened(states[fold != k])
        squares[fold == k] = ((states[fold == k].double() - mean) @ whitening).square().sum(-1).cpu()
    return squares


class InTurn(Messenger):
    """Handler that draws Z so that in C consecutive draws each class receives each of C noises once.

    Draw s is noise number s // C with its classes rotated by s mod C. Every draw has the distribution of the
    site, so averages over draws are unbiased. If the noise decides the answer, each class wins once in C
    draws, so a few draws suffice to show that the answer is uncertain. `numbers` are those of the draws.
    """

    def __init__(self, seed: int, numbers: Tensor) -> None:
        super().__init__()
        self.seed, self.numbers = seed, numbers

    def _pyro_sample(self, msg: Message) -> None:
        if msg["name"] != SITE or msg["is_observed"]:
            return
        distribution = distribution_of(msg)
        classes = distribution.event_shape[0]
        nowhere = torch.zeros(1, 1, dtype=torch.long, device=self.numbers.device)
        drawn = CounterNoise(self.seed, self.numbers // classes, ("",), nowhere).draw_global(
            SITE, distribution
        )
        turns = (self.numbers % classes).tolist()
        msg["value"] = torch.stack([z.roll(turn, 0) for z, turn in zip(drawn, turns, strict=True)])
        msg["done"] = True
