"""Rows that belong together: all of a cluster are set aside, or none; or one of each cluster is taken."""

from collections import Counter
from collections.abc import Sequence

from bara_pyro.data.schemas import digest
from bara_pyro.data.types import Example
from bara_pyro.errors import DataError


def set_aside(
    rows: Sequence[Example], most: int, salt: str = "", *, column: str = ""
) -> tuple[list[Example], list[Example]]:
    """Set whole clusters of rows aside, at most so many rows.

    Clusters are taken in the order of a hash of their names behind `salt`, so a division depends neither on
    the order of the rows nor on a generator. One that is too large for what is left to take, or whose absence
    would leave a class without rows, is passed over. A row without a cluster is one by itself. `column` is
    what errors call what rows of a cluster have in common.

    Returns:
        The rows that stay and those set aside, each in the order of `rows`.

    Raises:
        DataError: no cluster can be set aside.

    Examples:
        >>> from bara_pyro.data.clusters import set_aside
        >>> from bara_pyro.data import Example
        >>> rows = [Example(f"row-{i}", "?", label=i % 2, cluster="abc"[i // 4]) for i in range(12)]
        >>> kept, aside = set_aside(rows, 5)
        >>> len(kept), {row.cluster for row in aside} & {row.cluster for row in kept}
        (8, set())
    """
    clusters = _by_cluster(rows)
    left, taken = Counter(row.label for row in rows), set[str]()
    for name in sorted(clusters, key=lambda name: (digest(salt + "".join(name)), name)):
        classes = Counter(row.label for row in clusters[name])
        if len(taken) + len(clusters[name]) <= most and all(left[c] > n for c, n in classes.items()):
            left -= classes
            taken |= {row.id for row in clusters[name]}
    if not taken and len(clusters) == 1 and rows[0].cluster:
        raise DataError(
            f"All {len(rows)} rows have the same {column or 'cluster'} (cluster_column), and none can be set "
            "aside without the others: bring rows of another, or test rows as test_file (--test-file), or "
            "leave cluster_column (--cluster-column) out."
        )
    if not taken:
        smallest = min(map(len, clusters.values()))
        raise DataError(
            f"None of {len(clusters)} clusters can be set aside whole among at most {most} rows (the "
            f"smallest has {smallest}, and each class must keep rows to train on): set more rows aside, or "
            "bring them in a file of their own."
        )
    return [row for row in rows if row.id not in taken], [row for row in rows if row.id in taken]


def one_of_each(rows: Sequence[Example]) -> list[Example]:
    """Return one row of each cluster, by a hash of the ids, in the order of `rows`.

    A row without a cluster is one by itself. What is promised of independent rows holds of these, where
    clusters are independent: for a row to come of another cluster.

    Examples:
        >>> from bara_pyro.data.clusters import one_of_each
        >>> from bara_pyro.data import Example
        >>> rows = [Example(f"row-{i}", "?", cluster=name) for i, name in enumerate(["a", "a", "b", "", ""])]
        >>> [row.cluster for row in one_of_each(rows)]
        ['a', 'b', '', '']
    """
    kept = {min(group, key=lambda row: (digest(row.id), row.id)).id for group in _by_cluster(rows).values()}
    return [row for row in rows if row.id in kept]


def _by_cluster(rows: Sequence[Example]) -> dict[tuple[str, str], list[Example]]:
    clusters: dict[tuple[str, str], list[Example]] = {}
    for row in rows:
        clusters.setdefault((row.cluster, "" if row.cluster else row.id), []).append(row)
    return clusters
