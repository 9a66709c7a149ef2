"""Load the rows that a run was trained and tested on, and check that they have not changed."""

from collections.abc import Sequence
from pathlib import Path

from bara_pyro.data import Example, Task, as_asked, is_file_name
from bara_pyro.data.clusters import compared_text
from bara_pyro.data.reply_tasks import ReplyTask
from bara_pyro.errors import BaraError, CheckpointError, DataError
from bara_pyro.runs.config import RunConfig
from bara_pyro.runs.manifest import CONFIG
from bara_pyro.runs.rows import load_data, load_rows
from bara_pyro.runs.system import System
from bara_pyro.types import Json
from bara_pyro.untrusted.files import read_json
from bara_pyro.untrusted.schemas import RunFile

OTHER_ROWS = "test on other rows with `bara evaluate --task FILE`"


def own_rows(folder: Path, config: RunConfig, stored: Json) -> Task | ReplyTask:
    """Load the rows that a run was trained and tested on.

    Rows given in Python raise a `CheckpointError`, a file that does not exist a `DataError`.
    """
    if stored["columns"] and not is_file_name(config.task.name):
        raise CheckpointError(
            f"{folder} was trained on rows given in Python (task {stored['task']!r}): give them again with "
            f"task=..., or {OTHER_ROWS}."
        )
    if is_file_name(config.task.name) and not Path(config.task.name).is_file():
        raise DataError(
            f"The file {Path(config.task.name).absolute()}, on which {folder} was trained, does not exist: "
            f"restore it, work in the run's own directory, or {OTHER_ROWS}."
        )
    return load_rows(config)


def check_own_rows(system: System, folder: Path) -> None:
    """Raise a `DataError` if a system's training or test rows differ from those of the run in a folder.

    If the training rows have changed, some of them may now be test rows. A run that was saved without its
    rows has no fingerprints and passes.
    """
    stored, name = read_json(folder / CONFIG, RunFile), system.config.task.name
    now = system.fingerprints()
    trained_on = stored.get("training_rows")
    if trained_on is not None and now.get("training_rows") != trained_on:
        raise DataError(
            f"{name} has changed since the run was trained, so its test rows may include training rows: "
            f"restore it, or {OTHER_ROWS}."
        )
    tested_on = now.get("test_rows")
    if tested_on is not None and stored.get("test_rows", tested_on) != tested_on:
        raise DataError(
            f"The test rows of {name} have changed since the run was scored on them: restore them, or "
            f"{OTHER_ROWS}."
        )


def trained_on(rows: Sequence[Example], config: RunConfig, asked: Task) -> list[Example]:
    """Return the rows whose text is among the run's training rows, whatever their ids.

    Returns no rows if the training rows were given in Python, or if their file is missing or unreadable. Only
    the labels, names and columns of the run's task are used.
    """
    name = config.task.name
    if config.task.likelihood == "completion" or not is_file_name(name) or not Path(name).is_file():
        return []
    try:
        task = as_asked(load_data(config), asked.labels, asked.names)
    except BaraError:
        return []
    known = set(map(compared_text, task.train))
    return [row for row in rows if compared_text(row) in known]
