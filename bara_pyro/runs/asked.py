"""Predictions that decisions build on: of calibration rows, and of the rows to decide."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeGuard, cast

import torch
from torch import Tensor

from bara_pyro.columns import ColumnNames, option_of
from bara_pyro.core.observing import frozen_states
from bara_pyro.data import EncodedSplit, Example, Task, batches, load_questions
from bara_pyro.data.clusters import one_of_each
from bara_pyro.data.labels import offered_of
from bara_pyro.data.questions import read_rows
from bara_pyro.data.rows import same_file
from bara_pyro.data.tables import Data, DataTable
from bara_pyro.errors import ConfigError, DataError
from bara_pyro.methods import METHODS
from bara_pyro.metrics import Uncertainty, decompose, posterior_predictive, stack_truth
from bara_pyro.posthoc.distance import Distance
from bara_pyro.runs.answers import carried
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.folder import trained_on
from bara_pyro.runs.rows import OnRows, encode_rows, longest, reading_notes, some
from bara_pyro.runs.system import System, require_answers
from bara_pyro.types import Fields, Measure

# Largest share of calibration rows that may equal training rows: short or common texts occur twice by chance.
KNOWN = 0.05


@dataclass(frozen=True, repr=False)
class ScoredRows:
    """Rows with a run's predictions.

    Attributes:
        examples: the n rows.
        split: the same rows as token ids.
        draws: float64, `S x n x C`: log-probabilities of the answers that each row offers.
        notes: remarks on the rows, such as how many were cut.
        given: the columns of each input row; empty if the rows had been read already.
    """

    examples: tuple[Example, ...]
    split: EncodedSplit
    draws: Tensor
    notes: tuple[str, ...]
    given: tuple[Fields, ...] = ()

    def __repr__(self) -> str:
        return f"ScoredRows: {len(self.examples)} rows, {self.draws.shape[2]} answers"

    @cached_property
    def log_probs(self) -> Tensor:
        """Log-probabilities averaged over draws, float64, `n x C`."""
        return posterior_predictive(self.draws)

    @cached_property
    def uncertainty(self) -> Uncertainty:
        """Uncertainty of each row, in nats."""
        return decompose(self.draws)

    @property
    def labels(self) -> Tensor:
        """The right answers, long, `n`; -1 if unknown."""
        return torch.tensor([example.label for example in self.examples])

    @property
    def truth(self) -> Tensor:
        """The true `p(answer | question)`, `n x C`; NaN if unknown."""
        return stack_truth([example.truth for example in self.examples], self.log_probs.shape[1])

    @property
    def offered(self) -> Tensor:
        """Which answers each row offers, bool, `n x C`."""
        return offered_of([len(example.options) for example in self.examples], self.log_probs.shape[1])


def ask(
    system: System,
    examples: Sequence[Example] | Data,
    name: str,
    *,
    given: ColumnNames | None = None,
    samples: int = 10,
    repeats: int = 1,
    seed: int | None = None,
    on_rows: OnRows | None = None,
    on_total: OnRows | None = None,
) -> ScoredRows:
    """Predict the answers of rows with a fitted system.

    The rows are read already or in any form that `bp.predict` takes; rows whose question is too long are left
    out. Notes call them by their name, for example "validation". For `repeats` see `core.prediction.predict`;
    other arguments are those of `bp.predict`.

    Raises:
        ConfigError: the model was trained on replies.
        DataError: every question is too long.
    """
    require_answers(system.config)
    columns: dict[str, Fields] = {}
    lost: list[str] = []
    if not are_read(examples):
        table = read_rows(cast(Data, examples), system.task, given)
        examples = load_questions(table, system.task, given=given)
        rows, lost = carried(table)
        columns = {example.id: row for example, row in zip(examples, rows, strict=True)}
    if on_total is not None:
        on_total(len(examples))
    split = encode_rows(system.config, system.backbone, system.task, examples)
    if not len(split):
        raise DataError(
            f"Every question of the {name} rows is longer than {longest(system.config, system.backbone)} "
            "tokens: give shorter questions."
        )
    draws = draw(system, split, samples, repeats=repeats, seed=seed, on_rows=on_rows)
    by_id = {example.id: example for example in examples}
    answered = tuple(by_id[row_id] for row_id in split.ids)
    notes = (*reading_notes(system.config, system.backbone, split, name), *lost)
    cells = tuple(columns[row_id] for row_id in split.ids) if columns else ()
    return ScoredRows(answered, split, draws, notes, cells)


def are_read(rows: Sequence[Example] | Data) -> TypeGuard[Sequence[Example]]:
    """Return whether rows are examples, and not yet to be read."""
    return isinstance(rows, list | tuple) and all(isinstance(row, Example) for row in rows)


def calibration_rows(
    system: System, file: Data | None = None, *, given: ColumnNames | None = None, answers: bool = True
) -> Sequence[Example]:
    """Return held-out rows that are independent of each other, to calibrate a decision with.

    Args:
        system: fitted; needs its own rows only if no file is given.
        file: rows like the training rows, as a file or in memory; default: the task's validation rows.
        given: columns of the file, if their names differ from the training rows'.
        answers: whether each row needs its answer.

    Raises:
        ConfigError: the run's method was fitted to its validation rows.
        DataError: there are no rows; or the file cannot be read, contains training rows, or lacks the
            cluster column.
    """
    return independent(system, known_rows(system, file, given=given, answers=answers), file, given)


def known_rows(
    system: System, file: Data | None = None, *, given: ColumnNames | None = None, answers: bool = True
) -> Sequence[Example]:
    """Return held-out rows with known answers: those of a file, or the task's validation rows.

    Arguments and errors are those of `calibration_rows`.
    """
    if file is None:
        return _validation_rows(system)
    if isinstance(file, str | Path) and same_file(system.config.task.name, file):
        raise DataError(
            f"{file} holds the training rows, on which the run is overconfident: give held-out rows "
            "(--calibration FILE), or train with validation_rows (--validation-rows)."
        )
    rows = load_questions(file, system.task, given=given, answers=answers)
    if len(known := trained_on(rows, system.config, system.task)) > KNOWN * len(rows):
        raise DataError(
            f"{len(known)} of the {len(rows)} rows of {_place(file)} are training rows, for example "
            f"{known[0].id!r}, and the run is overconfident on these: leave them out."
        )
    return rows


def _place(rows: Data) -> str:
    return str(rows) if isinstance(rows, str | Path) else "the calibration rows"


def _validation_rows(system: System) -> Sequence[Example]:
    method = system.config.method
    if METHODS[method.name].uses_validation(method):
        raise ConfigError(
            f"The method {method.name!r} was fitted to the validation rows, so they cannot calibrate "
            "decisions: give other rows (--calibration FILE)."
        )
    if not system.task.validation:
        raise DataError(
            f"The task {system.task.name!r} has no validation rows to calibrate with: give rows as a "
            "file (--calibration FILE), or train with validation_rows (--validation-rows)."
        )
    return system.task.validation


def clustered_by(task: Task, given: ColumnNames | None = None) -> str | None:
    """Return the column of clusters of a user's rows, or None if there is none."""
    named = None if given is None else given.cluster
    return named or (None if task.columns is None else task.columns.cluster)


