"""From rows to examples: stable ids, and errors that name the file and the row."""

import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from bara_pyro.data.cells import label_text
from bara_pyro.data.clusters import compared_text, places_by_group, set_shares_aside
from bara_pyro.data.on_disk import take
from bara_pyro.data.reading import Rows
from bara_pyro.data.schemas import ANSWER, Schema, digest
from bara_pyro.data.types import Example
from bara_pyro.data.unicode import check_unicode
from bara_pyro.errors import ConfigError, DataError
from bara_pyro.types import Fields


class Identified(Protocol):
    """A row with a stable identifier."""

    @property
    def id(self) -> str: ...  # noqa: D102


R = TypeVar("R", bound=Identified)


def to_examples(
    rows: Rows,
    schema: Schema,
    place: str,
    split: str,
    *,
    answer: str | None = None,
    ids: str | None = None,
) -> list[Example]:
    """Turn every row of a file or hub split (`place`, for errors) into an `Example`.

    A row's id is its own where it has one (in a column "id", in capitals or not, or in that called `ids`),
    else '<split>-<row>'; rows count from 1 in ids and in errors.

    Raises:
        DataError: a row that the schema refuses, that is not valid Unicode or that lacks its answer (where
            the column of one is given), or two rows with one id (results are stored under it).
    """
    examples: list[Example] = []
    for number, row in enumerate(rows, start=1):
        try:
            found = own_id(row) if ids is None else label_text(row[ids], "its id")
            examples.append(schema(row, found or f"{split}-{number}"))
            check_unicode(_texts(examples[-1]), row)
        except DataError as error:
            raise DataError(f"{place}, row {number}: {error}") from None
        if answer is not None and examples[-1].label < 0:
            raise DataError(
                f"{place}, row {number}: it has no answer in {answer!r}: fill it in, or leave the row out."
            )
    check_ids([example.id for example in examples], place)
    return examples


def _texts(example: Example) -> tuple[str, ...]:
    asked = (example.id, example.context, example.question, example.cluster)
    return (*asked, *example.options, *example.texts)


def check_ids(ids: Sequence[str], place: str, numbers: Sequence[int] | None = None) -> None:
    """Raise `DataError` where two rows share an id; `place` says where they are, `numbers` which they are."""
    first: dict[str, int] = {}
    for number, row_id in zip(numbers or range(1, len(ids) + 1), ids, strict=True):
        if first.setdefault(row_id, number) != number:
            raise DataError(
                f"{place}, rows {first[row_id]} and {number} share the id {row_id!r}: "
                "give each row its own, or leave 'id' out."
            )


def column_in(row: Fields, names: Iterable[str]) -> str | None:
    """Return the first of these columns in which a row has something; None where it has none."""
    return next((name for name in names if row.get(name) is not None), None)


def own_id(row: Fields) -> str:
    """Return the identifier in a row's column "id", "ID" or "Id"; an empty text where it has none.

    Raises:
        DataError: it is no text or number, or the row has two.
    """
    found = [name for name in ("id", "ID", "Id") if row.get(name) is not None]
    if len(found) > 1:
        raise DataError(f"its ids are in {found[0]!r} and in {found[1]!r}: leave one of the columns out.")
    return label_text(row[found[0]], "its id") if found else ""


def check_disjoint(train: Sequence[Identified], test: Sequence[Identified], name: str) -> None:
    """Raise `DataError` where a train row and a test row share an id."""
    tested = {example.id for example in test}
    shared = {example.id for example in train if example.id in tested}
    if shared:
        raise DataError(
            f"Train and test of {name} share {len(shared)} ids, such as {min(shared)!r}: give each row "
            "its own, or leave 'id' out."
        )


def check_new(train: Sequence[Example], test: Sequence[Example], name: str) -> None:
    """Raise `DataError` where every test row stands in train: a score on them tells of no other row."""
    trained = set(map(_asked, train))
    if all(_asked(row) in trained for row in test):
        raise _nothing_new(f"All {len(test)} test rows of {name}")


def same_file(name: str | Path, file: str | Path) -> bool:
    """Return whether two names, of which one may be that of a task, are of one file, however spelled."""
    return Path(name).resolve() == Path(file).resolve()


def check_other_file(name: str | Path, test_file: str | Path) -> None:
    """Raise `DataError` where the file of test rows is that of the training rows."""
    if same_file(name, test_file):
        raise _nothing_new(f"The test rows, those of {test_file},")


def _nothing_new(what: str) -> DataError:
    return DataError(
        f"{what} are training rows, too, and say nothing of others: give other rows as test_file "
        "(--test-file), or leave it out, and some of the rows are set aside to test on."
    )


def _asked(example: Example) -> tuple[str, str, int]:
    return *compared_text(example), example.label


