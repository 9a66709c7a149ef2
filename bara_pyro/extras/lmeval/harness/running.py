"""Load tasks and evaluate a model on them with `lm_eval.simple_evaluate`."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import lm_eval
from datasets.exceptions import DatasetsError
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager

from bara_pyro.errors import ConfigError, DataError
from bara_pyro.extras.lmeval.harness.local import PREFIX, filled, named
from bara_pyro.lm.loading import quiet_transformers
from bara_pyro.types import Json

KEPT = ("results", "groups", "versions", "n-shot", "n-samples", "higher_is_better")
"""Parts of lm-eval's report that are kept: scores and counts, without prompts or details of the machine."""


@contextmanager
def loaded_tasks(
    tasks: Sequence[str],
    *,
    data_dir: Path | None = None,
    include_path: Path | None = None,
    num_fewshot: int | None = None,
) -> Iterator[tuple[list[object], TaskManager]]:
    """Load tasks and their rows; yield them with their task manager, for `lm_eval.simple_evaluate`.

    Args:
        tasks: names of tasks, groups or tags.
        data_dir: folder with <task>/<split>.jsonl, read instead of the hub; see
            `bara_pyro.extras.lmeval.harness.local`.
        include_path: folder of the user's own task files.
        num_fewshot: examples before each question, for which local rows are checked; None: each task's own.

    Raises:
        ConfigError: a task is unknown, or `data_dir` has no rows for it.
        DataError: rows cannot be read, because the hub cannot be reached or a file is missing or damaged.
    """
    if not tasks:
        raise ConfigError("There are no tasks: name them with --tasks, separated by commas.")
    folders = [] if include_path is None else [include_path]
    others = TaskManager(include_path=folders, include_defaults=False).all_tasks
    local = named(tasks, data_dir, others)
    with ExitStack() as stack:
        if data_dir is not None and local:
            folders = [*folders, stack.enter_context(filled(local, data_dir, num_fewshot))]
        names = [f"{PREFIX}{task.removeprefix(PREFIX)}" if _is(task, local) else task for task in tasks]
        # lm-eval reads thousands of files to list its own tasks, so do this only if one is requested.
        stock = any(task not in others and not _is(task, local) for task in tasks)
        manager = TaskManager(include_path=folders, include_defaults=stock)
        yield [part for task in dict.fromkeys(names) for part in _load(manager, task)], manager


def _is(task: str, local: Sequence[str]) -> bool:
    return task.removeprefix(PREFIX) in local


def _load(manager: TaskManager, name: str) -> list[object]:
    """Return a task, a group, or the tasks of a tag, with their rows."""
    if name not in manager.all_tasks:
        raise ConfigError(f"Unknown task {name!r}: list lm-eval's tasks with `lm-eval ls tasks`.")
    try:
        with quiet_transformers():
            loaded = manager.load([name])
    except (DatasetsError, OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].split(". ")[0].rstrip(".")
        raise DataError(
            f"The rows of {name} cannot be read ({reason}): connect to the hub, or give local rows with "
            "--data-dir."
        ) from error
    groups = loaded.get("groups", {})
    return [groups[name]] if name in groups else list(loaded["tasks"].values())


def evaluate_tasks(
    lm: LM,
    tasks: Sequence[str],
    *,
    data_dir: str | Path | None = None,
    include_path: str | Path | None = None,
    limit: int | None = None,
    num_fewshot: int | None = None,
) -> Json:
    """Evaluate a model on tasks of lm-evaluation-harness.

    Args:
        lm: a `BaraLM`, or any other model of lm-eval.
        tasks: names of tasks, groups or tags.
        data_dir: see `loaded_tasks`.
        include_path: see `loaded_tasks`.
        limit: most rows to use of each task, for trying out.
        num_fewshot: examples before each question; by default each task's own setting.

    Returns:
        `model` with its settings, `lm_eval` (the version), `limit`, and for each task its results, version
        and numbers of examples and rows. Scores are fractions, as in lm-eval, not percentages.

    Raises:
        ConfigError: a task is unknown, or needs something that the model cannot do.
        DataError: rows cannot be read.
    """
    places = {
        "data_dir": None if data_dir is None else Path(data_dir),
        "include_path": None if include_path is None else Path(include_path),
    }
    with loaded_tasks(tasks, **places, num_fewshot=num_fewshot) as (loaded, manager):
        report = lm_eval.simple_evaluate(
            model=lm,
            tasks=loaded,
            task_manager=manager,
            limit=limit,
            num_fewshot=num_fewshot,
            log_samples=False,
        )
    results = {key: report[key] for key in KEPT if key in report}
    model = lm.get_model_info() if hasattr(lm, "get_model_info") else {}
    return {"lm_eval": lm_eval.__version__, "model": model, "limit": limit, **results}
