"""The rows that a configuration names: loading, limiting, encoding as token ids, and notes on them."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TypeVar, cast

from bara_pyro.columns import OPTIONS
from bara_pyro.data import (
    SOURCES,
    EncodedRows,
    EncodedSplit,
    Example,
    Task,
    encode,
    load_task,
    task_from_rows,
)
from bara_pyro.data.chat import encode_replies
from bara_pyro.data.loader import check_world
from bara_pyro.data.registry import TASKS
from bara_pyro.data.reply_tasks import ReplyTask, is_reply_task, load_replies, replies_from_rows
from bara_pyro.data.rows import carve
from bara_pyro.data.tables import Data
from bara_pyro.data.tokens import unknown_share
from bara_pyro.errors import ConfigError, DataError
from bara_pyro.lm.backbone import Backbone
from bara_pyro.runs.config import ASKED_ROWS, RunConfig, calibrated_by_default, turned
from bara_pyro.runs.sections import TaskConfig
from bara_pyro.types import Json

# Percentage of unknown tokens above which a note warns that the language model cannot read the data.
UNKNOWN = 10.0
# Above this percentage the rows are in another language; the microworld does not know some 80 % of English.
UNREADABLE = 75.0
OnRows = Callable[[int], object]
AnyTask = TypeVar("AnyTask", Task, ReplyTask)
Row = TypeVar("Row")

# Settings of where and how rows are read; they do not apply to rows that have been read already.
OF_FILES = ("data_dir", "revision")
OF_DIVIDING = ("test_fraction", "validation_rows", "seed")
OF_ANSWERS = ("classes", *OPTIONS)


def load_rows(config: RunConfig) -> Task | ReplyTask:
    """Load the rows that a configuration names, to learn answers or replies.

    The labels of a task are words; see `data.encode_labels`.
    """
    c, replies = config.task, config.task.likelihood == "completion"
    if not replies and is_reply_task(c.name):
        raise ConfigError(
            f"The task {c.name!r} contains replies: set likelihood='completion' (--likelihood completion)."
        )
    if replies and (c.name in SOURCES or c.name in TASKS):
        raise ConfigError(
            f"The task {c.name!r} has answers and no replies: leave likelihood='completion' "
            "(--likelihood completion) out."
        )
    how = _named(c, "data_dir", "revision", "test_file", *OF_DIVIDING)
    if not replies:
        return _limited(load_task(c.name, world=c.world, **how, **_named(c, *OF_ANSWERS)), config)
    check_world(c.name, c.world)
    return _limited(load_replies(c.name, **how), config)


def load_data(config: RunConfig) -> Task:
    """Load the task that a configuration without replies names; see `load_rows`."""
    return cast(Task, load_rows(config))


def rows_given(
    config: RunConfig, data: Data | Task | ReplyTask, typed: Collection[str] = ()
) -> Task | ReplyTask:
    """Return rows given in Python as a task, read by the settings of a configuration.

    `limit` and `train_rows` also apply to a task that has been read. `typed` are the dotted keys of the
    settings that the user gave.

    Raises:
        ConfigError: the user gave a setting that has no effect on rows in memory.
        DataError: the rows cannot be used.
    """
    c, is_read = config.task, isinstance(data, Task | ReplyTask)
    for name in (*OF_FILES, *(("test_file", *OF_DIVIDING, *OF_ANSWERS) if is_read else ())):
        if f"task.{name}" in typed:
            raise ConfigError(
                f"{name}={getattr(c, name)!r} has no effect on a {type(data).__name__}, which has been read "
                "already: leave it out, or give the name of a task or a file."
            )
    if isinstance(data, Task):
        return _limited(data, config)
    if isinstance(data, ReplyTask):
        return _limited(data, config)
    if c.likelihood == "completion":
        return _limited(replies_from_rows(data, c.test_file, **_named(c, *OF_DIVIDING)), config)
    return _limited(task_from_rows(data, c.test_file, **_named(c, *OF_DIVIDING, *OF_ANSWERS)), config)


def _named(c: TaskConfig, *names: str) -> Json:
    """Return the settings with these names."""
    return {name: getattr(c, name) for name in names}


def _limited(task: AnyTask, config: RunConfig) -> AnyTask:
    c = config.task
    if c.train_rows is not None:
        # Validation rows set aside from the training rows count as training rows; a task's own do not.
        aside = len(task.validation) if c.validation_rows else 0
        task = _fewer(task, c.train_rows, c.train_rows_seed, aside)
    if c.limit is None:
        return task
    notes = [*task.notes, f"only the first {c.limit} rows of each split"]
    if lost := _lost(task, task.train[: c.limit]):
        notes.append(f"no remaining training row has the answer {', '.join(lost)}")
    return replace(
        task,
        train=task.train[: c.limit],
        validation=task.validation[: c.limit],
        test=task.test[: c.limit],
        notes=tuple(notes),
    )


def _lost(task: Task | ReplyTask, rows: Sequence[Row]) -> list[str]:
    """Return the classes that the rows kept no longer contain; empty if each row lists its own options."""
    if isinstance(task, ReplyTask):
        return []
    gone = {row.label for row in task.train} - {row.label for row in rows if isinstance(row, Example)}
    return [task.names[label] for label in sorted(gone)] if task.names else []


def _fewer(task: AnyTask, rows: int, seed: int | None, aside: int) -> AnyTask:
    """Keep this many training rows, including the `aside` rows that were set aside for validation.

    The first rows are kept; with a seed, rows drawn at random.
    """
    there = len(task.train) + aside
    if rows > there:
        raise DataError(f"train_rows={rows} exceeds the {there} training rows of {task.name!r}: lower it.")
    count = rows - aside
    train, note = task.train[:count], f"the first {count} training rows"
    if seed is not None:
        note = f"{count} training rows drawn at random (seed {seed})"
        train = task.train if rows == there else carve(task.train, count, seed)[1]
    notes = [*task.notes, note]
    if lost := _lost(task, train):
        which = f"no remaining training row has the answer {', '.join(lost)}"
        notes.append(which if seed is not None else f"{which} (--train-rows-seed draws rows at random)")
    return replace(task, train=train, notes=tuple(notes))


def some(rows: Sequence[Row], task: str, name: str) -> Sequence[Row]:
    """Return the rows of a split; a `DataError` if it is empty."""
    if not rows:
        way_out = ""
        if name == "validation":
            way_out = ", or set rows aside in training with validation_rows (--validation-rows)"
        raise DataError(f"The task {task!r} has no {name} rows: choose another split or task{way_out}.")
    return rows


def encode_split(config: RunConfig, backbone: Backbone, task: Task | ReplyTask, name: str) -> EncodedRows:
    """Return a split of a task as token ids; training rows of replies are packed if `packing` is set.

    An empty split, or one with only too long questions or prompts, raises a `DataError`.
    """
    c, rows = config.task, some(getattr(task, name), task.name, name)
    most = longest(config, backbone)
    encoded: EncodedRows
    if isinstance(task, ReplyTask):
        encoded = encode_replies(rows, backbone.tokenizer, most, chat=c.chat, too_long=c.too_long)
        if c.packing and name == "train":
            encoded = encoded.packed(c.max_length)
        fitting = f"prompt of fewer than {most}"
    else:
        encoded, fitting = encode_rows(config, backbone, task, rows), f"question of at most {most}"
    if not len(encoded):
        raise DataError(
            f"No {name} row of {task.name!r} has a {fitting} tokens: {way_to_longer(config, backbone)}."
        )
    return encoded


def encode_rows(config: RunConfig, backbone: Backbone, task: Task, rows: Sequence[Example]) -> EncodedSplit:
    """Return rows of a task as token ids, with the texts of their answers if labels='texts'."""
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
        chat=task.chat,
    )


def longest(config: RunConfig, backbone: Backbone) -> int:
    """Return the most tokens a row may have: task.max_length, or the language model's limit if smaller."""
    return min(config.task.max_length, backbone.context or config.task.max_length)


