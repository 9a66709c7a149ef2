"""Intervals of what was sampled: over seeds and prompts, each arm by itself or paired with another."""

from collections.abc import Callable, Sequence
from functools import cache, partial

import numpy as np
import torch

from bara_pyro.metrics import crossed_interval, prompt_weights
from bara_pyro.metrics.intervals import Drawn, Interval
from experiments.page.sampled_entries import (
    Entry,
    by_seed,
    diversity_of,
    paired,
    scores_of,
    temperatures_of,
)

_weights = cache(prompt_weights)


def crossed(values: np.ndarray) -> Interval:
    """Return the mean of `seeds x prompts` numbers with its interval, crossed over both."""
    names = tuple(str(i) for i in range(values.shape[1]))
    drawn = torch.from_numpy(_weights(names) @ values.T)
    return crossed_interval([Drawn(torch.from_numpy(values.mean(axis=1)), drawn, frozenset(names))])


def difference(
    entries: Sequence[Entry],
    arm: tuple[str, str],
    reference: tuple[str, str],
    read: Callable[[Entry], np.ndarray],
) -> Interval:
    """Return an arm minus another, by a figure of each prompt, on the seeds that both have."""
    both = paired(entries, arm[0], reference[0])
    return crossed(by_seed(both, *arm, read) - by_seed(both, *reference, read))


def along_temperatures(
    entries: Sequence[Entry], method: str, kind: str, n: int
) -> list[tuple[Interval, Interval]]:
    """Return diversity and the best of n of an arm at each temperature."""

    def found(read: Callable[[Entry], np.ndarray], temperature: float) -> Interval:
        return crossed(by_seed(entries, method, kind, read, temperature))

    score = partial(scores_of, n=n)
    return [(found(diversity_of, t), found(score, t)) for t in temperatures_of(entries)]
