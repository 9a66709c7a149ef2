"""Groups of rows that belong together: rows of one cluster, rows with the same text, and all that these join.

Training on one row of a group leaks information about the others. Code that splits rows, resamples them or
counts them as independent therefore works on groups (`together`).
"""

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from bara_pyro.columns import option_of
from bara_pyro.data.split import EncodedSplit
from bara_pyro.data.types import Example, Task
from bara_pyro.errors import DataError


def compared_text(row: Example) -> tuple[str, str]:
    """Return a row's context and question in the form in which texts are compared.

    Case, white space, invisible characters and Unicode composition are ignored.
    """
    return as_compared(row.context), as_compared(row.question)


def as_compared(text: str) -> str:
    """Return a text in the form in which texts are compared; see `compared_text`."""
    text = unicodedata.normalize("NFKC", text).casefold()
    if not text.isascii():
        text = "".join(character for character in text if unicodedata.category(character) != "Cf")
    return " ".join(text.split())


def together(rows: Sequence[Example], *, clusters: bool = True, passages: bool = False) -> list[str]:
    """Return the name of each row's group; a row without others in its group has an empty name.

    Rows of one cluster belong together, and so do rows with the same text (`compared_text`). Groups are
    transitive: a text that two authors share joins all texts of both. A text that all rows share joins none.

    Args:
        rows: rows to group.
        clusters: whether rows of one `cluster` belong together.
        passages: whether rows about one passage belong together, whatever their questions.

    Returns:
        One name per row: a cluster of its group, or a name made from the id of the group's first row.
    """
    kinds = [[row.cluster for row in rows]] if clusters else []
    texts = [compared_text(row) for row in rows]
    kinds.append(_unlike(["\n".join(text) for text in texts]))
    if passages:
        kinds.append(_unlike([context for context, _ in texts]))
    parent = list(range(len(rows)))

    def first(row: int) -> int:
        """Return the first row of the group to which a row belongs so far."""
        while parent[row] != row:
            parent[row] = row = parent[parent[row]]
        return row

    for names in kinds:
        seen: dict[str, int] = {}
        for row, name in enumerate(names):
            one, other = first(row), first(seen.setdefault(name, row) if name else row)
            parent[max(one, other)] = min(one, other)
    return _named(rows, [first(row) for row in range(len(rows))], clusters)


def _unlike(texts: list[str]) -> list[str]:
    return texts if len(set(texts)) > 1 else [""] * len(texts)


def _named(rows: Sequence[Example], firsts: Sequence[int], clusters: bool) -> list[str]:
    cluster_names = {row.cluster for row in rows if clusters and row.cluster}
    names: dict[int, str] = {}
    for row, group in zip(rows, firsts, strict=True):
        if row.cluster in cluster_names:
            names[group] = min(names.get(group, row.cluster), row.cluster)
    for group, count in Counter(firsts).items():
        name = f"like {rows[group].id}"
        while name in cluster_names:  # a cluster in the data may have this name
            name += "'"
        names.setdefault(group, name if count > 1 else "")
    return [names[group] for group in firsts]


def places_by_group(names: Iterable[str]) -> list[list[int]]:
    """Return the indices of the rows of each group, in the order in which groups first occur.

    A row without a name is a group by itself.
    """
    groups: dict[str | int, list[int]] = {}
    for row, name in enumerate(names):
        groups.setdefault(name or row, []).append(row)
    return list(groups.values())


def _groups_or_rows(names: Sequence[str]) -> list[list[int]]:
    """Return `places_by_group`, or each row by itself if all rows are in one group."""
    groups = places_by_group(names)
    return groups if len(groups) > 1 else [[row] for row in range(len(names))]


def folds(names: Sequence[str], count: int) -> list[int]:
    """Return the fold of each row, 0 to `count` - 1; all rows of a group are in one fold.

    Each group goes to the fold with the fewest rows so far. There are at most as many folds as groups; if all
    rows are in one group, each row counts as a separate group.
    """
    groups = _groups_or_rows(names)
    sizes, fold_of = [0] * min(count, len(groups)), [0] * len(names)
    for group in groups:
        fold = sizes.index(min(sizes))
        sizes[fold] += len(group)
        for row in group:
            fold_of[row] = fold
    return fold_of


def set_aside(
    rows: Sequence[Example], most: int, salt: str = "", *, column: str = ""
) -> tuple[list[Example], list[Example]]:
    """Set whole groups aside, at most `most` rows; return the other rows and these, in the order of `rows`.

    Groups are taken in the order of a hash of `salt` and the cluster's name (the row's id without a cluster),
    so the split depends neither on the order of the rows nor on a random generator. A group is skipped if it
    is too large, or if a class would be left without rows. If none is left, a `DataError` names the cluster
    `column`.
    """
    groups = _groups(rows)
    order = sorted(groups, key=lambda group: min(_order(row.cluster or row.id, salt) for row in group))
    kept, aside = _divided(rows, order, Counter({0: most}), by_class=(False,))
    if not aside:
        raise _not_divided(rows, groups, most, column)
    return kept, aside