def way_to_longer(config: RunConfig, backbone: Backbone) -> str:
    """Return, as the end of a sentence, what to do about questions that are too long."""
    if longest(config, backbone) < config.task.max_length:
        return "the language model takes no more, so shorten them or choose another model"
    return "raise task.max_length"


def check_readable(split: EncodedRows, backbone: Backbone) -> None:
    """Raise a `DataError` if the tokenizer does not know most tokens of the training rows."""
    if isinstance(split, EncodedSplit):
        share = split.unknown
    else:
        texts = [(*reply.prompt, *reply.reply) for row in split.rows for reply in row]
        share = unknown_share(texts, backbone.tokenizer)
    if share > UNREADABLE:
        raise DataError(
            f"{share:.0f} % of the tokens of the train rows are unknown to the tokenizer of {backbone.name}: "
            "choose a language model that reads their language (--model)."
        )


def unknown_note(share: float, name: str) -> list[str]:
    """Return a note if the share of unknown tokens, in percent, is more than 10."""
    if share <= UNKNOWN:
        return []
    return [
        f"{share:.0f} % of the tokens of the {name} are unknown to the tokenizer, so the model "
        "cannot read these words: choose a model that knows their language"
    ]


def reading_notes(config: RunConfig, backbone: Backbone, split: EncodedRows, name: str) -> list[str]:
    """Return notes on how many rows of a split were cut, dropped or hold unknown tokens."""
    notes, what, part = [], "reply", "prompt"
    if isinstance(split, EncodedSplit):
        notes, what, part = unknown_note(split.unknown, f"{name} rows"), "context or text", "question"
    if split.shortened:
        had = _counted(len(split.shortened), name, f"had its {what}", f"had their {what}")
        length = longest(config, backbone)
        why = "" if length == config.task.max_length else ", the language model's limit"
        notes.append(f"{had} cut to {length} tokens{why}")
    if split.dropped:
        was = _counted(len(split.dropped), name, f"was left out: its {part}", f"were left out: their {part}")
        notes.append(f"{was} is too long")
    return notes


