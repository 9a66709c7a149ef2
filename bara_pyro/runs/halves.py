"""The two halves of split-half calibration: the training rows it fits, and those it is scored on."""

from collections.abc import Sequence

import numpy as np

from bara_pyro.data import EncodedSplit, Task
from bara_pyro.data.clusters import places_by_group, together


def halves(clusters: Sequence[str], seed: int) -> tuple[list[int], list[int]]:
    """Return the indices of the rows to fit, and of the rows to score.

    Rows of one group stay together, because training on one leaks information about the others. Groups are
    divided as evenly as possible, and the larger part is fitted.

    Args:
        clusters: the group of each row (`bara_pyro.data.clusters.together`); empty if it has none.
        seed: seed of the order of the groups; if all have the same size, the first ones are fitted.

    Returns:
        Two lists of indices. If all rows are of one group, the groups are ignored.

    Examples:
        >>> from bara_pyro.runs.halves import halves
        >>> learnt, asked = halves([""] * 81, seed=0)
        >>> len(learnt), len(asked), sorted(learnt + asked) == list(range(81))
        (41, 40, True)
        >>> halves(["cats", "cats", "dogs", "dogs"], seed=0)
        ([0, 1], [2, 3])
    """
    groups = places_by_group(clusters)
    if len(groups) == 1:
        groups = [[row] for row in range(len(clusters))]
    order = np.random.default_rng([seed, len(groups)]).permutation(len(groups)).tolist()
    learnt = _nearest_to_half([len(groups[group]) for group in order])
    parts: tuple[list[int], list[int]] = ([], [])
    for place, group in enumerate(order):
        parts[place not in learnt].extend(groups[group])
    return parts


def _nearest_to_half(sizes: Sequence[int]) -> set[int]:
    """Return the indices of sizes whose sum is the smallest that reaches half of the total.

    Subset sums are the bits of one integer, `sums`. `last` keeps, for each sum, the earliest size that
    completed it, so that of equal sizes the first are taken.
    """
    sums, last = 1, dict[int, int]()
    for place, size in enumerate(sizes):
        new = (sums << size) & ~sums
        sums |= new
        while new:
            last[new.bit_length() - 1] = place
            new ^= 1 << new.bit_length() - 1
    half = (sum(sizes) + 1) // 2
    above = sums >> half
    left, taken = half + (above & -above).bit_length() - 1, set[int]()
    while left:
        taken.add(last[left])
        left -= sizes[last[left]]
    return taken


def rehearsed_halves(task: Task, split: EncodedSplit, seed: int) -> tuple[list[int], list[int]]:
    """Return the halves of a task's training rows, as indices into the encoded split.

    Rows that share a cluster, a text or a passage are in the same half.
    """
    return halves(groups_of(task, split), seed)


def groups_of(task: Task, split: EncodedSplit) -> list[str]:
    """Return the group of each training row of a task, in the order of the encoded split."""
    groups = dict(zip((row.id for row in task.train), together(task.train, passages=True), strict=True))
    return [groups[row] for row in split.ids]