def set_shares_aside(rows: Sequence[Example], counts: dict[int, int]) -> tuple[list[Example], list[Example]]:
    """Set whole groups of rows aside, with about `counts[c]` rows of each class c.

    Groups are taken in the order of the smallest hash of their rows' ids: first those that fit the counts of
    every class, then those that fit the remaining total. A class keeps at least one row.

    Returns:
        The rows that stay and the rows set aside, each in the order of `rows`; none are set aside if no group
        fits.
    """
    order = sorted(_groups(rows), key=lambda group: min(_order(row.id) for row in group))
    return _divided(rows, order, Counter(counts), by_class=(True, False))


def _divided(
    rows: Sequence[Example],
    groups: Sequence[Sequence[Example]],
    needed: Counter[int],
    by_class: Sequence[bool],
) -> tuple[list[Example], list[Example]]:
    """Set groups aside in this order if they fit the needed rows of every class, or else their total."""
    remaining = Counter(row.label for row in rows)
    taken: set[str] = set()
    for of_each in by_class:
        for group in groups:
            classes = Counter(row.label for row in group)
            fits = classes <= needed if of_each else classes.total() <= needed.total()
            if fits and group[0].id not in taken and all(remaining[c] > n for c, n in classes.items()):
                needed.subtract(classes)
                remaining -= classes
                taken |= {row.id for row in group}
    return [row for row in rows if row.id not in taken], [row for row in rows if row.id in taken]


def one_of_each(rows: Sequence[Example], *, clusters: bool = True) -> list[Example]:
    """Return one row of each group, chosen by a hash of the ids, in the order of `rows`.

    If groups are independent, these rows are: a guarantee calibrated on them holds for a row of a new group.
    Rows of one cluster belong together if `clusters`, rows with the same text always.
    """
    representatives = {
        min((_order(row.id), row.id) for row in group)[1] for group in _groups(rows, clusters=clusters)
    }
    return [row for row in rows if row.id in representatives]


def _groups(rows: Sequence[Example], *, clusters: bool = True) -> list[list[Example]]:
    return [[rows[i] for i in group] for group in places_by_group(together(rows, clusters=clusters))]


def digest(text: str) -> str:
    """Return the SHA-256 of a text; unlike Python's `hash`, it is the same in every process."""
    return hashlib.sha256(text.encode()).hexdigest()


def _order(name: str, salt: str = "") -> tuple[str, str]:
    return digest(salt + name), name


def _not_divided(
    rows: Sequence[Example], groups: Sequence[Sequence[Example]], most: int, column: str
) -> DataError:
    column = column or "cluster"
    if len(groups) == 1 and rows[0].cluster:
        same = f"have the same {column} (cluster_column)"
        if len({row.cluster for row in rows}) > 1:
            same = f"belong together by their {column} (cluster_column) and by shared texts"
        return DataError(
            f"All {len(rows)} rows {same}, so none can be set aside: add rows of another {column}, give a "
            f"test_file (--test-file), or leave {option_of('cluster')} out."
        )
    smallest = min(map(len, groups))
    return DataError(
        f"None of {len(groups)} clusters fits into {most} rows to set aside (the smallest has {smallest}, "
        "and each class must keep rows): set more aside "
        "(--test-fraction, --validation-rows), or give --test-file."
    )


def halves(clusters: Sequence[str], seed: int) -> tuple[list[int], list[int]]:
    """Return the indices of the rows to fit, and of the rows to score, from the group of each row.

    Rows of one group (`bara_pyro.data.clusters.together`) stay together, because training on one leaks
    information about the others. Groups are divided as evenly as possible, and the larger part is fitted. The
    seed orders the groups; if all have the same size, the first ones are fitted. If all rows are of one
    group, the groups are ignored.
    """
    groups = _groups_or_rows(clusters)
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


def split_halves(task: Task, split: EncodedSplit, seed: int) -> tuple[list[int], list[int]]:
    """Return the halves of a task's training rows, as indices into the encoded split.

    Rows that share a cluster, a text or a passage are in the same half.
    """
    return halves(groups_of(task, split), seed)


def groups_of(task: Task, split: EncodedSplit) -> list[str]:
    """Return the group of each training row of a task, in the order of the encoded split."""
    groups = dict(zip((row.id for row in task.train), together(task.train, passages=True), strict=True))
    return [groups[row] for row in split.ids]
