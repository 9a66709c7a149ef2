"""`load_replies`: one door to prompts with replies, whether on the hub, in a folder, in a file or made."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bara_pyro.data.conversations import Conversation, conversations_in, load_conversations
from bara_pyro.data.loader import is_file_name
from bara_pyro.data.reading import read_hub, read_split
from bara_pyro.data.registry import SUFFIXES
from bara_pyro.data.rows import carve, check_disjoint
from bara_pyro.data.tables import Data, Table
from bara_pyro.errors import ConfigError, DataError, unknown
from bara_pyro.registry import Registry


@dataclass(frozen=True)
class ReplyTask:
    """Prompts with replies to be learnt.

    Attributes:
        name: the name it is known under.
        train, validation, test: the splits; `validation` may be empty.
        notes: facts worth reporting with a result.
    """

    name: str
    train: Sequence[Conversation] = ()
    validation: Sequence[Conversation] = ()
    test: Sequence[Conversation] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReplySource:
    """One dataset of the table.

    Attributes:
        hub, config: where it lives on the Hugging Face hub.
        folder: of a local copy, below `data_dir`.
        test: the split tested on.
        spoken: plain prompts are what a user says, and go through the chat template.
        note: what a reader of a result has to know.
    """

    hub: str
    config: str | None
    folder: str
    test: str = "test"
    spoken: bool = False
    note: str = ""


REPLY_SOURCES = {
    "ultrafeedback": ReplySource(
        "trl-lib/ultrafeedback_binarized", None, "ultrafeedback_binarized", spoken=True, note="chosen replies"
    ),
    "gsm8k": ReplySource("openai/gsm8k", "main", "gsm8k"),
}


@dataclass(frozen=True)
class GeneratedReplies:
    """A task of replies that is made, not read.

    Attributes:
        name: what `load_replies` takes.
        where: where it comes from, for lists.
        load: makes it from a seed, with validation rows of its own where it has any.
    """

    name: str
    where: str
    load: Callable[[int], ReplyTask]


REPLY_TASKS: Registry[GeneratedReplies] = Registry(
    "task of replies", "bara_pyro.reply_tasks", ("bara_pyro.microworld",)
)
"""Those of the microworld, and those that installed packages offer as entry points."""


def is_reply_task(name: str) -> bool:
    """Return whether a name is that of a known task of replies."""
    return name in REPLY_SOURCES or name in REPLY_TASKS


def load_replies(
    name: str,
    data_dir: str | Path | None = None,
    *,
    validation_rows: int = 0,
    seed: int = 0,
    revision: str | None = None,
    test_file: str | Path | None = None,
    test_fraction: float = 0.2,
) -> ReplyTask:
    """Load prompts with replies by name; see `replies_from_rows` for rows that are in memory.

    Args:
        name: a key of `REPLY_SOURCES`, a task that registered itself ("micro-chat"), or the path of a file of
            one's own in one of the formats of `data.conversations.load_conversations`.
        data_dir: folder with `<dataset>/<split>.jsonl` in the hub's schema; without it the hub is asked.
        validation_rows: rows carved off train, never off test.
        seed: of that choice, and of the rows of a task that is made.
        revision: commit or tag of the hub dataset.
        test_file: for a file of one's own: the rows to test on.
        test_fraction: for a file of one's own without `test_file`: the share of rows to test on.

    Raises:
        ConfigError: an option is out of range.
        DataError: unknown name, missing or empty file, or a row that cannot be used (file and row are named).
    """
    if is_file_name(name):
        return replies_from_rows(
            name, test_file, test_fraction=test_fraction, validation_rows=validation_rows, seed=seed
        )
    if name in REPLY_TASKS:
        return _made(REPLY_TASKS.find(name), validation_rows, seed)
    if name not in REPLY_SOURCES:
        known = unknown("task of replies", name, [*REPLY_SOURCES, *REPLY_TASKS])[:-1]
        raise DataError(f"{known}, or a file that ends in {', '.join(SUFFIXES)}.")
    source = REPLY_SOURCES[name]

    def split(kind: str) -> list[Conversation]:
        if data_dir is None:
            rows = read_hub(source.hub, source.config, kind, revision)
            place = f"{source.hub}, {kind}"
        else:
            path = Path(data_dir) / source.folder / f"{kind}.jsonl"
            rows, place = read_split(path), str(path)
        found = conversations_in(Table(place, rows), kind)
        return [row.spoken() for row in found] if source.spoken else found

    where = f"{source.hub} at revision {revision or 'main'}" if data_dir is None else f"read from {data_dir}"
    notes = (where, f"tested on the {source.test} rows", *([source.note] if source.note else []))
    train, validation = carve(split("train"), validation_rows, seed)
    return ReplyTask(name, train, validation, tuple(split(source.test)), notes)


def replies_from_rows(
    data: Data,
    test: Data | None = None,
    *,
    name: str | None = None,
    test_fraction: float = 0.2,
    validation_rows: int = 0,
    seed: int = 0,
) -> ReplyTask:
    """Make a task of prompts with replies of one's own; arguments as of `data.userfile.task_from_rows`.

    Raises:
        DataError: rows that cannot be read, or too few to test on some.
        ConfigError: `test_fraction` is not between 0 and 1, or `validation_rows` is out of range.
    """
    if not 0 < test_fraction < 1:
        raise ConfigError(f"test_fraction is {test_fraction}: choose a number between 0 and 1.")
    name = name or (Path(data).stem if isinstance(data, str | Path) else "replies")
    train: Sequence[Conversation] = load_conversations(data)
    tested: Sequence[Conversation]
    if test is None:
        count = round(test_fraction * len(train))
        if not 0 < count < len(train):
            raise DataError(f"{name} has too few rows ({len(train)}) to split: give a test file.")
        note = f"{count} of {len(train)} rows tested on, chosen by a hash of their ids"
        train, tested = carve(train, count, 0)
    else:
        tested, note = load_conversations(test, "test"), "tested on rows of their own"
    check_disjoint(train, tested, name)
    kept, validation = carve(train, validation_rows, seed)
    return ReplyTask(name, kept, validation, tuple(tested), (note,))


def _made(made: GeneratedReplies, validation_rows: int, seed: int) -> ReplyTask:
    task = made.load(seed)
    if not validation_rows:
        return task
    if not 0 < validation_rows <= len(task.validation):
        raise ConfigError(
            f"validation_rows is {validation_rows}: choose 1 to {len(task.validation)} (all that {made.name} "
            "has)."
        )
    return replace(task, validation=task.validation[:validation_rows])