def carve(
    train: Sequence[R], rows: int, seed: int, names: Sequence[str] | None = None
) -> tuple[Sequence[R], Sequence[R]]:
    """Split `rows` examples off the end of a seeded permutation of `train`.

    The permutation sorts by a hash of seed and id, so it depends on no generator's version and a row keeps
    its side when others are reordered. What stays keeps the order of the file. Rows on the disk stay there,
    others are returned as tuples.

    Args:
        train: to split.
        rows: how many.
        seed: of the permutation.
        names: the group of each row (`bara_pyro.data.clusters.together`), which is split off whole where it
            still fits, so that there may be fewer rows than asked for; None: each row is alone.

    Raises:
        ConfigError: fewer than 0 rows, or no row would be left to train on.
        DataError: no group fits.
    """
    if rows > 0 and not train:
        raise ConfigError(f"validation_rows is {rows}, but there are no train rows to take them from.")
    if rows < 0 or (rows and rows >= len(train)):
        raise ConfigError(
            f"validation_rows is {rows}: choose 0 or more, and fewer than the {len(train)} train rows."
        )
    held_out = np.zeros(len(train), dtype=bool)
    if rows:
        keys = (bytes.fromhex(digest(f"{seed}/{example.id}")) for example in train)
        order = np.argsort(np.fromiter(keys, "S32", len(train)), kind="stable")
        if names is None:
            held_out[order[len(train) - rows :]] = True
        else:
            held_out[_whole(order[::-1].tolist(), places_by_group(names), rows)] = True
    return take(train, np.flatnonzero(~held_out)), take(train, np.flatnonzero(held_out))


def _whole(order: Sequence[int], groups: Sequence[Sequence[int]], most: int) -> list[int]:
    """Return at most so many rows: in this order, each with its whole group, where that fits."""
    group_of = {row: group for group in groups for row in group}
    taken: set[int] = set()
    for row in order:
        if row not in taken and len(taken) + len(group_of[row]) <= most:
            taken.update(group_of[row])
    if not taken:
        raise DataError(
            f"No rows of one text can be set aside whole among at most {most} (the fewest of one are "
            f"{min(map(len, groups))}): set more rows aside, or bring them in a file of their own."
        )
    return sorted(taken)


def first_validation(rows: Sequence[R], wanted: int, name: str) -> Sequence[R]:
    """Return so many of the validation rows that a task which is made has of its own; 0: all.

    Raises:
        ConfigError: the task, which goes by `name`, has fewer.
    """
    if not wanted:
        return rows
    if not 0 < wanted <= len(rows):
        raise ConfigError(f"validation_rows is {wanted}: choose 1 to {len(rows)} (all that {name} has).")
    return rows[:wanted]


def too_few(place: str, what: str, rows: int, test_fraction: float, kept: int = 1) -> DataError:
    """Return the error for `rows` rows of which none can be tested on where `kept` have to be trained on."""
    # The fewest of which the fraction is more than half a row; half of one is rounded to none.
    half = min(0.5 / test_fraction, sys.maxsize)
    needed = max(kept, math.floor(half)) + 1
    return DataError(
        f"{place} has too few {what} ({rows}) to set some aside to test on: at least {needed} are needed, or "
        "test rows of their own as test_file (--test-file)."
    )


def divide(rows: Sequence[Example], test_fraction: float) -> tuple[list[Example], list[Example]]:
    """Divide rows into train and test, stratified: each class gives its share of test rows.

    Within a class, the rows with the smallest hashes of their ids are tested on. So the division follows from
    the ids alone: it is the same for every seed and order of the rows, and mostly stays when rows are added.
    Shares are rounded so that the test rows are the nearest whole number to `test_fraction` of all (largest
    remainders), and a class keeps at least one row to train on. Rows that belong together
    (`bara_pyro.data.clusters`) stay together, and shares are then as near as that allows. Both parts keep the
    order of `rows`.
    """
    by_class: dict[int, list[Example]] = {}
    for row in rows:
        by_class.setdefault(row.label, []).append(row)
    room = {label: len(members) - 1 for label, members in by_class.items()}
    shares = {label: test_fraction * len(members) for label, members in by_class.items()}
    counts = {label: min(int(share), room[label]) for label, share in shares.items()}
    wanted = round(test_fraction * len(rows)) - sum(counts.values())
    for label in sorted(shares, key=lambda label: (int(shares[label]) - shares[label], label)):
        if wanted > 0 and counts[label] < room[label]:
            counts[label] += 1
            wanted -= 1
    return set_shares_aside(rows, counts)


def repeats(train: Sequence[Example], test: Sequence[Example], name: str = "test") -> list[str]:
    """Return a note for each kind of question that rows called `name` repeat: a leak, or a double count."""
    seen, tested = set(map(_asked, train)), list(map(_asked, test))
    notes = []
    if doubles := len(tested) - len(set(tested)):
        notes.append(f"{doubles} {name} rows repeat another {name} row")
    if leaked := sum(row in seen for row in tested):
        notes.append(f"{leaked} {name} rows also stand in train")
    contexts = {compared_text(example)[0] for example in train} - {""}
    known_texts = [example for example in test if compared_text(example)[0] in contexts]
    # A text to be classified stands where questions have a context (`data.generic.own_example`).
    if shared := sum(example.question != ANSWER for example in known_texts):
        notes.append(f"{shared} {name} rows ask about a context that also stands in train")
    texts = set(map(compared_text, train))
    if other := sum(row[:2] in texts and row not in seen for row in tested):
        notes.append(f"{other} {name} rows have a text that stands in train with another answer")
    clusters = {example.cluster for example in train if example.cluster}
    if known := sum(example.cluster in clusters for example in test):
        notes.append(f"{known} {name} rows are of a cluster that also stands in train")
    return notes
