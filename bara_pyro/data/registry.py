"""The names that `load_task` knows: a table of real datasets, and registered tasks."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bara_pyro.data import schemas
from bara_pyro.data.schemas import Schema
from bara_pyro.data.tables import OTHER_SUFFIXES, SUFFIXES, other_kind
from bara_pyro.data.types import LETTERS, Task
from bara_pyro.errors import ConfigError, DataError, unknown
from bara_pyro.registry import Registry
from bara_pyro.untrusted.files import check_name


@dataclass(frozen=True)
class Source:
    """One dataset of the table.

    Attributes:
        hub, config: its name on the Hugging Face hub.
        paper: its name in papers.
        schema: turns a row into an `Example`.
        labels: the classes.
        columns: the columns from which the schema reads the question.
        answer: the column of the answer.
        names: names of the classes; empty if each row lists its own options.
        train: the training split; None for datasets used for evaluation only.
        test: the test split: the official validation split, as in related papers.
        hub_test: name of the test split on the hub, if it differs.
        without_train: number of leading rows of `test` that become train if a folder has no train file;
            None if the train file is required.
        note: a remark to report with a result.
    """

    hub: str
    config: str | None
    paper: str
    schema: Schema
    labels: tuple[str, ...]
    columns: tuple[str, ...]
    answer: str
    names: tuple[str, ...] = ()
    train: str | None = "train"
    test: str = "validation"
    hub_test: str | None = None
    without_train: int | None = None
    note: str = ""


# Each is a schema's function, the classes, the columns of the question and the column of the answer.
_ARC = (schemas.ai2_arc, LETTERS[:5], ("question", "choices"), "answerKey")
_OPENBOOKQA = (schemas.openbookqa, LETTERS[:4], ("question_stem", "choices"), "answerKey")
_WINOGRANDE = (schemas.winogrande, LETTERS[:2], ("sentence", "option1", "option2"), "answer")
_BOOLQ = (schemas.boolq, ("False", "True"), ("question", "passage"), "answer")
_MMLU = (schemas.mmlu, LETTERS[:4], ("question", "choices"), "answer")
_HELLASWAG = (schemas.hellaswag, LETTERS[:4], ("ctx", "endings"), "label")
_TRUTHFUL_QA = (schemas.truthful_qa, LETTERS[:13], ("question", "mc1_targets"), "mc1_targets")
_AG_NEWS = (schemas.ag_news, LETTERS[:4], ("text",), "label")

_ARC_NOTE = "five classes A to E, but most rows offer four; numeric labels 1-4 are read as A-D"
_BOOLQ_NOTE = "labels as in the dataset (True is 'True'); the code of earlier papers swaps them"
_OOD: dict[str, Any] = {
    "train": None,
    "test": "test",
    "note": "for evaluation only (out-of-distribution); its dev rows are not used",
}
_TRUTHFUL_NOTE = "options shuffled by row id (the source lists the right one first); 13 classes, A to M"

SOURCES: dict[str, Source] = {
    "arc_easy": Source("allenai/ai2_arc", "ARC-Easy", "ARC-E", *_ARC, note=_ARC_NOTE),
    "arc_challenge": Source("allenai/ai2_arc", "ARC-Challenge", "ARC-C", *_ARC, note=_ARC_NOTE),
    "openbookqa": Source("allenai/openbookqa", "main", "OBQA", *_OPENBOOKQA),
    "winogrande_s": Source("allenai/winogrande", "winogrande_s", "WG-S", *_WINOGRANDE),
    "winogrande_m": Source("allenai/winogrande", "winogrande_m", "WG-M", *_WINOGRANDE),
    "boolq": Source(
        "google/boolq", None, "BoolQ", *_BOOLQ, names=_BOOLQ[1], without_train=1600, note=_BOOLQ_NOTE
    ),
    "mmlu_college_chemistry": Source("cais/mmlu", "college_chemistry", "Chem", *_MMLU, **_OOD),
    "mmlu_college_physics": Source("cais/mmlu", "college_physics", "Phy", *_MMLU, **_OOD),
    "hellaswag": Source("Rowan/hellaswag", None, "HellaSwag", *_HELLASWAG, without_train=0),
    "truthful_qa": Source(
        "truthfulqa/truthful_qa",
        "multiple_choice",
        "TruthfulQA mc1",
        *_TRUTHFUL_QA,
        train=None,
        note=_TRUTHFUL_NOTE,
    ),
    "ag_news": Source(
        "fancyzhx/ag_news", None, "AG News", *_AG_NEWS, names=schemas.AG_NEWS_TOPICS, hub_test="test"
    ),
}


@dataclass(frozen=True)
class Generated:
    """A generated task.

    Attributes:
        name: name for `load_task`.
        paper: the dataset that it imitates, or an empty text.
        where: its origin, for lists.
        load: makes the task from a seed, with its own validation rows if it has any.
        in_world: makes the task from a seed and the seed of a world, if it has several worlds.
    """

    name: str
    paper: str
    where: str
    load: Callable[[int], Task]
    in_world: Callable[[int, int], Task] | None = None


TASKS: Registry[Generated] = Registry("task", "bara_pyro.tasks", ("bara_pyro.microworld",), of=Generated)
"""Tasks of the microworld, and tasks that installed packages offer as entry points."""


def register_task(task: Generated) -> Generated:
    """Make a task available to `load_task`.

    Raises:
        ConfigError: the name is taken, or the argument is not a `Generated`.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.data import Example, Generated, Task, register_task
        >>> def evens(seed: int) -> Task:
        ...     numbers = range(seed, seed + 60)
        ...     rows = [Example(f"evens-{n}", f"Is {n} even ? Answer:", n % 2) for n in numbers]
        ...     return Task("evens", ("yes", "no"), train=rows[:40], test=rows[40:])
        >>> made = register_task(Generated("evens", "", "made here", evens))
        >>> bp.load_task("evens", seed=7).test[0].id
        'evens-47'
    """
    if not isinstance(task, Generated):
        raise ConfigError(
            f"register_task got a {type(task).__name__}: give a bara_pyro.data.Generated, whose `load` makes "
            "the Task from a seed."
        )
    if task.name in SOURCES:
        raise ConfigError(f"The task name {task.name!r} is already registered: choose another.")
    return TASKS.register(task.name, task)


def has_worlds(name: str) -> bool:
    """Return whether a task has questions about several worlds."""
    return name in TASKS and TASKS.find(name).in_world is not None


def not_known(kind: str, name: str, known: Iterable[str]) -> DataError:
    """Return the error for a name that is neither known nor a file of rows, or a file of another type."""
    check_name(Path(name), DataError)
    if Path(name).suffix.lower() in OTHER_SUFFIXES or Path(name).is_file():
        return other_kind(name)
    return DataError(f"{unknown(kind, name, known)[:-1]}, or a file that ends in {', '.join(SUFFIXES)}.")


def task_key(name: str) -> str:
    """Return the key of `SOURCES` for a key, a paper's name, 'hub' or 'hub:config'.

    An unknown name, or a hub name with several configs, raises a `DataError`.
    """
    lowered = name.lower()
    for key, source in SOURCES.items():
        if lowered in (key, source.paper.lower(), f"{source.hub}:{source.config}".lower()):
            return key
    same_hub = [key for key, source in SOURCES.items() if lowered == source.hub.lower()]
    if len(same_hub) > 1:
        raise DataError(f"{name} has several datasets: choose one of {', '.join(sorted(same_hub))}.")
    if not same_hub:
        raise not_known("dataset", name, [*SOURCES, *TASKS])
    return same_hub[0]
