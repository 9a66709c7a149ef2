"""Run lm-eval's tasks on local copies of their rows, without the hub.

Each file in tasks/ is a task of lm-eval (EleutherAI, MIT licence) renamed to "bara_<name>". Its
`data_files` are in the folder that the user gives. Missing splits, such as hidden test splits, are left out.
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
    """Load `!function` tags as text, without importing anything."""


def _as_text(loader: _LoaderOfNames, node: yaml.ScalarNode) -> Any:
    return loader.construct_scalar(node)


_LoaderOfNames.add_constructor("!function", _as_text)


def local_tasks() -> list[str]:
    """Return the names of the tasks that can read local rows, without "bara_"."""
    return sorted(path.name.removesuffix(".yaml") for path in _folder().iterdir() if path.suffix == ".yaml")


@contextmanager
def filled(names: Sequence[str], data_dir: Path, num_fewshot: int | None = None) -> Iterator[Path]:
    """Write task files that read local rows; yield their folder, for `include_path`.

    Args:
        names: names of tasks, without "bara_".
        data_dir: folder with <task>/<split>.jsonl, in the layout of each dataset on the hub.
        num_fewshot: examples before each question; None: each task's own number.

    Raises:
        DataError: a task has none of its test splits, lacks the split of its examples, or cannot use a row.
    """
    with TemporaryDirectory() as place:
        for name in names:
            text = json.dumps(_filled(_folder() / f"{name}.yaml", data_dir, num_fewshot))
            (Path(place) / f"{name}.yaml").write_text(text, encoding="utf-8")  # JSON is YAML
        yield Path(place)


def _filled(source: Path, data_dir: Path, num_fewshot: int | None) -> Json:
    """Return the content of a file that includes a task file and sets the paths of its rows."""
    task = yaml.load(source.read_text(encoding="utf-8"), Loader=_LoaderOfNames)  # noqa: S506 - a SafeLoader
    paths = {split: data_dir / file for split, file in task["dataset_kwargs"]["data_files"].items()}
    there = {split: str(path.resolve()) for split, path in paths.items() if path.is_file()}
    tested = [task[key] for key in ("test_split", "validation_split") if task.get(key)]
    if not any(split in there for split in tested):
        expected = " or ".join(str(paths[split]) for split in tested)
        raise DataError(f"There is no {expected}, which {task['task']} needs: give another --data-dir.")
    examples = task.get("num_fewshot", 0) if num_fewshot is None else num_fewshot
    split = task.get("fewshot_split") or task.get("training_split")
    if examples and split and split not in there:  # lm-eval would take them from the rows that it scores
        raise DataError(
            f"{task['task']} puts {examples} examples before each question, and their file {paths[split]} is "
            "missing: add it, or give --num-fewshot 0."
        )
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
    """Return the requested tasks that read local rows, without "bara_".

    Args:
        tasks: names given by the user, with or without "bara_".
        data_dir: folder of local rows, or None.
        others: tasks defined in the user's own files, which take precedence.

    Raises:
        ConfigError: a task for local rows has no folder, or a folder is given for a task that cannot read it.
    """
    ours = local_tasks()
    names = []
    for task in tasks:
        name = task.removeprefix(PREFIX)
        if task in others:
            continue
        if data_dir is None and task.startswith(PREFIX) and name in ours:
            raise ConfigError(f"{task} reads local rows: give their folder with --data-dir.")
        if data_dir is not None and name not in ours:
            raise ConfigError(
                f"The task {task!r} cannot read --data-dir: choose from {', '.join(ours)}, or leave out "
                "--data-dir to read the hub."
            )
        if data_dir is not None:
            names.append(name)
    return names
