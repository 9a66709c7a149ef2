"""Read preference pairs: a prompt, the preferred reply and the rejected one."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bara_pyro.data.conversations import Conversation, conversations_in
from bara_pyro.data.loader import check_effect, is_file_name
from bara_pyro.data.messages import PROMPTS, SYSTEM_COLUMNS, Message
from bara_pyro.data.registry import not_known
from bara_pyro.data.reply_tasks import REPLY_SOURCES, source_table
from bara_pyro.data.rows import carve, check_disjoint, check_other_file, too_few
from bara_pyro.data.tables import Data, DataTable, read_table
from bara_pyro.data.tools import GIVEN, is_list
from bara_pyro.data.userfile import TEST_FRACTION
from bara_pyro.errors import ConfigError, DataError
from bara_pyro.types import Fields

PREFERENCES = ("ultrafeedback",)
"""The datasets of `REPLY_SOURCES` that hold pairs."""
SIDES = ("chosen", "rejected")
KEPT = (*PROMPTS, *SYSTEM_COLUMNS, *GIVEN, "input", "id", "ID", "Id")
"""Columns of a pair that are read beside its replies; others, such as TRL's scores, are ignored."""


@dataclass(frozen=True)
class PreferencePair:
    """Two replies to one prompt.

    Attributes:
        prompt: a text, or the messages before the reply, each with `role` and `content`.
        chosen: the preferred reply, as in `Conversation`.
        rejected: the other reply.
        id: a stable identifier.
        options: further arguments of the chat template.
    """

    prompt: str | tuple[Message, ...]
    chosen: str | Message
    rejected: str | Message
    id: str
    options: Fields = field(default_factory=dict)

    def sides(self) -> tuple[Conversation, Conversation]:
        """Return the pair as two conversations, the preferred one first."""
        replies = (self.chosen, self.rejected)
        prefer, other = (Conversation(self.prompt, reply, self.id, self.options) for reply in replies)
        return prefer, other


@dataclass(frozen=True)
class PreferenceTask:
    """Preference pairs, split into training and test pairs.

    Attributes:
        name: name of the task.
        train, test: the splits.
        notes: facts to report with a result.
    """

    name: str
    train: Sequence[PreferencePair]
    test: Sequence[PreferencePair]
    notes: tuple[str, ...] = ()


def load_pairs(data: Data, split: str = "row") -> list[PreferencePair]:
    """Read preference pairs from a file, DataFrame, `datasets.Dataset` or list of dictionaries.

    Rows have columns `chosen` and `rejected`. Each is a text, or messages whose last one is the assistant's
    reply. The prompt is a text or messages in `prompt` (or `instruction`, `question`), or the messages with
    which both replies begin. If there are both, the messages between the prompt and the reply belong to the
    prompt and must be the same on both sides. Rows without an id get the identifier `<split>-<row>`.

    Raises:
        DataError: the file cannot be read, a row is not a pair, its replies answer different prompts, or two
            rows have the same id.
    """
    return pairs_in(read_table(data), split)


def pairs_in(table: DataTable, split: str) -> list[PreferencePair]:
    """Return the preference pairs of a table; see `load_pairs`."""
    for number, row in enumerate(table.rows, 1):
        missing = next((side for side in SIDES if row.get(side) is None), None)
        if missing is not None:
            raise DataError(
                f"There is no {missing!r} in row {number} of {table.place}, which has "
                f"{', '.join(map(str, row)) or 'no columns'}: give 'prompt', 'chosen' and 'rejected'."
            )
        if not (is_list(row["chosen"]) or any(row.get(name) is not None for name in PROMPTS)):
            raise DataError(
                f"There is no prompt in row {number} of {table.place}, which has "
                f"{', '.join(map(str, row))}: give 'prompt', 'chosen' and 'rejected'."
            )
    chosen, rejected = (conversations_in(_side(table, side), split) for side in SIDES)
    for number, (prefer, other) in enumerate(zip(chosen, rejected, strict=True), 1):
        if prefer.prompt != other.prompt:
            raise DataError(
                f"The replies of row {number} of {table.place} answer different prompts: use one prompt."
            )
    return [
        PreferencePair(prefer.prompt, prefer.reply, other.reply, prefer.id, prefer.options)
        for prefer, other in zip(chosen, rejected, strict=True)
    ]


def _side(table: DataTable, side: str) -> DataTable:
    """Return a table with one of the two replies; its errors name the side."""
    return DataTable(f"{table.place} ({side!r} as its reply)", [_row(row, side) for row in table.rows])


