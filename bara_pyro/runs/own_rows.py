"""The rows that a run was trained and tested on: found again, and told from others."""

from pathlib import Path

from bara_pyro.data import Task, is_file_name
from bara_pyro.data.reply_tasks import ReplyTask
from bara_pyro.errors import CheckpointError, DataError
from bara_pyro.runs.config import RunConfig
from bara_pyro.runs.manifest import config_file
from bara_pyro.runs.rows import load_data, load_reply_data
from bara_pyro.runs.system import System
from bara_pyro.types import Json
from bara_pyro.untrusted.files import read_json
from bara_pyro.untrusted.schemas import RunFile

OTHER_ROWS = "test on rows of their own with `bara evaluate --task FILE`"


def own_rows(folder: Path, config: RunConfig, stored: Json) -> Task | ReplyTask:
    """Load the rows that a run was trained and tested on.

    Raises:
        CheckpointError: they were given in Python, or the run is of an earlier version, which divided a file
            otherwise.
        DataError: their file is not there.
    """
    if stored.get("columns") and not is_file_name(config.task.name):
        raise CheckpointError(
            f"{folder} was trained on rows given in Python (task {stored['task']!r}): give them again with "
            f"task=..., or {OTHER_ROWS}."
        )
    if is_file_name(config.task.name) and not Path(config.task.name).is_file():
        raise DataError(
            f"There is no file {Path(config.task.name).absolute()}, which {folder} was trained on: restore "
            f"it, work where the run was trained, or {OTHER_ROWS} (in Python: load_system(folder, task=...))."
        )
    if config.task.likelihood == "completion":
        return load_reply_data(config)
    # Earlier versions numbered rows that have no column called "id", and divided them by these numbers.
    task = load_data(config, find_ids="id" in (stored.get("columns") or {}))
    if is_file_name(config.task.name) and config.task.test_file is None and "columns" not in stored:
        raise CheckpointError(
            f"{folder} is of an earlier version, which divided {config.task.name} into other train and "
            "test rows: give the rows to test on as task (--test-file), or train again."
        )
    return task


def fingerprints(system: System) -> dict[str, str]:
    """Return what tells a system's training and test rows from others; of a stream's test rows nothing."""
    if not system.has_rows:
        return {}
    found = {"training_rows": system.encoded("train").fingerprint}
    if (system.conversations or system.task).test and not system.config.task.streaming:
        found["test_rows"] = system.encoded("test").fingerprint
    return found


def check_own_rows(system: System, folder: Path) -> None:
    """Refuse a system whose training or test rows are not those of the run in a folder.

    Of other training rows, some may be among its test rows. Nothing is known of runs of earlier versions.

    Raises:
        DataError: they are others.
    """
    stored, name = read_json(config_file(folder), RunFile), system.config.task.name
    now = fingerprints(system)
    trained_on = stored.get("training_rows")
    if trained_on is not None and now.get("training_rows") != trained_on:
        raise DataError(
            f"{name} has changed since the run was trained: among its test rows may be some that were "
            f"trained on (restore it, or {OTHER_ROWS})."
        )
    tested_on = now.get("test_rows")
    if tested_on is not None and stored.get("test_rows", tested_on) != tested_on:
        raise DataError(
            f"The test rows of {name} have changed since the run was trained, whose scores are of the rows "
            f"of then (restore them, or {OTHER_ROWS})."
        )
