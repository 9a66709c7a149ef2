"""Rows that belong together: on one side of every division, and as many of them as were asked for at most."""

from collections import Counter
from itertools import product

import pandas as pd
import pytest

from bara_pyro.data import Example, load_questions, task_from_rows
from bara_pyro.data.clusters import one_of_each, set_aside
from bara_pyro.errors import DataError

# Authors with 1 to 12 reviews each: 78 rows, both classes by each author but the first.
AUTHORS = {f"author {i}": i for i in range(1, 13)}
ROWS = [
    {"text": f"film {author} {i}", "label": ("bad", "good")[i % 2], "author": author}
    for author, count in AUTHORS.items()
    for i in range(count)
]


def authors(rows):
    return {row.cluster for row in rows}


@pytest.mark.parametrize(("fraction", "seed"), product((0.1, 0.2, 0.5), (0, 1)))
def test_no_author_stands_on_both_sides(fraction, seed):
    task = task_from_rows(
        ROWS, cluster_column="author", test_fraction=fraction, validation_rows=10, seed=seed
    )
    splits = (task.train, task.validation, task.test)
    assert sorted(row.id for split in splits for row in split) == sorted(f"row-{i}" for i in range(1, 79))
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert not authors(splits[one]) & authors(splits[other])
    assert 0 < len(task.test) <= round(fraction * 78)
    assert 0 < len(task.validation) <= 10
    assert (
        f"{len(task.test)} of 78 rows tested on, whole clusters, chosen by a hash of their names"
        in task.notes
    )
    assert f"{len(task.validation)} rows set aside for validation, whole clusters" in task.notes
    # Without the column the same rows are divided row by row, and authors are on both sides.
    assert authors(task_from_rows(ROWS, test_fraction=fraction).train) == {""}
    apart = task_from_rows(ROWS, test_fraction=fraction)
    by_id = {f"row-{i}": row["author"] for i, row in enumerate(ROWS, 1)}
    assert {by_id[row.id] for row in apart.train} & {by_id[row.id] for row in apart.test}


def test_the_share_is_used_as_far_as_clusters_allow():
    """Nothing that was passed over would still have had room."""
    rows = [Example(str(i), "?", i % 2, cluster=row["author"]) for i, row in enumerate(ROWS)]
    for most in range(1, 79):
        kept, aside = set_aside(rows, most)
        sizes, left = Counter(row.cluster for row in kept), Counter(row.label for row in kept)
        for cluster in sizes:
            classes = Counter(row.label for row in kept if row.cluster == cluster)
            takes_last = any(left[label] <= count for label, count in classes.items())
            assert len(aside) + sizes[cluster] > most or takes_last


def test_a_division_follows_from_names_alone():
    first = set_aside([Example(r["text"], "?", cluster=r["author"]) for r in ROWS], 20)[1]
    again = set_aside([Example(r["text"], "?", cluster=r["author"]) for r in ROWS[::-1]], 20)[1]
    assert {row.id for row in first} == {row.id for row in again}
    salted = [
        authors(set_aside([Example(r["text"], "?", cluster=r["author"]) for r in ROWS], 20, s)[1])
        for s in "abcd"
    ]
    assert len(set(map(frozenset, salted))) > 1


def test_rows_of_no_author_stand_for_themselves():
    rows = [row | {"author": None if row["author"] > "author 5" else row["author"]} for row in ROWS]
    task = task_from_rows(rows, cluster_column="author")
    alone = [row for row in (*task.train, *task.test) if not row.cluster]
    assert len(alone) == sum(row["author"] is None for row in rows) > 0
    assert 0 < sum(not row.cluster for row in task.test) < len(alone)


def test_numbers_and_tables_name_clusters_too():
    frame = pd.DataFrame(ROWS).assign(author=lambda f: f["author"].str.split().str[1].astype(int))
    task = task_from_rows(frame, cluster_column="author")
    assert authors((*task.train, *task.test)) == {str(i) for i in range(1, 13)}
    assert authors(task_from_rows(frame.astype({"author": float}), cluster_column="author").test) == authors(
        task.test
    )


def test_with_a_file_of_test_rows_shared_authors_are_counted():
    tested = [
        {"text": "new", "label": "bad", "author": "author 12"},
        {"text": "newer", "label": "good", "author": "x"},
    ]
    task = task_from_rows(ROWS, tested, cluster_column="author")
    assert "1 test rows are of a cluster that also stands in train" in task.notes
    without = task_from_rows(ROWS, [{"text": "new", "label": "bad"}], cluster_column="author")
    assert authors(without.test) == {""}


def test_later_rows_are_read_with_or_without_the_column():
    task = task_from_rows(ROWS, cluster_column="author")
    (known,) = load_questions([{"text": "new", "author": "me"}], task)
    (unknown,) = load_questions([{"text": "new"}], task)
    assert (known.cluster, unknown.cluster) == ("me", "")


@pytest.mark.parametrize(
    ("rows", "given", "said"),
    [
        (ROWS, {"cluster_column": "writer"}, "no column 'writer', which cluster_column"),
        (
            [row | {"author": ["a"]} for row in ROWS],
            {"cluster_column": "author"},
            r"row 1: its cluster is \['a'\]",
        ),
        (
            [row | {"author": "one"} for row in ROWS],
            {"cluster_column": "author"},
            r"All 78 rows have the same author \(cluster_column\).* or leave cluster_column",
        ),
        (ROWS, {"cluster_column": "author", "test_fraction": 0.01}, "at most 1 rows"),
    ],
)
def test_what_cannot_be_divided_is_refused(rows, given, said):
    if "test_fraction" in given:
        rows = [row for row in rows if row["author"] != "author 1"]
    with pytest.raises(DataError, match=said):
        task_from_rows(rows, **given)


def test_a_class_keeps_rows_to_train_on():
    """The one author who says 'superb' is never tested on."""
    rows = [row | {"label": "superb"} if row["author"] == "author 3" else row for row in ROWS]
    for fraction in (0.1, 0.3, 0.6):
        task = task_from_rows(rows, cluster_column="author", test_fraction=fraction)
        assert "author 3" in authors(task.train)


def test_one_row_of_each_cluster_whatever_the_order():
    rows = [Example(f"{i}", "?", cluster=row["author"]) for i, row in enumerate(ROWS)]
    rows += [Example("alone", "?"), Example("too", "?")]
    kept = one_of_each(rows)
    names = [row.cluster for row in kept if row.cluster]
    assert sorted(names) == sorted({row["author"] for row in ROWS})
    assert [row.id for row in kept if not row.cluster] == ["alone", "too"]
    assert {row.id for row in one_of_each(rows[::-1])} == {row.id for row in kept}
    assert [row for row in rows if row in kept] == kept  # in their order
    # Not always the first of a cluster: ids that hash otherwise are others.
    other = one_of_each([Example(f"x{row.id}", "?", cluster=row.cluster) for row in rows])
    assert {row.id[1:] for row in other} != {row.id for row in kept}