def _row(row: Fields, side: str) -> dict[str, object]:
    columns = {name: row[name] for name in KEPT if row.get(name) is not None}
    whole = is_list(row[side]) and not any(name in columns for name in PROMPTS)
    return {**columns, "messages" if whole else "completion": row[side]}


def load_preferences(
    name: str | Path,
    data_dir: str | Path | None = None,
    *,
    revision: str | None = None,
    test_file: str | Path | None = None,
    test_fraction: float = TEST_FRACTION,
    rows: int | None = None,
) -> PreferenceTask:
    """Load preference pairs by name, or from your own file.

    All pairs of one prompt are in the same split. Pairs with two equal replies are left out, with a note.

    Args:
        name: one of `PREFERENCES`, or the path of a file in one of the formats of `load_pairs`.
        data_dir: folder with `<dataset>/<split>.jsonl` in the hub's schema; default: read from the hub.
        revision: commit or tag of the dataset on the hub.
        test_file: your own file of test pairs.
        test_fraction: without a `test_file`: share of your file's prompts to hold out for testing.
        rows: use only the first training pairs, this many.

    Raises:
        ConfigError: an option is out of range.
        DataError: the name is unknown, a file is missing or empty, a row is not a pair, or none are left.

    Examples:
        >>> import json
        >>> from pathlib import Path
        >>> from bara_pyro.data.preferences import load_preferences
        >>> pairs = [{"prompt": f"Is {n} even ?", "chosen": "yes", "rejected": "no"} for n in range(0, 20, 2)]
        >>> _ = Path("pairs.json").write_text(json.dumps(pairs))
        >>> task = load_preferences("pairs.json", test_fraction=0.3)
        >>> len(task.train), len(task.test)
        (7, 3)
    """
    name = str(name)
    if not 0 < test_fraction < 1:
        raise ConfigError(f"test_fraction is {test_fraction}: choose a number between 0 and 1.")
    if rows is not None and rows < 1:
        raise ConfigError(f"rows is {rows}: choose 1 or more pairs to train on.")
    check_effect(
        name,
        False,
        test_file=test_file,
        test_fraction=test_fraction,
        data_dir=data_dir,
        revision=revision,
    )
    if is_file_name(name):
        train, test, notes = _of_file(name, test_file, test_fraction)
    elif name in PREFERENCES:
        source = REPLY_SOURCES[name]
        train, test = (
            pairs_in(source_table(source, data_dir, revision, kind), kind) for kind in ("train", "test")
        )
        notes = ["tested on the test rows"]
    else:
        raise not_known("task of preference pairs", name, PREFERENCES)
    training, tested = _different(train), _different(test)
    if same := len(train) + len(test) - len(training) - len(tested):
        notes.append(f"{same} pairs with two equal replies left out")
    training = training[:rows]
    for kind, pairs in (("train", training), ("test", tested)):
        if not pairs:
            raise DataError(f"{name} has no {kind} pair whose replies differ: give at least one.")
    check_disjoint(training, tested, name)
    if both := len({prompt_key(pair) for pair in tested} & {prompt_key(pair) for pair in training}):
        notes.append(f"{both} prompts of test pairs are also in train")
    return PreferenceTask(Path(name).stem, training, tested, tuple(notes))


def prompt_key(pair: PreferencePair) -> str:
    """Return a text that is the same for two pairs exactly if their prompts are."""
    content = [pair.prompt, pair.options] if pair.options else pair.prompt
    return json.dumps(content, ensure_ascii=False)


def _of_file(
    name: str, test_file: str | Path | None, test_fraction: float
) -> tuple[list[PreferencePair], list[PreferencePair], list[str]]:
    pairs = load_pairs(name)
    if test_file is not None:
        check_other_file(name, test_file)
        return pairs, load_pairs(test_file, "test"), ["tested on pairs of a separate file"]
    prompts = {prompt_key(pair): PreferencePair(pair.prompt, "", "", prompt_key(pair)) for pair in pairs}
    count = min(round(test_fraction * len(prompts)), len(prompts) - 1)
    if count < 1:
        raise too_few(name, "prompts", len(prompts), test_fraction)
    tested = {prompt.id for prompt in carve(list(prompts.values()), count, 0)[1]}
    train = [pair for pair in pairs if prompt_key(pair) not in tested]
    test = [pair for pair in pairs if prompt_key(pair) in tested]
    return train, test, [f"{count} of {len(prompts)} prompts held out for testing, by a hash of their text"]


def _different(pairs: Sequence[PreferencePair]) -> list[PreferencePair]:
    return [pair for pair in pairs if pair.chosen != pair.rejected]
