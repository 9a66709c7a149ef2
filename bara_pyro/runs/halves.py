"""The halves of a rehearsal: which of a run's training rows it learns, and which it is asked."""

from collections.abc import Sequence

import numpy as np

from bara_pyro.data import EncodedSplit, Task
from bara_pyro.data.clusters import places_by_group, together


def halves(clusters: Sequence[str], seed: int) -> tuple[list[int], list[int]]:
    """Return the places of the rows that a rehearsal learns, and of those that it is asked.

    Rows of one group stay together: who has learnt one of them knows more of the others than of the rows that
    the run is for. Of all divisions of groups one nearest to half is taken, and the larger part is learnt.

    Args:
        clusters: the group of each row (`bara_pyro.data.clusters.together`); empty where it is alone.
        seed: of the order of the groups, the first of which are learnt where all have one size.

    Returns:
        The places, in that order. Where all rows are of one group, they are taken as if of none.

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
    """Return the places of sizes whose sum is the least that is half of all or more.

    All sums of some of the sizes are the bits of one number. Of each the last size is kept that made it, the
    earliest possible: of equal sizes the first are taken.
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
    """Return the halves of a task's training rows, as places in the rows as token ids.

    Rows of one cluster, of one text or about one passage lie on one side.
    """
    return halves(groups_of(task, split), seed)


def groups_of(task: Task, split: EncodedSplit) -> list[str]:
    """Return the name of the group of each of a task's training rows, in the order of its token ids."""
    groups = dict(zip((row.id for row in task.train), together(task.train, passages=True), strict=True))
    return [groups[row] for row in split.ids]
