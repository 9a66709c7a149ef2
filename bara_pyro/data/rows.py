"""Turn rows into examples with stable ids, and split them; errors name the file and the row."""

import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from bara_pyro.data.clusters import compared_text, digest, places_by_group, set_shares_aside
from bara_pyro.data.reading import Rows
from bara_pyro.data.schemas import Schema
from bara_pyro.data.tables import label_text
from bara_pyro.data.tokens import check_unicode
from bara_pyro.data.types import ANSWER, Example
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
    """Turn every row into an `Example`.

    Rows without an id, in the column `ids` or else "id", "ID" or "Id", are called '<split>-<row>'; rows count
    from 1. Every row needs its answer if `answer` names that column.

    Raises:
        DataError: a row is refused by the schema, has invalid Unicode or lacks its answer, or two rows have
            the same id; the error names the place and the row.
    """
    examples: list[Example] = []
    unanswered: list[int] = []
    for number, row in enumerate(rows, start=1):
        try:
            row_id = own_id(row) if ids is None else label_text(row[ids], "its id")
            examples.append(schema(row, row_id or f"{split}-{number}"))
            check_unicode(_texts(examples[-1]), row)
        except DataError as error:
            raise DataError(f"{place}, row {number}: {error}") from None
        if answer is not None and examples[-1].label < 0:
            unanswered.append(number)
    if unanswered:
        many = f", one of {len(unanswered):,} such rows" if unanswered[1:] else ""
        raise DataError(
            f"{place}, row {unanswered[0]}: it has no answer in {answer!r}{many}: fill it in, or leave the "
            "row out."
        )
    check_ids([example.id for example in examples], place)
    return examples


def _texts(example: Example) -> tuple[str, ...]:
    texts = (example.id, example.context, example.question, example.cluster)
    return (*texts, *example.options, *example.texts)


def check_ids(ids: Sequence[str], place: str) -> None:
    """Raise a `DataError` if two rows share an id; `place` is for the error."""
    first: dict[str, int] = {}
    for number, row_id in enumerate(ids, start=1):
        if first.setdefault(row_id, number) != number:
            raise DataError(
                f"{place}, rows {first[row_id]} and {number} share the id {row_id!r}: "
                "give each row a different id, or leave 'id' out."
            )


def column_in(row: Fields, names: Iterable[str]) -> str | None:
    """Return the first of these columns that a row fills, or None."""
    return next((name for name in names if row.get(name) is not None), None)


def own_id(row: Fields) -> str:
    """Return the identifier in a row's column "id", "ID" or "Id", or an empty text.

    If it is neither text nor number, or the row has two, this raises a `DataError`.
    """
    columns = [name for name in ("id", "ID", "Id") if row.get(name) is not None]
    if len(columns) > 1:
        raise DataError(f"it has ids in {columns[0]!r} and in {columns[1]!r}: leave one of the columns out.")
    return label_text(row[columns[0]], "its id") if columns else ""


def check_disjoint(train: Sequence[Identified], test: Sequence[Identified], name: str) -> None:
    """Raise a `DataError` if a train row and a test row share an id."""
    tested = {example.id for example in test}
    shared = {example.id for example in train if example.id in tested}
    if shared:
        raise DataError(
            f"Train and test of {name} share {len(shared)} ids, such as {min(shared)!r}: give each row "
            "a different id, or leave 'id' out."
        )


def check_new(train: Sequence[Example], test: Sequence[Example], name: str) -> None:
    """Raise a `DataError` if every test row is also a training row."""
    trained = set(map(_asked, train))
    if all(_asked(row) in trained for row in test):
        raise _nothing_new(f"All {len(test)} test rows of {name}")


def same_file(name: str | Path, file: str | Path) -> bool:
    """Return whether two paths are the same file; `name` may be a task's name."""
    return Path(name).resolve() == Path(file).resolve()


def check_other_file(name: str | Path, test_file: str | Path) -> None:
    """Raise a `DataError` if the file of test rows is the file of training rows."""
    if same_file(name, test_file):
        raise _nothing_new(f"The test rows of {test_file}")


def _nothing_new(what: str) -> DataError:
    return DataError(
        f"{what} are also training rows, so a score on them says nothing about new rows: give another "
        "test_file (--test-file), or leave it out to hold out some of the rows."
    )


def _asked(example: Example) -> tuple[str, str, int]:
    return *compared_text(example), example.label


