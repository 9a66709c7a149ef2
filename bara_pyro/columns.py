"""The kinds of columns that rows of one's own have: one list, for settings, options, Python and readers."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple, TypedDict, cast

QUESTIONS = ("question", "question_stem", "prompt", "query", "instruction")
TEXTS = (
    *("text", "sentence", "input", "inputs", "content", "review", "review_text", "comment", "tweet"),
    *("message", "utterance", "article", "document", "body", "passage", "description", "headline"),
    *("title", "ctx"),
)
LABELS = (
    *("answer", "label", "labels", "target", "class", "category", "answer_key", "gold", "gold_label"),
    *("intent", "sentiment", "emotion", "topic", "output", "y"),
)
CHOICES = ("choices", "options", "endings", "candidates", "alternatives")
CONTEXTS = ("context", "passage", "background", "paragraph", "document", "article")


class Kind(NamedTuple):
    """What a kind of column is for.

    Attributes:
        holds: what stands in it, as a sentence names it.
        help: the same at more length, behind "column of".
        usual: names that it is found by, the first one first; none where it is never guessed.
    """

    holds: str
    help: str
    usual: tuple[str, ...] = ()


def _column(holds: str, help: str, usual: tuple[str, ...] = ()) -> str | None:
    found: str | None = field(default=None, metadata={"kind": Kind(holds, help, usual)})
    return found


@dataclass(frozen=True)
class ColumnNames:
    """Columns that the user names, where they have no usual names, or others than in the rows trained on.

    All are of rows that are answered with one of a closed set. A kind `text` is `text_column` among settings
    and in Python, and `--text-column` on the command line.
    """

    text: str | None = _column("the text or question", "the text or question", (*QUESTIONS, *TEXTS))
    label: str | None = _column("the answer", "the answer", LABELS)
    choices: str | None = _column("the options", "the options of each row", CHOICES)
    context: str | None = _column("the context", "a text put before the question", CONTEXTS)
    cluster: str | None = _column(
        "what rows have in common",
        "what rows have in common (an author, a patient): those of one value are not independent, and are "
        "trained on together or not at all",
    )

    @property
    def named(self) -> dict[str, str]:
        """The columns that are named, by their kinds."""
        return {kind: name for kind, name in asdict(self).items() if name is not None}


UNNAMED = ColumnNames()
"""None is named: each is found by its usual name, or is the one that was trained on."""


class ColumnOptions(TypedDict, total=False):
    """The columns that a function of Python takes, each a name or None; see `ColumnNames`."""

    text_column: str | None
    label_column: str | None
    choices_column: str | None
    context_column: str | None
    cluster_column: str | None


KINDS: dict[str, Kind] = {one.name: one.metadata["kind"] for one in fields(ColumnNames)}
OPTIONS = {f"{kind}_column": kind for kind in KINDS}
"""The argument and setting of each kind."""


def column_names(options: Mapping[str, Any]) -> ColumnNames:
    """Return the columns of options, `text_column` and its like; a `TypeError` where there is another."""
    for option in options:
        if option not in OPTIONS:
            raise TypeError(f"got an unexpected keyword argument {option!r}")
    return ColumnNames(**{OPTIONS[option]: name for option, name in options.items()})


def column_options(columns: ColumnNames) -> ColumnOptions:
    """Return the columns that are named as options."""
    return cast(ColumnOptions, {f"{kind}_column": name for kind, name in columns.named.items()})


def option_of(kind: str) -> str:
    """Return how a message calls what names a column of a kind: in Python, and on the command line."""
    return f"{kind}_column (--{kind}-column)"
