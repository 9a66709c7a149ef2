r"""One forward in place of many draws: the logits at the posterior mean, with a temperature for every row.

    p(y | x) = softmax(z(x) exp(u . phi(x)))

z are the logits at the posterior mean, phi(x) a constant, their entropy and size, and the last hidden state.
u is fitted to the average of many draws on training rows, whose labels are not looked at: least mean
KL(average of draws || p), with a ridge. The average of draws is a flatter distribution than that of the mean
draw, and how much flatter is what a row's state tells.
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
    """The temperatures of a program's rows; all 1 before `fit`.

    Args:
        width: d, of the language model's hidden states.
    """

    purpose = "fit temperatures to"
    option = "one_pass"

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mean = frozen(torch.zeros(width))
        self.deviation = frozen(torch.ones(width))
        self.weights = frozen(torch.zeros(OWN + width))

    @property
    def fitted(self) -> bool:
        """Whether there are temperatures."""
        return bool(self.weights.any())

    def features(self, log_probs: Tensor, states: Tensor) -> Tensor:
        """Return phi, `B x (3 + d)`, float64, of `B x C` log-probabilities and `B x d` states."""
        logits = log_probs.double()
        entropy = -(logits.exp() * logits).sum(-1)
        size = (logits - logits.mean(-1, keepdim=True)).square().mean(-1).sqrt()
        own = torch.stack([torch.ones_like(size), entropy, size], -1)
        return torch.cat([own, (states.double() - self.mean) / self.deviation], -1)

    def forward(self, log_probs: Tensor, states: Tensor) -> Tensor:
        """Return what stands for the average of draws.

        Args:
            log_probs: `B x C`, at the posterior mean.
            states: `B x d`, the last hidden states there.
        """
        scale = (self.features(log_probs, states) @ self.weights.double()).exp()
        return (log_probs.double() * scale.unsqueeze(-1)).log_softmax(-1)

    def fit(self, log_probs: Tensor, states: Tensor, average: Tensor) -> dict[str, float]:
        """Set the temperatures to those of training rows.

        Args:
            log_probs: `n x C`, at the posterior mean.
            states: `n x d`, there.
            average: `n x C`, log of the average of draws' probabilities; -inf where a row does not offer an
                answer.

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
            found = logits * (phi @ weights).exp().unsqueeze(-1)
            found = found.masked_fill(missing, -math.inf).log_softmax(-1)
            return (target.exp() * (target - found).masked_fill(missing, 0.0)).sum(-1).mean()

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
                f"The temperatures of {rows} training rows could not be fitted ({after} nats): leave out "
                "one_pass."
            )
        with torch.no_grad():
            self.weights.copy_(weights)
        return {"kl_before": before, "kl_after": after, "rows": rows}
