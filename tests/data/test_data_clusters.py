"""Rows that belong together: on one side of every division, and as many of them as were asked for at most."""

from collections import Counter
from itertools import product

import pandas as pd
import pytest

from bara_pyro.data import Example, load_questions, task_from_rows
from bara_pyro.data.clusters import folds, one_of_each, set_aside, together
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
        f"{len(task.test)} of 78 rows held out for testing, whole clusters, chosen by a hash of their names"
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
    assert "1 test rows are of a cluster that is also in train" in task.notes
    without = task_from_rows(ROWS, [{"text": "new", "label": "bad"}], cluster_column="author")
    assert authors(without.test) == {""}


def test_later_rows_are_read_with_or_without_the_column():
    task = task_from_rows(ROWS, cluster_column="author")
    (known,) = load_questions([{"text": "new", "author": "me"}], task)
    (unknown,) = load_questions([{"text": "new"}], task)
    assert (known.cluster, unknown.cluster) == ("me", "")


def test_a_text_that_two_authors_have_joins_them():
    """All of both are set aside, or none; also where the texts differ in what no reader sees."""
    texts = ["straße 1", "STRASSE  1", "caf\u00e9", "cafe\u0301", "so", "so\u200b"]
    pairs = [("a", 0), ("b", 1), ("c", 2), ("d", 3), ("e", 4), ("f", 5)]
    shared = [{"text": texts[i], "label": "bad", "author": name} for name, i in pairs]
    own = [
        {"text": f"{name} {i}", "label": ("bad", "good")[i % 2], "author": name}
        for name in "abcdefgh"
        for i in range(4)
    ]
    for seed in range(8):
        task = task_from_rows([*shared, *own], cluster_column="author", validation_rows=11, seed=seed)
        sides = {
            row.cluster: n for n, part in enumerate((task.train, task.test, task.validation)) for row in part
        }
        assert all(sides[one] == sides[other] for one, other in ("ab", "cd", "ef"))
        assert {0, 2} <= set(sides.values())


def test_joined_rows_have_one_name():
    rows = [
        Example("1", "x", cluster="b"), Example("2", "y", cluster="b"), Example("3", "Y", cluster="a"),
        Example("4", "z"), Example("5", " z"), Example("6", "w"), Example("7", "v", cluster="like 4"),
    ]  # fmt: skip
    assert together(rows) == ["a", "a", "a", "like 4'", "like 4'", "", "like 4"]
    assert together(rows, clusters=False) == ["", "like 2", "like 2", "like 4", "like 4", "", ""]
    assert len(one_of_each(rows)) == 4
    assert len(one_of_each(rows, clusters=False)) == 5


def test_rows_of_one_passage_belong_together_where_asked():
    rows = [Example(str(i), f"{i} ?", context=f"passage {i // 2}") for i in range(6)]
    assert together(rows) == [""] * 6
    assert together(rows, passages=True) == ["like 0"] * 2 + ["like 2"] * 2 + ["like 4"] * 2
    # A text that all rows have, such as an instruction, tells none from another.
    same = [Example(str(i), f"{i} ?", context="Judge.") for i in range(6)]
    assert together(same, passages=True) == [""] * 6


@pytest.mark.parametrize("copies", [1, 2, 3])
@pytest.mark.parametrize("fraction", [0.1, 0.2, 0.5])
def test_copies_of_a_text_lie_on_one_side_without_a_column(copies, fraction):
    texts = [(f"text {i}", ("bad", "good", "fair")[i % 3]) for i in range(60)]
    rows = [{"text": text, "label": label} for text, label in texts for _ in range(copies)]
    rows[0] = rows[0] | {"label": "good"}  # a copy with another answer is one, too
    task = task_from_rows(rows, test_fraction=fraction, validation_rows=12)
    sides = [{row.context for row in part} for part in (task.train, task.test, task.validation)]
    assert not sides[0] & sides[1] | sides[0] & sides[2] | sides[1] & sides[2]
    assert abs(len(task.test) - fraction * len(rows)) < copies
    counts = Counter(row.label for row in task.test)
    assert max(counts.values()) - min(counts.values()) <= 2 * copies
    assert 12 - copies < len(task.validation) <= 12
    assert not [note for note in task.notes if "in train" in note]


@pytest.mark.parametrize("sizes", [[1] * 17, [9, 1, 1, 1, 5, 2], [3, 3], [4]])
def test_folds_part_no_group(sizes):
    names = [f"g{group}" for group, size in enumerate(sizes) for _ in range(size)]
    found = folds(names, 5)
    groups = len(sizes) if len(sizes) > 1 else sizes[0]
    assert sorted(set(found)) == list(range(min(5, groups)))
    if len(sizes) > 1:
        assert all(
            len({f for f, name in zip(found, names, strict=True) if name == own}) == 1 for own in names
        )
    if max(sizes) == 1 or len(sizes) == 1:
        assert found == [i % 5 for i in range(len(names))]


@pytest.mark.parametrize(
    ("rows", "given", "said"),
    [
        (ROWS, {"cluster_column": "writer"}, "no column 'writer', named by cluster_column"),
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
        (ROWS, {"cluster_column": "author", "test_fraction": 0.01}, "into 1 rows"),
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
