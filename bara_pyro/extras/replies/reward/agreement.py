"""Measure how often a reward model agrees with human preferences, compared with the replies' lengths."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from torch import Tensor

from bara_pyro.data.messages import shown_message
from bara_pyro.data.preferences import PreferencePair, prompt_key
from bara_pyro.errors import DataError
from bara_pyro.extras.replies.reward.bradley_terry import bradley_terry
from bara_pyro.metrics.intervals import wilson
from bara_pyro.types import Fields, Json

LEVEL = 0.95
BRIEF = ("accuracy", "low", "high", "level", "pairs", "longer_chosen")
"""Fields of `Agreement` that are stored with every score."""


@dataclass(frozen=True)
class Agreement:
    """Agreement of a reward model's scores with preferences on pairs of replies.

    Attributes:
        pairs: number of pairs.
        prompts: number of distinct prompts. If it is smaller than `pairs`, the intervals are too narrow,
            because they treat pairs as independent.
        accuracy: percentage of pairs in which the preferred reply has the higher score; ties count half.
        low, high: ends of the Wilson interval of the accuracy, in percent.
        level: nominal coverage of the intervals.
        nll: mean of `-log sigmoid(difference)`, in nats; log 2 for an uninformative model.
        margin: mean difference between the scores of the preferred and the other reply.
        longer_chosen: percentage of pairs in which the preferred reply is longer (in characters; equal
            lengths count half). This is the accuracy of always preferring the longer reply.
        longer_low, longer_high: ends of the Wilson interval of `longer_chosen`.
        prefers_longer: percentage of pairs in which the longer reply has the higher score; 50 for a model
            that ignores length, if length says nothing about preference.
        length_correlation: Pearson correlation between differences of scores and of lengths; None if either
            is constant.
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
        """Return a sentence on the agreement, to show beside results of this judge."""
        return sentence_of(asdict(self))


def sentence_of(facts: Fields) -> str:
    """Return a sentence on a judge's agreement, from all its fields or those in `BRIEF`."""
    return (
        f"agrees with {facts['accuracy']:.1f} % of {facts['pairs']} held-out preferences "
        f"({100 * facts['level']:.0f} % interval {facts['low']:.1f} to {facts['high']:.1f}; always choosing "
        f"the longer reply: {facts['longer_chosen']:.1f} %, the shorter: "
        f"{100 - facts['longer_chosen']:.1f} %)"
    )


def brief(name: str, held_out: Fields | None) -> Json:
    """Return the facts to store with every score: the judge's `name`, and the fields in `BRIEF` if known."""
    return {"name": name} if held_out is None else {"name": name, **{key: held_out[key] for key in BRIEF}}


def agreement(chosen: Tensor, rejected: Tensor, pairs: Sequence[PreferencePair]) -> Agreement:
    """Compare scores with preferences.

    Args:
        chosen: scores of the preferred replies, `n`.
        rejected: scores of the others, `n`.
        pairs: the n pairs.

    Raises:
        DataError: there are no pairs, or not one score of each kind per pair.

    Examples:
        >>> import torch
        >>> from bara_pyro.data.preferences import Pair
        >>> from bara_pyro.extras.replies.reward import agreement
        >>> pairs = [Pair("Count .", "1 2 3", "no", "a"), Pair("Add .", "3", "no idea", "b")]
        >>> result = agreement(torch.tensor([2.0, 0.0]), torch.tensor([1.0, 1.0]), pairs)
        >>> result.accuracy, result.longer_chosen, result.margin
        (50.0, 50.0, 0.0)
    """
    if len(chosen) != len(pairs):
        raise DataError(f"There are {len(pairs)} pairs and {len(chosen)} scores: give one score per pair.")
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
    """Return the percentage of positive numbers; zeros count half."""
    return float(100 * (np.sign(differences).mean() + 1) / 2)