def independent(
    system: System, rows: Sequence[Example], file: Data | None = None, given: ColumnNames | None = None
) -> Sequence[Example]:
    """Return one row of each group of rows that belong together (`bara_pyro.data.clusters`).

    The guarantees of decisions hold for independent rows. Rows with the same text always belong together;
    rows of one cluster do if the run was trained with a cluster column, or one is given, which the rows must
    have (`DataError`).
    """
    cluster = clustered_by(system.task, None if file is None else given)
    if cluster is not None and not any(row.cluster for row in rows):
        place = "the validation rows" if file is None else _place(file)
        raise DataError(
            f"There is no column {cluster!r} in {place}, which says which rows belong together: add it, or "
            f"name it with {option_of('cluster')}."
        )
    return one_of_each(rows, clusters=cluster is not None)


def rows_to_decide(
    system: System, file: Data | None = None, *, given: ColumnNames | None = None
) -> Sequence[Example] | DataTable:
    """Return the rows of a file, or by default the test rows; a `DataError` if there are none.

    Answers may be missing.
    """
    if file is None:
        return some(system.task.test, system.task.name, "test")
    return read_rows(file, system.task, given)


def fitted_distance(system: System) -> Distance:
    """Return the distance from a run's training rows; a `ConfigError` if it lacks `distance_aware`."""
    distance = system.corrections.distance
    if distance is None or not distance.fitted:
        raise ConfigError(
            "This run cannot measure the distance from its training rows: train with distance_aware=True "
            "(--distance-aware), or use by='total' (--by total)."
        )
    return distance


def measured(system: System, asked: ScoredRows, by: Measure) -> Tensor:
    """Return the uncertainty of each row by a measure, float64, `n`; see `bara_pyro.types.Measure`.

    For "distance" the run needs `distance_aware`; see `fitted_distance`.
    """
    if by != "distance":
        values: Tensor = getattr(asked.uncertainty, by)
        return values
    distance = fitted_distance(system)
    place = {row_id: i for i, row_id in enumerate(asked.split.ids)}
    squares = torch.empty(len(place), dtype=torch.float64)
    size, device = system.config.predict.batch_size, system.backbone.device
    for batch in batches(asked.split, system.answer_ids, size, by_length=True):
        states = frozen_states(system.model, batch.to(device))
        squares[[place[row_id] for row_id in batch.ids]] = distance.squares(states).double().cpu()
    return squares
