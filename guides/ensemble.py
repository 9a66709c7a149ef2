"""Guide of a deep ensemble: it has no parameters, and its predictive is the mixture of the members."""

import math
from typing import Literal

from torch import Tensor

from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.likelihood import ClosedSet, require_closed_set
from bara_pyro.core.prediction import point_log_probs
from bara_pyro.data.types import Batch
from bara_pyro.errors import check_choice
from bara_pyro.models.ensemble import Ensemble

Average = Literal["probabilities", "logits"]


class EnsembleGuide(SiteGuide):
    """Uniform posterior over the member index, which the program enumerates; no parameters.

    Args:
        model: the program.
        average: how predictions with draws (any S >= 1) combine the members. "probabilities":
            `p(y | x) = 1/M sum_m p_m(y | x)`, the predictive of the model. "logits":
            `softmax(mean_m logits_m)`, as the code of BLoB and of the ScalaBL paper does; it is more
            confident than the mixture and is not an average of predictions.

    Raises:
        ConfigError: an unknown average, or "logits" for a program without a closed set of answers.
    """

    stochastic = False

    program = Ensemble

    def __init__(self, model: Ensemble, *, average: Average = "probabilities") -> None:
        super().__init__(model)
        check_choice("average", average, Average)
        if average == "logits":
            require_closed_set(model.likelihood, "Mean logits (average='logits')")
        self.average = average
        self.copies = model.members

    def predictive(self, batch: Batch, samples: int, seed: int) -> Tensor:
        """Return the members' log-probabilities, `M x B x C`, or those of their mean logits, `1 x B x C`.

        Mean logits are used for S = 0 and with `average="logits"`. Averaging log-probabilities is the same as
        averaging logits, since they differ by a constant per member and row. Replies have no such logits,
        only each member's log-probability of the whole reply, `M x B`; for them S = 0 is the mixture.
        """
        members = point_log_probs(self.model, self, batch, every_token=False)
        if not isinstance(self.model.likelihood, ClosedSet):
            return members if samples else members.logsumexp(0, keepdim=True) - math.log(len(members))
        if samples and self.average == "probabilities":
            return members
        return members.mean(0, keepdim=True).log_softmax(-1)
