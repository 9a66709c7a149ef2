"""The rows that a configuration names: loaded, limited, as token ids, and what is worth saying of them."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TypeVar

from bara_pyro.columns import OPTIONS
from bara_pyro.data import SOURCES, EncodedSplit, Example, Task, encode, load_task, task_from_rows
from bara_pyro.data.conversations import ReplyEncoder, encode_replies
from bara_pyro.data.loader import check_world
from bara_pyro.data.registry import TASKS
from bara_pyro.data.replies import EncodedReplies
from bara_pyro.data.reply_tasks import ReplyTask, is_reply_task, load_replies, replies_from_rows
from bara_pyro.data.rows import carve
from bara_pyro.data.stored import cache_folder
from bara_pyro.data.streamed import StreamedReplies
from bara_pyro.data.tables import Data
from bara_pyro.data.tokens import unknown_share
from bara_pyro.errors import ConfigError, DataError
from bara_pyro.lm.backbone import Backbone
from bara_pyro.runs.config import RunConfig
from bara_pyro.runs.sections import TaskConfig
from bara_pyro.types import Json

# Percentage of unknown tokens above which a data set is not what the language model can read.
UNKNOWN = 10.0
# Above this one they are of another language: of English, the microworld lacks some 80.
UNREADABLE = 75.0
OnRows = Callable[[int], object]
Replies = EncodedReplies | StreamedReplies
AnyTask = TypeVar("AnyTask", Task, ReplyTask)
Row = TypeVar("Row")

# Settings of where rows are read from, and of how they are read: what has been read takes none of them.
OF_FILES = ("data_dir", "revision", "streaming")
OF_DIVIDING = ("test_fraction", "validation_rows", "seed")
OF_ANSWERS = ("classes", *OPTIONS)


def load_data(config: RunConfig, *, find_ids: bool = True) -> Task:
    """Load the task that a configuration names, its labels in words; see `data.encode_labels`."""
    c = config.task
    if is_reply_task(c.name):
        raise ConfigError(
            f"The task {c.name!r} is of replies: give likelihood='completion' (--likelihood completion)."
        )
    task = load_task(
        c.name,
        c.data_dir,
        world=c.world,
        revision=c.revision,
        test_file=c.test_file,
        find_ids=find_ids,
        **_named(c, *OF_DIVIDING, *OF_ANSWERS),
    )
    return _limited(task, config)


def rows_given(
    config: RunConfig, data: Data | Task | ReplyTask, typed: Collection[str] = ()
) -> Task | ReplyTask:
    """Return rows given in Python as the task that a configuration says how to read.

    Args:
        config: the settings.
        data: rows, or a task that has been read, of which `limit` and `train_rows` are still taken.
        typed: the dotted keys of the settings that somebody gave.

    Raises:
        ConfigError: one of these says how rows are read that have been read.
        DataError: the rows cannot be used.
    """
    c = config.task
    of_rows = ("test_file", *OF_DIVIDING, *OF_ANSWERS) if isinstance(data, Task | ReplyTask) else ()
    for name in (*OF_FILES, *of_rows):
        if f"task.{name}" in typed:
            raise ConfigError(
                f"{name}={getattr(c, name)!r} says how rows are read, and a {type(data).__name__} is given: "
                "leave it out, or give the name of a task or a file."
            )
    if isinstance(data, Task):
        return _limited(data, config)
    if isinstance(data, ReplyTask):
        return _limited(data, config)
    if c.likelihood == "completion":
        return _limited(replies_from_rows(data, c.test_file, **_named(c, *OF_DIVIDING)), config)
    return _limited(task_from_rows(data, c.test_file, **_named(c, *OF_DIVIDING, *OF_ANSWERS)), config)


def _named(c: TaskConfig, *names: str) -> Json:
    """Return settings of rows by their names."""
    return {name: getattr(c, name) for name in names}


def load_reply_data(config: RunConfig) -> ReplyTask:
    """Load the prompts with replies that a configuration names."""
    c = config.task
    if c.name in SOURCES or c.name in TASKS:
        raise ConfigError(
            f"The task {c.name!r} is of answers: leave likelihood='completion' (--likelihood completion) out."
        )
    check_world(c.name, c.world)
    task = load_replies(
        c.name,
        c.data_dir,
        revision=c.revision,
        test_file=c.test_file,
        streaming=c.streaming,
        **_named(c, *OF_DIVIDING),
    )
    if c.streaming:
        note = f"rows are read from {cache_folder()} and tokenised when a batch needs them"
        task = replace(task, notes=(*task.notes, note))
    return _limited(task, config)


def _limited(task: AnyTask, config: RunConfig) -> AnyTask:
    c = config.task
    if c.train_rows is not None:
        # Rows that a task brings for validation are no training rows; those carved out of these are.
        aside = len(task.validation) if c.validation_rows else 0
        task = _fewer(task, c.train_rows, c.train_rows_seed, aside)
    if c.limit is None:
        return task
    notes = [*task.notes, f"only the first {c.limit} rows of each split"]
    if lost := _lost(task, task.train[: c.limit]):
        notes.append(f"no row left to train on has the answer {', '.join(lost)}")
    return replace(
        task,
        train=task.train[: c.limit],
        validation=task.validation[: c.limit],
        test=task.test[: c.limit],
        notes=tuple(notes),
    )


def _lost(task: Task | ReplyTask, kept: Sequence[Row]) -> list[str]:
    """Return the classes of training rows that none of those kept has; none where rows list options."""
    if isinstance(task, ReplyTask):
        return []
    gone = {row.label for row in task.train} - {row.label for row in kept if isinstance(row, Example)}
    return [task.names[label] for label in sorted(gone)] if task.names else []


def _fewer(task: AnyTask, rows: int, seed: int | None, aside: int) -> AnyTask:
    """Keep so many training rows, the `aside` that were set aside for validation among them.

    The others are the first; with a seed they are drawn at random.
    """
    there = len(task.train) + aside
    if rows > there:
        raise DataError(f"train_rows={rows} is more than the {there} rows of {task.name!r}: lower it.")
    kept = rows - aside
    train, note = task.train[:kept], f"the first {kept} training rows"
    if seed is not None:
        note = f"{kept} training rows drawn at random (seed {seed})"
        train = task.train if rows == there else carve(task.train, kept, seed)[1]
    notes = [*task.notes, note]
    if lost := _lost(task, train):
        which = f"no row left to train on has the answer {', '.join(lost)}"
        notes.append(which if seed is not None else f"{which} (--train-rows-seed draws rows at random)")
    return replace(task, train=train, notes=tuple(notes))


def some(rows: Sequence[Row], task: str, name: str) -> Sequence[Row]:
    """Return the rows of a split.

    Raises:
        DataError: there are none.
    """
    if not rows:
        way_out = ""
        if name == "validation":
            way_out = ", or train with validation_rows (--validation-rows), which sets some aside"
        raise DataError(f"The task {task!r} has no {name} rows: choose another split or task{way_out}.")
    return rows


def encode_split(config: RunConfig, backbone: Backbone, task: Task, name: str) -> EncodedSplit:
    """Return a split of a task as token ids.

    Raises:
        DataError: the split is empty, or a question is too long.
    """
    split = encode_rows(config, backbone, task, some(getattr(task, name), task.name, name))
    if not len(split):
        raise DataError(
            f"No {name} row of {task.name!r} has a question of at most {longest(config, backbone)} tokens: "
            f"{way_to_longer(config, backbone)}."
        )
    return split


def encode_reply_split(
    config: RunConfig, backbone: Backbone, task: ReplyTask, name: str, on_rows: OnRows | None = None
) -> Replies:
    """Return a split of prompts with replies as token ids; those trained on packed, where that is asked for.

    Streamed rows are all read once, and `on_rows` is called with the number of those just read.

    Raises:
        DataError: the split is empty, or all prompts are too long.
    """
    c, rows = config.task, some(getattr(task, name), task.name, name)
    most = longest(config, backbone)
    found: Replies
    if c.streaming:
        encoder = ReplyEncoder(backbone.tokenizer, most, c.chat, c.too_long)
        found = StreamedReplies(rows, encoder, on_rows)
    else:
        found = encode_replies(rows, backbone.tokenizer, most, chat=c.chat, too_long=c.too_long)
        if c.packing and name == "train":
            found = found.packed(c.max_length)
    if not len(found):
        raise DataError(
            f"No {name} row of {task.name!r} has a prompt of fewer than {most} tokens: "
            f"{way_to_longer(config, backbone)}."
        )
    return found


def encode_rows(config: RunConfig, backbone: Backbone, task: Task, rows: Sequence[Example]) -> EncodedSplit:
    """Return rows of a task as token ids, with the texts of their answers where these are scored."""
    c = config.task
    classes = len(task.labels) if c.labels == "texts" else None
    return encode(
        rows,
        backbone.tokenizer,
        c.max_length,
        too_long=c.too_long,
        answers=task.names,
        classes=classes,
        context=backbone.context,
    )


def longest(config: RunConfig, backbone: Backbone) -> int:
    """Return how many tokens a row may have: task.max_length, or fewer that the language model takes."""
    return min(config.task.max_length, backbone.context or config.task.max_length)


def way_to_longer(config: RunConfig, backbone: Backbone) -> str:
    """Return how rows with longer questions can be read, as the end of a sentence."""
    if longest(config, backbone) < config.task.max_length:
        return "the language model takes no more, so give shorter ones, or another model"
    return "raise task.max_length"


def check_readable(split: EncodedSplit | Replies, backbone: Backbone) -> None:
    """Refuse training rows of which the tokenizer knows next to nothing.

    Raises:
        DataError: it knows less than a quarter of their tokens.
    """
    if isinstance(split, EncodedSplit):
        share = split.unknown
    elif isinstance(split, EncodedReplies):
        texts = [(*reply.prompt, *reply.reply) for row in split.rows for reply in row]
        share = unknown_share(texts, backbone.tokenizer)
    else:
        return  # left on the disk
    if share > UNREADABLE:
        raise DataError(
            f"{share:.0f} % of the tokens of the train rows are unknown to the tokenizer of {backbone.name}: "
            "give a language model of their language as model (--model)."
        )


def unknown_note(share: float, name: str) -> list[str]:
    """Say, where it is more than a tenth, which share of texts, in percent, the tokenizer cannot read."""
    if share <= UNKNOWN:
        return []
    return [
        f"{share:.0f} % of the tokens of the {name} are unknown to the tokenizer, so the model "
        "cannot read these words: give a model of their language"
    ]


def reading_notes(
    config: RunConfig, backbone: Backbone, split: EncodedSplit | Replies, name: str
) -> list[str]:
    """Say how many of the rows called `name` the model cannot read, or not whole."""
    notes, what, asked = [], "reply", "prompt"
    if isinstance(split, EncodedSplit):
        notes, what, asked = unknown_note(split.unknown, f"{name} rows"), "context or text", "question"
    if split.shortened:
        had = _counted(len(split.shortened), name, f"had its {what}", f"had their {what}")
        length = longest(config, backbone)
        why = "" if length == config.task.max_length else ", the most that the language model takes"
        notes.append(f"{had} cut to {length} tokens{why}")
    if split.dropped:
        was = _counted(
            len(split.dropped), name, f"was left out: its {asked}", f"were left out: their {asked}"
        )
        notes.append(f"{was} is too long")
    return notes


def _counted(count: int, name: str, one: str, more: str) -> str:
    """Return what is said of one row, or of more."""
    return f"{count} {name} row {one}" if count == 1 else f"{count} {name} rows {more}"
