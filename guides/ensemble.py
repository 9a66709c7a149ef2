"""The guide of a deep ensemble: nothing to fit, and a predictive that is the mixture of its members."""

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
    """The uniform posterior of the member index, which the program enumerates: a guide without parameters.

    Args:
        model: the program.
        average: how the members are combined where draws are asked for (S >= 1), whatever their number.
            "probabilities": `p(y | x) = 1/M sum_m p_m(y | x)`, the predictive of the model. "logits":
            `softmax(mean_m logits_m)`, what the code of BLoB and of the ScalaBL paper evaluates; it is more
            confident than a mixture, and no average of predictions.

    Raises:
        ConfigError: an unknown average, or mean logits of a program that has none, as of replies.
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

        The second for S = 0, where one set of logits is asked for, and with `average="logits"`. A mean of
        log-probabilities is a mean of logits: they differ by a constant a member and row. Of replies there
        are no such logits, only what each member gives the whole reply, `M x B`: S = 0 is the mixture.
        """
        members = point_log_probs(self.model, self, batch, every_token=False)
        if not isinstance(self.model.likelihood, ClosedSet):
            return members if samples else members.logsumexp(0, keepdim=True) - math.log(len(members))
        if samples and self.average == "probabilities":
            return members
        return members.mean(0, keepdim=True).log_softmax(-1)
