"""The protocol of corrections: fitted after training, applied to predictions, stored in the run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor, nn

from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.likelihood import require_closed_set
from bara_pyro.core.observing import frozen_states, last_states
from bara_pyro.core.prediction import forwards
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data.split import first_batches
from bara_pyro.data.types import Batch
from bara_pyro.errors import DataError
from bara_pyro.metrics import posterior_predictive

FEWEST = 10


@dataclass(frozen=True, eq=False, repr=False)
class TrainingRows:
    """The n training rows that a correction is fitted to; what it reads of them is computed once.

    Attributes:
        model, guide: the program and its fitted guide.
        predict: `Corrections.predict` of this pair, with the corrections that are not fitted to rows.
        batches: the rows.
        groups, offered, samples, seed: see `Corrections.fit`; there may be more groups and offers than rows.
    """

    model: AdaptedLM
    guide: SiteGuide
    predict: Callable[..., Tensor]
    batches: Sequence[Batch]
    groups: Sequence[str] | None
    offered: Tensor | None
    samples: int
    seed: int

    def first(self, count: int) -> "TrainingRows":
        """Return the first batches that hold at least this many rows together."""
        return replace(self, batches=list(first_batches(self.batches, count)))

    @cached_property
    def frozen_states(self) -> Tensor:
        """Last hidden states without adapters, `n x d`."""
        return torch.cat([frozen_states(self.model, batch) for batch in self.batches])

    @cached_property
    def points(self) -> Tensor:
        """Log-probabilities at the posterior mean, `n x C`, float64, on the CPU."""
        return torch.cat([self.predict(batch, samples=0)[0] for batch in self.batches])

    @cached_property
    def points_and_states(self) -> tuple[Tensor, Tensor]:
        """The same log-probabilities, and the last hidden states at the posterior mean, `n x d`."""
        with last_states(self.model) as noted:
            points = [self.predict(batch, samples=0)[0] for batch in self.batches]
        return torch.cat(points), torch.cat(noted).float()

    @cached_property
    def average(self) -> Tensor:
        """Log of the draws' average probabilities of the offered answers, `n x C`."""
        drawn = [self.predict(batch, samples=self.samples, seed=self.seed) for batch in self.batches]
        return posterior_predictive(self.among_offered(torch.cat(drawn, dim=1)).log_softmax(-1))

    def among_offered(self, log_probs: Tensor) -> Tensor:
        """Return log-probabilities, `... n x C`, with -inf for answers that a row does not offer."""
        if self.offered is None:
            return log_probs
        return log_probs.masked_fill(~self.offered[: log_probs.shape[-2]], -torch.inf)


@dataclass(frozen=True, eq=False, repr=False)
class PredictedRows:
    """A batch of B rows whose predictions are corrected.

    Attributes:
        model, batch, seed, memory_budget: see `core.prediction.predict`.
        numbers: numbers of the draws, long; None for the posterior mean. If there are fewer draws, they are
            members of an ensemble, and each stands for equally many numbers.
        last_states: last hidden states at the posterior mean, `B x d`, if a correction reads them.
    """

    model: AdaptedLM
    batch: Batch
    numbers: Tensor | None
    seed: int
    memory_budget: int | None = None
    last_states: Tensor | None = None

    @cached_property
    def frozen_states(self) -> Tensor:
        """Last hidden states without adapters, `B x d`."""
        pieces = map(self.batch.questions, forwards(self.model, self.batch, self.memory_budget))
        return torch.cat([frozen_states(self.model, piece) for piece in pieces])


class Correction(nn.Module):
    """Base of corrections, which take the width d of hidden states and keep what they fit in parameters.

    Attributes:
        name: name in `Corrections`, and prefix of results and parameters in a run's files.
        option: the argument of `Corrections`, and the setting, that switches it on.
        subject: plural subject of the message of `requires`.
        requires: check of the program's likelihood.
        fewest: fewest training rows to fit to. 0: it is fitted to something else, and the other corrections
            are fitted to predictions that it has corrected.
        adds_noise: whether it makes draws differ.
        reads_last_states: whether it reads `PredictedRows.last_states`, which need answers of one token.
    """

    name: ClassVar[str]
    option: ClassVar[str]
    subject: ClassVar[str]
    requires = staticmethod(require_closed_set)
    fewest: ClassVar[int] = FEWEST
    adds_noise: ClassVar[bool] = False
    reads_last_states: ClassVar[bool] = False

    @property
    def fitted(self) -> bool:
        """Whether it has been fitted, or needs no fit; otherwise it is not applied."""
        return True

    def check(self, model: AdaptedLM, guide: SiteGuide, rows: int, method: str = "this program") -> None:
        """Check that it can be fitted to a number of training rows; see `Corrections.check`."""
        if rows < self.fewest:
            raise DataError(
                f"{rows} training rows are too few for {self.option}: give at least {self.fewest}, or leave "
                "it out."
            )

    def fit(self, rows: TrainingRows) -> dict[str, float]:
        """Fit to training rows and return figures of the fit by name; by default do nothing."""
        return {}

    def correct(self, draws: Tensor, rows: PredictedRows) -> Tensor:
        """Return corrected log-probabilities; both are `S x B x C`, float64, on the CPU."""
        raise NotImplementedError
