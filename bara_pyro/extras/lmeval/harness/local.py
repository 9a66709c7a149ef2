"""Tasks on the user's own copies of the rows, without the hub: lm-eval's prompts and metrics, another source.

A file in tasks/ is one of lm-eval's own (EleutherAI, MIT licence) as "bara_<name>", whose `data_files` stand
below the folder that the user gives. Splits that are not there are left out, as a hidden test split is.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import as_file, files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from bara_pyro.errors import ConfigError, DataError
from bara_pyro.extras.lmeval.harness.checking import check_task_rows
from bara_pyro.types import Json

PREFIX = "bara_"
SPLITS = ("training_split", "validation_split", "test_split", "fewshot_split")


class _LoaderOfNames(yaml.SafeLoader):
    """Reads the name of a function as text: nothing is imported."""


def _as_text(loader: _LoaderOfNames, node: yaml.ScalarNode) -> Any:
    return loader.construct_scalar(node)


_LoaderOfNames.add_constructor("!function", _as_text)


def local_tasks() -> list[str]:
    """Return the names of the tasks that there are for local rows, without "bara_"."""
    return sorted(path.name.removesuffix(".yaml") for path in _folder().iterdir() if path.suffix == ".yaml")


@contextmanager
def filled(names: Sequence[str], data_dir: Path) -> Iterator[Path]:
    """Write task files whose rows are those of a folder; yield the folder they are in, for `include_path`.

    Args:
        names: of tasks, without "bara_".
        data_dir: holds <task>/<split>.jsonl, in the layout of each dataset on the hub.

    Raises:
        DataError: none of the splits that a task is tested on is there, or a row cannot be used.
    """
    with TemporaryDirectory() as place:
        for name in names:
            text = json.dumps(_filled(_folder() / f"{name}.yaml", data_dir))
            (Path(place) / f"{name}.yaml").write_text(text, encoding="utf-8")  # JSON is YAML
        yield Path(place)


def _filled(source: Path, data_dir: Path) -> Json:
    """Return what a task file says of its rows, as a file that includes it and gives their places."""
    task = yaml.load(source.read_text(encoding="utf-8"), Loader=_LoaderOfNames)  # noqa: S506 - a SafeLoader
    paths = {split: data_dir / file for split, file in task["dataset_kwargs"]["data_files"].items()}
    there = {split: str(path.resolve()) for split, path in paths.items() if path.is_file()}
    tested = [task[key] for key in ("test_split", "validation_split") if task.get(key)]
    if not any(split in there for split in tested):
        wanted = " or ".join(str(paths[split]) for split in tested)
        raise DataError(f"There is no {wanted}, which {task['task']} is tested on: give another --data-dir.")
    check_task_rows(source, [paths[split] for split in there])
    absent = {key: None for key in SPLITS if task.get(key) is not None and task[key] not in there}
    return {
        "include": str(source.resolve()),
        "task": task["task"],
        "dataset_kwargs": {"data_files": there},
        **absent,
    }


def _folder() -> Path:
    with as_file(
        files("bara_pyro.extras.lmeval.harness") / "tasks"
    ) as folder:  # the package is installed unpacked
        return folder


def named(tasks: Sequence[str], data_dir: Path | None, others: Sequence[str] = ()) -> list[str]:
    """Return which of the tasks asked for read local rows, without "bara_".

    Args:
        tasks: as the user names them, with or without "bara_".
        data_dir: where local rows are; None: nowhere.
        others: tasks of the user's own files, which are theirs whatever their names are.

    Raises:
        ConfigError: a task for local rows is asked for without a folder, or a folder is given with a task
            that does not read it.
    """
    ours = local_tasks()
    found = []
    for task in tasks:
        name = task.removeprefix(PREFIX)
        if task in others:
            continue
        if data_dir is None and task.startswith(PREFIX) and name in ours:
            raise ConfigError(f"{task} reads rows of your own: give their folder with --data-dir.")
        if data_dir is not None and name not in ours:
            raise ConfigError(
                f"There is no task {task!r} for the rows of --data-dir: choose of {', '.join(ours)}, or "
                "leave out --data-dir, with which lm-eval's own tasks read the hub."
            )
        if data_dir is not None:
            found.append(name)
    return found
