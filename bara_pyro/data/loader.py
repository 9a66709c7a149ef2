"""`load_task` loads every kind of dataset: from the hub, a folder, a file, or generated."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from bara_pyro.columns import ColumnOptions, column_names
from bara_pyro.data.labels import as_letters
from bara_pyro.data.registry import SOURCES, TASKS, Source, has_worlds, task_key
from bara_pyro.data.rows import carve, check_disjoint, first_validation, repeats, to_examples
from bara_pyro.data.tables import SUFFIXES, DataTable, read_table
from bara_pyro.data.types import Example, Task
from bara_pyro.data.userfile import TEST_FRACTION, task_from_rows
from bara_pyro.errors import ConfigError, DataError, unknown
from bara_pyro.untrusted.files import check_name

LABEL_STYLES = ("auto", "words", "letters")


def load_task(
    name: str | Path,
    data_dir: str | Path | None = None,
    *,
    validation_rows: int = 0,
    seed: int = 0,
    world: int = 0,
    labels: str = "auto",
    revision: str | None = None,
    test_file: str | Path | None = None,
    test_fraction: float = TEST_FRACTION,
    classes: Sequence[str] | None = None,
    **columns: Unpack[ColumnOptions],
) -> Task:
    """Load a task by name; for rows in memory see `data.userfile.task_from_rows`.

    The test split of a real dataset is its official validation split, as in related papers.

    Args:
        name: a key of `data.registry.SOURCES`, a paper's or the hub's name for it, a registered task (such as
            the microworld's, "micro-..."), or your own .csv, .tsv, .jsonl, .json or .parquet file.
        data_dir: folder with `<key>/<split>.jsonl` in the hub's schema; default: read from the hub.
        validation_rows: rows to set aside from train, never from test, for choosing settings or for
            calibrating decisions (`rows.carve`). A generated task has its own validation rows and keeps this
            many; 0 keeps all.
        seed: seed of the choice of validation rows, and of the rows of a generated task.
        world: for microworld tasks: seed of the world the questions are about; the shipped model knows
            world 0.
        labels: "words" keeps the labels; "letters" lists them as lettered options, for tokenizers in which a
            label is several tokens (`data.labels.as_letters`); "auto" leaves the choice to
            `data.labels.encode_labels`.
        revision: commit or tag of the dataset on the hub, for reproducible results.
        test_file: your own file of test rows.
        test_fraction: without a `test_file`: share of your file's rows to hold out for testing.
        classes: for your own file without choices: the labels in class order.
        **columns: for your own file: `text_column`, `label_column`, `choices_column`, `context_column` if
            they have unusual names, and `cluster_column`; see `data.userfile.task_from_rows`.

    Returns:
        The task, with its splits as tuples and notes to report with a result.

    Raises:
        ConfigError: an option is unknown, out of range, or has no effect on this task.
        DataError: the name is unknown, a file is missing or empty, or a row is invalid (named in the error).

    Examples:
        >>> import bara_pyro as bp
        >>> task = bp.load_task("micro-wgs")
        >>> task.labels, len(task.train), len(task.test)
        (('A', 'B'), 640, 1267)
        >>> print(task.test[0].question)
        vome meets bimu . in winter bimu keeps what ? A:goats B:ducks Answer :
        >>> [round(p, 2) for p in task.test[0].truth]  # the microworld knows how likely each answer is
        [0.95, 0.05]
    """
    name = str(name)
    if labels not in LABEL_STYLES:
        raise ConfigError(unknown("label style", labels, LABEL_STYLES))
    column_names(columns)  # a keyword that is none is a mistake, whatever the task
    check_effect(
        name,
        name in TASKS,
        test_file=test_file,
        test_fraction=test_fraction,
        data_dir=data_dir,
        revision=revision,
        classes=classes,
        **columns,
    )
    check_world(name, world)
    if is_file_name(name):
        task = task_from_rows(
            name,
            test_file,
            classes=classes,
            test_fraction=test_fraction,
            validation_rows=validation_rows,
            seed=seed,
            **columns,
        )
    elif name in TASKS:
        generated = TASKS.find(name)
        task = generated.in_world(seed, world) if generated.in_world and world else generated.load(seed)
        task = replace(task, validation=first_validation(task.validation, validation_rows, name))
    else:
        task = _load_known(task_key(name), data_dir, revision)
        check_disjoint(task.train, task.test, task.name)
        notes = (*task.notes, *repeats(task.train, task.test))
        # Split row by row, as for stored results; a note reports texts that are in both parts.
        train, validation = carve(task.train, validation_rows, seed)
        notes += tuple(repeats(train, validation, "validation"))
        task = replace(task, train=train, validation=validation, notes=notes)
    return as_letters(task) if labels == "letters" else task


def check_effect(name: str, made: bool, *, test_fraction: float, **options: object) -> None:
    """Raise a `ConfigError` for the first option that has no effect on a task; None: it is not given.

    `made` is whether the task's rows are generated.
    """
    is_file = is_file_name(name)
    options["test_fraction"] = None if test_fraction == TEST_FRACTION else test_fraction
    given = {option: value for option, value in options.items() if value is not None}
    for option, value in given.items():
        of_hub = option in ("data_dir", "revision")
        if of_hub == is_file or (of_hub and made):
            what = "a file" if is_file else "generated" if made else "not a file"
            raise ConfigError(
                f"{option}={_shown(value)} has no effect on {name!r}, which is {what}: leave it out."
            )
    if {"test_file", "test_fraction"} <= given.keys():
        raise ConfigError(
            f"test_fraction={test_fraction:g} has no effect with test_file={_shown(given['test_file'])}: "
            "leave one out."
        )


def _shown(value: object) -> str:
    return repr(str(value) if isinstance(value, Path) else value)[:60]


def check_world(name: str, world: int) -> None:
    """Raise a `ConfigError` if a world is given for a task that is not the microworld's."""
    if world and not has_worlds(name):
        raise ConfigError(
            f"world={world} only applies to tasks of the microworld, and {name!r} is not one: leave it out."
        )


def is_file_name(name: str) -> bool:
    """Return whether a task's name is the path of a file of rows.

    Examples:
        >>> from bara_pyro.data import is_file_name
        >>> is_file_name("reviews.csv"), is_file_name("micro-wgs")
        (True, False)
    """
    return name.lower().endswith(SUFFIXES)


def _load_known(key: str, data_dir: str | Path | None, revision: str | None) -> Task:
    source = SOURCES[key]
    folder = None if data_dir is None else _folder_of(key, Path(data_dir))

    def examples(split: str) -> Sequence[Example]:
        if folder is None:
            return _checked(read_hub(source.hub, source.config, split, revision), source, split)
        return _checked(read_table(folder / f"{split}.jsonl"), source, split)

    test_split = source.hub_test if source.hub_test and folder is None else source.test
    train: Sequence[Example] = ()
    test, notes = examples(test_split), [_test_note(source, test_split)]
    if source.train is None:
        pass  # for evaluation only
    elif folder is None or source.without_train is None or (folder / f"{source.train}.jsonl").exists():
        train = examples(source.train)
    elif rows := min(source.without_train, len(test) - 1):
        train, test = test[:rows], test[rows:]
        notes = [f"no train file: trained on {source.test} rows 1 to {rows}, tested on the other {len(test)}"]
    else:
        notes += ["no train file, so no rows to train on"]
    if folder is None:
        where = f"{source.hub}, {source.config}" if source.config else source.hub
        notes = [f"{where} at revision {revision or 'main'}", *notes]
    notes += [source.note] if source.note else []
    notes += [f"read from {data_dir}, whatever revision {revision} holds"] if folder and revision else []
    return Task(key, source.labels, tuple(train), (), tuple(test), tuple(notes), source.names)


def _folder_of(key: str, data_dir: Path) -> Path:
    folder, source = data_dir / key, SOURCES[key]
    check_name(folder, DataError)
    if folder.is_dir():
        return folder
    known = ", ".join(child for child in sorted(SOURCES) if (data_dir / child).is_dir()) or "none"
    files = " and ".join(f"{key}/{split}.jsonl" for split in (source.train, source.test) if split)
    raise DataError(
        f"There is no folder {folder} (datasets in {data_dir}: {known}): set data_dir (--data-dir) to "
        f"the folder that holds {files}."
    )


def _test_note(source: Source, split: str) -> str:
    if split == "validation" and source.hub_test is None:
        return "tested on the official validation split, as in related papers"
    return f"tested on the {split} rows"


def _checked(table: DataTable, source: Source, split: str) -> list[Example]:
    """Turn rows into examples, and check that their labels fit the classes of the source."""
    examples = to_examples(table.rows, source.schema, table.place, split, answer=source.answer)
    for number, example in enumerate(examples, start=1):
        if example.label >= len(source.labels):
            raise DataError(
                f"{table.place}, row {number}: its answer is option {example.label + 1}, but the classes end "
                f"at {source.labels[-1]}: correct the row or leave it out."
            )
    return examples


def read_hub(hub: str, config: str | None, split: str, revision: str | None = None) -> DataTable:
    """Read one split from the Hugging Face hub (or from its local cache).

    If the hub has no such dataset, config, split or revision, or cannot be reached, this raises a
    `DataError`.
    """
    import datasets

    name = f"{hub} ({config or 'default'})"
    try:
        with quiet():
            rows = datasets.load_dataset(hub, config, split=split, revision=revision).to_list()
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        reason = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
        raise DataError(
            f"Cannot read the split {split!r} of {name} from the Hugging Face hub ({reason}): check the "
            "network, or set data_dir (--data-dir) to a folder with the files."
        ) from error
    return DataTable(f"{name}, {split}", rows)


@contextmanager
def quiet() -> Iterator[None]:
    """Hide progress bars, log lines and warnings of `datasets` and the hub client within this context."""
    import datasets

    loggers = [logging.getLogger(name) for name in ("datasets", "huggingface_hub")]
    levels = [logger.level for logger in loggers]
    bars = not datasets.are_progress_bars_disabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        datasets.disable_progress_bars()
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
            if bars:
                datasets.enable_progress_bars()
