"""`load_replies`: one door to prompts with replies, whether on the hub, in a folder, in a file or made."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bara_pyro.data.clusters import as_compared
from bara_pyro.data.conversations import Conversation, conversations_in, load_conversations
from bara_pyro.data.loader import check_effect, is_file_name
from bara_pyro.data.reading import dataset_rows, hub_dataset, read_split
from bara_pyro.data.registry import SUFFIXES, check_kind
from bara_pyro.data.rows import carve, check_disjoint, check_other_file, first_validation, too_few
from bara_pyro.data.schemas import digest
from bara_pyro.data.stored import stored_dataset, stored_file, stored_split
from bara_pyro.data.tables import Data, DataTable
from bara_pyro.data.types import split_counts
from bara_pyro.data.userfile import TEST_FRACTION
from bara_pyro.errors import ConfigError, DataError, unknown
from bara_pyro.registry import Registry


@dataclass(frozen=True, repr=False)
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

    def __repr__(self) -> str:
        return f"ReplyTask {self.name!r}: {self.counts}"

    @property
    def counts(self) -> str:
        """How many rows each split has, in words."""
        return split_counts(self.train, self.validation, self.test)


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
    "task of replies", "bara_pyro.reply_tasks", ("bara_pyro.microworld",), of=GeneratedReplies
)
"""Those of the microworld, and those that installed packages offer as entry points."""


def is_reply_task(name: str) -> bool:
    """Return whether a name is that of a known task of replies."""
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
    streaming: bool = False,
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
        streaming: leave the rows on the disk (`data.stored`); they are the same, in the same order.

    Raises:
        ConfigError: an option is out of range.
        DataError: unknown name, missing or empty file, or a row that cannot be used (file and row are named).

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
        load = stored_file if streaming else load_conversations
        given = load(Path(name)), None if test_file is None else load(Path(test_file), "test")
        return _divided(Path(name).stem, *given, test_fraction, validation_rows, seed)
    if name in REPLY_TASKS:
        made = REPLY_TASKS.find(name).load(seed)
        return replace(made, validation=first_validation(made.validation, validation_rows, name))
    if name not in REPLY_SOURCES:
        check_kind(name)
        known = unknown("task of replies", name, [*REPLY_SOURCES, *REPLY_TASKS])[:-1]
        raise DataError(f"{known}, or a file that ends in {', '.join(SUFFIXES)}.")
    source = REPLY_SOURCES[name]

    split = partial(_split, source, data_dir, revision, streaming)
    where = f"{source.hub} at revision {revision or 'main'}" if data_dir is None else f"read from {data_dir}"
    notes = (where, f"tested on the {source.test} rows", *([source.note] if source.note else []))
    train, validation = carve(split("train"), validation_rows, seed)
    return ReplyTask(name, train, validation, split(source.test), notes)


def _split(
    source: ReplySource, data_dir: str | Path | None, revision: str | None, streaming: bool, kind: str
) -> Sequence[Conversation]:
    """Return a split of a known dataset, from a folder or from the hub."""
    if data_dir is not None:
        path = Path(data_dir) / source.folder / f"{kind}.jsonl"
        if streaming:
            return stored_split(path, kind, spoken=source.spoken)
        table = DataTable(str(path), read_split(path))
    else:
        dataset = hub_dataset(source.hub, source.config, kind, revision)
        place = f"{source.hub}, {kind}"
        if streaming:
            return stored_dataset(dataset, place, kind, spoken=source.spoken)
        table = DataTable(place, list(dataset_rows(dataset)))
    found = conversations_in(table, kind)
    return tuple(row.spoken() for row in found) if source.spoken else tuple(found)


def replies_from_rows(
    data: Data,
    test: Data | None = None,
    *,
    name: str | None = None,
    test_fraction: float = TEST_FRACTION,
    validation_rows: int = 0,
    seed: int = 0,
) -> ReplyTask:
    """Make a task of prompts with replies of one's own; arguments as of `data.userfile.task_from_rows`.

    Raises:
        DataError: rows that cannot be read, or too few to test on some.
        ConfigError: `test_fraction` is not between 0 and 1, or `validation_rows` is out of range.

    Examples:
        >>> import bara_pyro as bp
        >>> rows = [{"prompt": f"Count on from {n} :", "completion": f" {n + 1}"} for n in range(20)]
        >>> task = bp.replies_from_rows(rows)
        >>> len(task.train), len(task.test)
        (16, 4)
    """
    name = name or (Path(data).stem if isinstance(data, str | Path) else "replies")
    given = load_conversations(data), None if test is None else load_conversations(test, "test")
    return _divided(name, *given, test_fraction, validation_rows, seed)


def _divided(
    name: str,
    train: Sequence[Conversation],
    tested: Sequence[Conversation] | None,
    test_fraction: float,
    validation_rows: int,
    seed: int,
) -> ReplyTask:
    """Return a task of rows of one's own, some of which are tested on where no others are given for it."""
    if not 0 < test_fraction < 1:
        raise ConfigError(f"test_fraction is {test_fraction}: choose a number between 0 and 1.")
    if tested is None:
        count = min(round(test_fraction * len(train)), len(train) - 1)
        if count < 1:
            raise too_few(name, "rows", len(train), test_fraction)
        notes = [f"{count} of {len(train)} rows tested on, chosen by a hash of their ids"]
        train, tested = carve(train, count, 0)
    else:
        notes = ["tested on rows of their own"]
        check_disjoint(train, tested, name)
    trained = set(map(_prompt_key, train))
    if shared := sum(_prompt_key(row) in trained for row in tested):
        notes.append(f"{shared} test rows have a prompt that also stands in train")
    kept, validation = carve(train, validation_rows, seed)
    return ReplyTask(name, kept, validation, tested, tuple(notes))


def _prompt_key(row: Conversation) -> str:
    """Return a hash of a prompt, as texts are compared: short, as rows may be more than memory holds."""
    said = row.prompt if isinstance(row.prompt, str) else json.dumps([*map(dict, row.prompt)])
    return digest(as_compared(said))