def carve(
    train: Sequence[R], rows: int, seed: int, names: Sequence[str] | None = None
) -> tuple[tuple[R, ...], tuple[R, ...]]:
    """Split `rows` examples off the end of a seeded permutation of `train`; return both parts.

    The permutation sorts by a hash of seed and id, so it does not depend on a generator's version, and a row
    stays in its part if the rows are reordered. Both parts keep the order of `train`. With `names`, the group
    of each row (`bara_pyro.data.clusters.together`), whole groups are split off as long as they fit, so there
    may be fewer than `rows`.

    Raises:
        ConfigError: `rows` is negative, or no row would remain.
        DataError: no group fits.
    """
    if rows > 0 and not train:
        raise ConfigError(f"validation_rows is {rows}, but there are no training rows: choose 0.")
    if rows < 0 or (rows and rows >= len(train)):
        raise ConfigError(
            f"validation_rows is {rows}: choose 0 or more, and fewer than the {len(train)} training rows."
        )
    order = sorted(range(len(train)), key=lambda place: digest(f"{seed}/{train[place].id}"))
    groups = places_by_group([""] * len(train) if names is None else names)
    group_of = {place: group for group in groups for place in group}
    held_out: set[int] = set()
    for place in reversed(order):
        if place not in held_out and len(held_out) + len(group_of[place]) <= rows:
            held_out.update(group_of[place])
    if rows and not held_out:
        raise DataError(
            f"No group of rows with the same text fits into {rows} rows to set aside (the smallest has "
            f"{min(map(len, groups))}): set more aside "
            "(--test-fraction, --validation-rows), or give --test-file."
        )
    kept = tuple(row for place, row in enumerate(train) if place not in held_out)
    return kept, tuple(row for place, row in enumerate(train) if place in held_out)


def first_validation(rows: Sequence[R], wanted: int, name: str) -> Sequence[R]:
    """Return the first validation rows of a generated task, as many as wanted; 0: all.

    If the task called `name` has fewer, this raises a `ConfigError`.
    """
    if not wanted:
        return rows
    if not 0 < wanted <= len(rows):
        raise ConfigError(
            f"validation_rows is {wanted}: choose 1 to {len(rows)}, the number that {name} has."
        )
    return rows[:wanted]


def too_few(place: str, what: str, rows: int, test_fraction: float, kept: int = 1) -> DataError:
    """Return the error for too few rows to hold some out, if `kept` of them must remain for training."""
    # At least one row is held out if the fraction is more than half a row; exactly half rounds to none.
    half = min(0.5 / test_fraction, sys.maxsize)
    needed = max(kept, math.floor(half)) + 1
    return DataError(
        f"{place} has too few {what} ({rows}) to hold some out for testing: give at least {needed}, or a "
        "separate test_file (--test-file)."
    )


def divide(rows: Sequence[Example], test_fraction: float) -> tuple[list[Example], list[Example]]:
    """Split rows into train and test, stratified by class.

    Within a class, the rows with the smallest hashes of their ids become test rows. The split therefore
    depends only on the ids: it is the same for every seed and order of the rows, and changes little when rows
    are added. The number of test rows is `test_fraction` of all, rounded, and is divided among classes by
    largest remainders; each class keeps at least one training row. Rows that belong together
    (`bara_pyro.data.clusters`) stay together, so the shares are then approximate. Both parts keep the order
    of `rows`.
    """
    by_class: dict[int, list[Example]] = {}
    for row in rows:
        by_class.setdefault(row.label, []).append(row)
    room = {label: len(members) - 1 for label, members in by_class.items()}
    shares = {label: test_fraction * len(members) for label, members in by_class.items()}
    counts = {label: min(int(share), room[label]) for label, share in shares.items()}
    missing = round(test_fraction * len(rows)) - sum(counts.values())
    for label in sorted(shares, key=lambda label: (int(shares[label]) - shares[label], label)):
        if missing > 0 and counts[label] < room[label]:
            counts[label] += 1
            missing -= 1
    return set_shares_aside(rows, counts)


def repeats(train: Sequence[Example], test: Sequence[Example], name: str = "test") -> list[str]:
    """Return notes on duplicates among the rows called `name`, and on leaks from train into them."""
    seen, tested = set(map(_asked, train)), list(map(_asked, test))
    notes = []
    if doubles := len(tested) - len(set(tested)):
        notes.append(f"{doubles} {name} rows repeat another {name} row")
    if leaked := sum(row in seen for row in tested):
        notes.append(f"{leaked} {name} rows are also in train")
    contexts = {compared_text(example)[0] for example in train} - {""}
    known_texts = [example for example in test if compared_text(example)[0] in contexts]
    # A text to classify is stored as the context (`data.columns.own_example`).
    if shared := sum(example.question != ANSWER for example in known_texts):
        notes.append(f"{shared} {name} rows have a context that is also in train")
    texts = set(map(compared_text, train))
    if other := sum(row[:2] in texts and row not in seen for row in tested):
        notes.append(f"{other} {name} rows have a text that is in train with another answer")
    clusters = {example.cluster for example in train if example.cluster}
    if known := sum(example.cluster in clusters for example in test):
        notes.append(f"{known} {name} rows are of a cluster that is also in train")
    return notes
