"""How often a reward model prefers what people preferred, beside what the replies' lengths alone say."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from torch import Tensor

from bara_pyro.data.messages import shown_message
from bara_pyro.data.preferences import PreferencePair, prompt_key
from bara_pyro.errors import DataError
from bara_pyro.extras.replies.reward.bradley_terry import bradley_terry
from bara_pyro.metrics.wilson import wilson
from bara_pyro.types import Fields, Json

LEVEL = 0.95
BRIEF = ("accuracy", "low", "high", "level", "pairs", "longer_chosen")
"""What goes with every score: of `Agreement`, what its sentence says."""


@dataclass(frozen=True)
class Agreement:
    """Scores of pairs of replies, against which of the two was preferred.

    Attributes:
        pairs: their number.
        prompts: the number of different prompts; where it is smaller, the intervals are too narrow, since
            they take pairs as independent.
        accuracy: percentage of pairs in which the preferred reply has the higher score; ties count half.
        low, high: ends of Wilson's interval of it, in percent.
        level: its nominal coverage.
        nll: mean of `-log sigmoid(difference)`, in nats; log 2 of a model that knows nothing.
        margin: mean difference of the scores of the preferred reply and the other.
        longer_chosen: percentage of pairs in which the preferred reply is the longer one (in characters; of
            equal length: half): the accuracy of always taking the longer one. 100 less it is that of always
            taking the shorter one.
        longer_low, longer_high: ends of Wilson's interval of it.
        prefers_longer: percentage of pairs in which the longer reply has the higher score; 50 of a model that
            does not look at lengths, where they say nothing.
        length_correlation: Pearson's, of the differences of scores and of lengths; None where one of them is
            constant.
    """

    pairs: int
    prompts: int
    accuracy: float
    low: float
    high: float
    level: float
    nll: float
    margin: float
    longer_chosen: float
    longer_low: float
    longer_high: float
    prefers_longer: float
    length_correlation: float | None

    def sentence(self) -> str:
        """Return what has to stand beside every figure that the model decides."""
        return sentence_of(asdict(self))


def sentence_of(told: Fields) -> str:
    """Return what a judge's agreement says, of all its fields or of those in `BRIEF`."""
    return (
        f"prefers what was preferred in {told['accuracy']:.1f} % of {told['pairs']} held-out pairs "
        f"({100 * told['level']:.0f} % interval {told['low']:.1f} to {told['high']:.1f}); always the longer "
        f"reply would: {told['longer_chosen']:.1f} %, always the shorter: {100 - told['longer_chosen']:.1f} %"
    )


def brief(name: str, held_out: Fields | None) -> Json:
    """Return what is kept with every score of a judge: its `name`, and `BRIEF` where that is known."""
    return {"name": name} if held_out is None else {"name": name, **{key: held_out[key] for key in BRIEF}}


def agreement(chosen: Tensor, rejected: Tensor, pairs: Sequence[PreferencePair]) -> Agreement:
    """Compare scores with preferences.

    Args:
        chosen: scores of the preferred replies, `n`.
        rejected: scores of the others, `n`.
        pairs: the n pairs.

    Raises:
        DataError: there is not one score of each kind a pair, or no pair.

    Examples:
        >>> import torch
        >>> from bara_pyro.data.preferences import Pair
        >>> from bara_pyro.extras.replies.reward import agreement
        >>> pairs = [Pair("Count .", "1 2 3", "no", "a"), Pair("Add .", "3", "no idea", "b")]
        >>> found = agreement(torch.tensor([2.0, 0.0]), torch.tensor([1.0, 1.0]), pairs)
        >>> found.accuracy, found.longer_chosen, found.margin
        (50.0, 50.0, 0.0)
    """
    if len(chosen) != len(pairs):
        raise DataError(f"There are {len(pairs)} pairs and {len(chosen)} scores: give one of each a pair.")
    nll = float(bradley_terry(chosen.double(), rejected.double()))
    differences = (chosen.double() - rejected.double()).numpy()
    longer_by = [len(shown_message(pair.chosen)) - len(shown_message(pair.rejected)) for pair in pairs]
    lengths = np.array(longer_by, dtype=np.float64)
    accuracy, longer = _rate(differences), _rate(lengths)
    low, high = wilson(accuracy, len(pairs), LEVEL)
    longer_low, longer_high = wilson(longer, len(pairs), LEVEL)
    varies = differences.std() > 0 and lengths.std() > 0
    return Agreement(
        pairs=len(pairs),
        prompts=len({prompt_key(pair) for pair in pairs}),
        accuracy=accuracy,
        low=low,
        high=high,
        level=LEVEL,
        nll=nll,
        margin=float(differences.mean()),
        longer_chosen=longer,
        longer_low=longer_low,
        longer_high=longer_high,
        prefers_longer=_rate(differences * np.sign(lengths)),
        length_correlation=float(np.corrcoef(differences, lengths)[0, 1]) if varies else None,
    )


def _rate(differences: np.ndarray) -> float:
    """Return the percentage of positive ones, zeros counting half."""
    return float(100 * (np.sign(differences).mean() + 1) / 2)
