r"""One-pass prediction: the logits at the posterior mean, with a temperature per row, instead of many draws.

    p(y | x) = softmax(z(x) exp(u . phi(x)))

z are the logits at the posterior mean. phi(x) holds a constant, the entropy and size of z, and the last
hidden state. u minimises the mean KL(average of draws || p) on training rows, without their labels, with a
ridge penalty. The average of draws is flatter than the prediction at the posterior mean; the row's hidden
state predicts how much flatter.
"""

import math

import torch
from torch import Tensor

from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.likelihood import require_answer_tokens
from bara_pyro.core.modules import frozen
from bara_pyro.core.program import AdaptedLM
from bara_pyro.errors import ConfigError, DataError
from bara_pyro.posthoc.correction import Correction, PredictedRows, TrainingRows

RIDGE, STEPS = 1e-2, 300
MOST = 512  # rows; each costs a forward per draw
OWN = 3  # features beside the hidden state


class OnePass(Correction):
    """Row-wise temperatures that approximate the average of draws; all 1 before `fit`."""

    name = option = "one_pass"
    subject = "One-pass predictions"
    requires = staticmethod(require_answer_tokens)
    reads_last_states = True

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mean = frozen(torch.zeros(width))
        self.deviation = frozen(torch.ones(width))
        self.weights = frozen(torch.zeros(OWN + width))

    @property
    def fitted(self) -> bool:
        """Whether the temperatures have been fitted."""
        return bool(self.weights.any())

    def check(self, model: AdaptedLM, guide: SiteGuide, rows: int, method: str = "this program") -> None:
        """Refuse programs without latents, guides whose draws will not differ, and too few rows."""
        if not (model.latents and guide.stochastic_once_fitted):
            raise ConfigError(
                f"one_pass (--one-pass) approximates the average of many draws, and {method} has none that "
                "differ: leave it out."
            )
        super().check(model, guide, rows, method)

    def features(self, log_probs: Tensor, states: Tensor) -> Tensor:
        """Return phi, `B x (3 + d)`, float64, from `B x C` log-probabilities and `B x d` states."""
        logits = log_probs.double()
        entropy = -(logits.exp() * logits).sum(-1)
        size = (logits - logits.mean(-1, keepdim=True)).square().mean(-1).sqrt()
        features = torch.stack([torch.ones_like(size), entropy, size], -1)
        return torch.cat([features, (states.double() - self.mean) / self.deviation], -1)

    def forward(self, log_probs: Tensor, states: Tensor) -> Tensor:
        """Return the approximate log average of draws, `B x C`.

        Both arguments are at the posterior mean: log-probabilities, `B x C`, and last hidden states, `B x d`.
        """
        scale = (self.features(log_probs, states) @ self.weights.double()).exp()
        return (log_probs.double() * scale.unsqueeze(-1)).log_softmax(-1)

    def correct(self, draws: Tensor, rows: PredictedRows) -> Tensor:
        """Return the approximate average of draws in place of the prediction at the posterior mean."""
        states = rows.last_states
        return draws if states is None else self(draws[0].to(states.device), states).cpu().unsqueeze(0)

    def fit(self, rows: TrainingRows) -> dict[str, float]:
        """Fit the temperatures to the first `MOST` training rows.

        Return `kl_before` and `kl_after`, the mean KL(average || one pass) on these rows in nats, and `rows`.

        Raises:
            ConfigError: the guide's posterior is not fitted yet.
            DataError: the fit fails.
        """
        if not rows.guide.stochastic:
            kind = type(rows.guide).__name__
            raise ConfigError(f"The posterior of this {kind} is not fitted yet: fit it before one_pass.")
        rows = rows.first(MOST)
        log_probs, states = rows.points_and_states
        log_probs, average = log_probs.to(states.device), rows.average.to(states.device)
        with torch.no_grad():
            self.mean.copy_(states.mean(0))
            self.deviation.copy_(states.std(0).clamp_min(torch.finfo(states.dtype).eps))
        phi, logits, target = self.features(log_probs, states), log_probs.double(), average.double()
        missing = target.isneginf()
        weights = torch.zeros(phi.shape[-1], dtype=phi.dtype, device=phi.device, requires_grad=True)
        optimiser = torch.optim.LBFGS([weights], max_iter=STEPS, line_search_fn="strong_wolfe")

        def divergence() -> Tensor:
            scaled = logits * (phi @ weights).exp().unsqueeze(-1)
            scaled = scaled.masked_fill(missing, -math.inf).log_softmax(-1)
            return (target.exp() * (target - scaled).masked_fill(missing, 0.0)).sum(-1).mean()

        def objective() -> float:
            optimiser.zero_grad()
            value = divergence() + RIDGE * weights.square().sum()
            value.backward()
            return float(value.detach())

        before = float(divergence().detach())
        with torch.enable_grad():
            optimiser.step(objective)
        after = float(divergence().detach())
        if not math.isfinite(after):
            raise DataError(
                f"The one-pass fit to {len(states)} training rows failed ({after} nats): leave out one_pass."
            )
        with torch.no_grad():
            self.weights.copy_(weights)
        return {"kl_before": before, "kl_after": after, "rows": len(states)}
