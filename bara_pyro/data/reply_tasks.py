"""`load_replies` loads prompts with replies: from the hub, a folder, a file, or generated."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bara_pyro.data.clusters import as_compared, digest
from bara_pyro.data.conversations import Conversation, conversations_in, load_conversations
from bara_pyro.data.loader import check_effect, is_file_name, read_hub
from bara_pyro.data.registry import not_known
from bara_pyro.data.rows import carve, check_disjoint, check_other_file, first_validation, too_few
from bara_pyro.data.tables import Data, read_table
from bara_pyro.data.types import split_counts
from bara_pyro.data.userfile import TEST_FRACTION
from bara_pyro.errors import ConfigError
from bara_pyro.registry import Registry


@dataclass(frozen=True, repr=False)
class ReplyTask:
    """Prompts with replies to learn.

    Attributes:
        name: name of the task.
        train, validation, test: the splits; `validation` may be empty.
        notes: facts to report with a result.
    """

    name: str
    train: Sequence[Conversation] = ()
    validation: Sequence[Conversation] = ()
    test: Sequence[Conversation] = ()
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"ReplyTask {self.name!r}: {self.counts}"

    @property
    def counts(self) -> str:
        """The number of rows of each split, as text."""
        return split_counts(self.train, self.validation, self.test)


@dataclass(frozen=True)
class ReplySource:
    """One dataset of the table.

    Attributes:
        hub, config: its name on the Hugging Face hub; the last part is the folder of a local copy.
        spoken: whether plain prompts are messages of a user, for the chat template.
        note: a remark to report with a result.
    """

    hub: str
    config: str | None
    spoken: bool = False
    note: str = ""


REPLY_SOURCES = {
    "ultrafeedback": ReplySource("trl-lib/ultrafeedback_binarized", None, spoken=True, note="chosen replies"),
    "gsm8k": ReplySource("openai/gsm8k", "main"),
}


@dataclass(frozen=True)
class GeneratedReplies:
    """A generated task of replies.

    Attributes:
        name: name for `load_replies`.
        where: its origin, for lists.
        load: makes the task from a seed, with its own validation rows if it has any.
    """

    name: str
    where: str
    load: Callable[[int], ReplyTask]


REPLY_TASKS: Registry[GeneratedReplies] = Registry(
    "task of replies", "bara_pyro.reply_tasks", ("bara_pyro.microworld",), of=GeneratedReplies
)
"""Tasks of the microworld, and tasks that installed packages offer as entry points."""


def is_reply_task(name: str) -> bool:
    """Return whether a name is a known task of replies."""
    return name in REPLY_SOURCES or name in REPLY_TASKS


def load_replies(
    name: str | Path,
    data_dir: str | Path | None = None,
    *,
    validation_rows: int = 0,
    seed: int = 0,
    revision: str | None = None,
    test_file: str | Path | None = None,
    test_fraction: float = TEST_FRACTION,
) -> ReplyTask:
    """Load prompts with replies by name; for rows in memory see `replies_from_rows`.

    Args:
        name: a key of `REPLY_SOURCES`, a registered task ("micro-chat"), or the path of your own file in one
            of the formats of `data.conversations.load_conversations`.
        data_dir: folder with `<dataset>/<split>.jsonl` in the hub's schema; default: read from the hub.
        validation_rows: rows to set aside from train, never from test.
        seed: seed of the choice of validation rows, and of the rows of a generated task.
        revision: commit or tag of the dataset on the hub.
        test_file: your own file of test rows.
        test_fraction: without a `test_file`: share of your file's rows to hold out for testing.

    Raises:
        ConfigError: an option is out of range.
        DataError: the name is unknown, a file is missing or empty, or a row is invalid (named in the error).

    Examples:
        >>> import bara_pyro as bp
        >>> task = bp.load_replies("micro-chat")
        >>> print(task.test[0].prompt, "|", task.test[0].reply)
        tell three things about tode in summer . reply : |  sells silk . holds nets . keeps horses .
    """
    name = str(name)
    check_effect(
        name,
        name in REPLY_TASKS,
        test_file=test_file,
        test_fraction=test_fraction,
        data_dir=data_dir,
        revision=revision,
    )
    if is_file_name(name):
        if test_file is not None:
            check_other_file(name, test_file)
        return replies_from_rows(
            name, test_file, test_fraction=test_fraction, validation_rows=validation_rows, seed=seed
        )
    if name in REPLY_TASKS:
        generated = REPLY_TASKS.find(name).load(seed)
        return replace(generated, validation=first_validation(generated.validation, validation_rows, name))
    if name not in REPLY_SOURCES:
        raise not_known("task of replies", name, [*REPLY_SOURCES, *REPLY_TASKS])
    source = REPLY_SOURCES[name]
    split = partial(_split, source, data_dir, revision)
    where = f"{source.hub} at revision {revision or 'main'}" if data_dir is None else f"read from {data_dir}"
    notes = (where, "tested on the test rows", *([source.note] if source.note else []))
    train, validation = carve(split("train"), validation_rows, seed)
    return ReplyTask(name, train, validation, split("test"), notes)


def _split(
    source: ReplySource, data_dir: str | Path | None, revision: str | None, kind: str
) -> tuple[Conversation, ...]:
    """Return a split of a known dataset from a folder or from the hub."""
    if data_dir is None:
        table = read_hub(source.hub, source.config, kind, revision)
    else:
        table = read_table(Path(data_dir) / Path(source.hub).name / f"{kind}.jsonl")
    return tuple(row.spoken() if source.spoken else row for row in conversations_in(table, kind))


def replies_from_rows(
    data: Data,
    test: Data | None = None,
    *,
    name: str | None = None,
    test_fraction: float = TEST_FRACTION,
    validation_rows: int = 0,
    seed: int = 0,
) -> ReplyTask:
    """Make a task from your own prompts with replies.

    Args:
        data: the rows: a file, DataFrame, Dataset or list of dictionaries in one of the formats of
            `load_conversations`.
        test: the test rows, in any of these forms.
        name: name of the task; default: the file's name, or "replies".
        test_fraction: without `test`: share of `data` to hold out for testing, chosen by a hash of the ids.
        validation_rows: training rows to set aside for choosing settings.
        seed: seed of the choice of validation rows.

    Returns:
        The task, with its splits as tuples of conversations.

    Raises:
        DataError: the rows cannot be read, or are too few to hold some out for testing.
        ConfigError: `test_fraction` is not between 0 and 1, or `validation_rows` is out of range.

    Examples:
        >>> import bara_pyro as bp
        >>> rows = [{"prompt": f"Count on from {n} :", "completion": f" {n + 1}"} for n in range(20)]
        >>> task = bp.replies_from_rows(rows)
        >>> len(task.train), len(task.test)
        (16, 4)
    """
    name = name or (Path(data).stem if isinstance(data, str | Path) else "replies")
    if not 0 < test_fraction < 1:
        raise ConfigError(f"test_fraction is {test_fraction}: choose a number between 0 and 1.")
    train: Sequence[Conversation] = load_conversations(data)
    if test is None:
        count = min(round(test_fraction * len(train)), len(train) - 1)
        if count < 1:
            raise too_few(name, "rows", len(train), test_fraction)
        notes = [f"{count} of {len(train)} rows held out for testing, by a hash of their ids"]
        train, tested = carve(train, count, 0)
    else:
        notes = ["tested on rows of a separate file"]
        tested = tuple(load_conversations(test, "test"))
        check_disjoint(train, tested, name)
    trained = set(map(_prompt_key, train))
    if shared := sum(_prompt_key(row) in trained for row in tested):
        notes.append(f"{shared} test rows have a prompt that is also in train")
    training, validation = carve(train, validation_rows, seed)
    return ReplyTask(name, training, validation, tested, tuple(notes))


def _prompt_key(row: Conversation) -> str:
    """Return a hash of a prompt in the form in which texts are compared; hashes save memory."""
    prompt = row.prompt if isinstance(row.prompt, str) else json.dumps([*map(dict, row.prompt)])
    return digest(as_compared(prompt))