def seed_note(config: RunConfig) -> list[str]:
    """Return a note on a seed of validation rows if none are set aside; generated rows depend on it too."""
    c = config.task
    if not c.seed or c.validation_rows or c.name in TASKS or is_reply_task(c.name):
        return []
    return [f"task.seed={c.seed} (--task-seed) is not used, because no validation rows are set aside"]


def split_half_note(config: RunConfig, rows: int, held_out: int) -> list[str]:
    """Return a note if split-half calibration comes first, or if the rows do not allow it."""
    if calibrated_by_default(config, rows) and held_out < ASKED_ROWS:
        return [
            f"no split-half calibration: so many of the {rows} training rows belong together that only "
            f"{held_out} can be held out, and it needs {ASKED_ROWS}"
        ]
    if not config.adapter.calibrated:
        return []
    learnt = str(rows - held_out)
    if turned(rows, held_out):
        learnt = "halves" if rows - 2 * held_out in (0, 1) else f"{learnt} and {held_out}"
    longer = "; if it is underconfident, training takes twice as many steps"
    c = config.train
    chosen = "choose learning rate and length, and " if c.may_shorten else "choose the learning rate and "
    what = f"{chosen if c.find_lr else ''}set the temperature"
    off = "--no-calibrated turns it off"
    if config.adapter.start is not None:
        off += ": do so if the adapter was trained on these rows, where the temperature stays near 1"
    return [
        f"split-half calibration comes first: fits on {learnt} of the {rows} training rows "
        f"{what}{longer if c.may_double else ''} ({off})"
    ]


def _counted(count: int, name: str, one: str, more: str) -> str:
    """Return a clause about one row, or about several."""
    return f"{count} {name} row {one}" if count == 1 else f"{count} {name} rows {more}"
