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

from bara_pyro.core.modules import frozen
from bara_pyro.errors import DataError
from bara_pyro.posthoc.rows import FittedToRows

RIDGE, STEPS = 1e-2, 300
OWN = 3  # features beside the hidden state


class OnePass(FittedToRows):
    """Row-wise temperatures that approximate the average of draws; all 1 before `fit`.

    Args:
        width: width d of the language model's hidden states.
    """

    purpose = "fit temperatures"
    option = "one_pass"

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mean = frozen(torch.zeros(width))
        self.deviation = frozen(torch.ones(width))
        self.weights = frozen(torch.zeros(OWN + width))

    @property
    def fitted(self) -> bool:
        """Whether the temperatures have been fitted."""
        return bool(self.weights.any())

    def features(self, log_probs: Tensor, states: Tensor) -> Tensor:
        """Return phi, `B x (3 + d)`, float64, from `B x C` log-probabilities and `B x d` states."""
        logits = log_probs.double()
        entropy = -(logits.exp() * logits).sum(-1)
        size = (logits - logits.mean(-1, keepdim=True)).square().mean(-1).sqrt()
        features = torch.stack([torch.ones_like(size), entropy, size], -1)
        return torch.cat([features, (states.double() - self.mean) / self.deviation], -1)

    def forward(self, log_probs: Tensor, states: Tensor) -> Tensor:
        """Return the approximate log average of draws, `B x C`.

        Args:
            log_probs: log-probabilities at the posterior mean, `B x C`.
            states: last hidden states at the posterior mean, `B x d`.
        """
        scale = (self.features(log_probs, states) @ self.weights.double()).exp()
        return (log_probs.double() * scale.unsqueeze(-1)).log_softmax(-1)

    def fit(self, log_probs: Tensor, states: Tensor, average: Tensor) -> dict[str, float]:
        """Fit the temperatures to training rows.

        Args:
            log_probs: log-probabilities at the posterior mean, `n x C`.
            states: last hidden states at the posterior mean, `n x d`.
            average: log of the draws' average probabilities, `n x C`; -inf for answers that a row does not
                offer.

        Returns:
            `kl_before`, `kl_after`: mean KL(average || one pass) on these rows, nats; `rows`.

        Raises:
            DataError: there are fewer than `FEWEST` rows.
        """
        rows = len(log_probs)
        self.check_rows(rows)
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
                f"The one-pass fit to {rows} training rows failed ({after} nats): leave out one_pass."
            )
        with torch.no_grad():
            self.weights.copy_(weights)
        return {"kl_before": before, "kl_after": after, "rows": rows}
