"""Kinds of columns in users' data, and the column names by which each is found."""

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
    """Description of a kind of column.

    Attributes:
        holds: content of the column, for messages.
        help: longer description, which follows "column of".
        usual: column names by which it is found, in order of preference; empty if it is never guessed.
    """

    holds: str
    help: str
    usual: tuple[str, ...] = ()


def _column(holds: str, help: str, usual: tuple[str, ...] = ()) -> str | None:
    found: str | None = field(default=None, metadata={"kind": Kind(holds, help, usual)})
    return found


@dataclass(frozen=True)
class ColumnNames:
    """Names of the columns of classification data; None finds a column by its usual names.

    The kind `text` is called `text_column` in settings and Python, and `--text-column` on the command line.
    """

    text: str | None = _column("the text or question", "the text or question", (*QUESTIONS, *TEXTS))
    label: str | None = _column("the answer", "the answer", LABELS)
    choices: str | None = _column("the options", "the options of each row", CHOICES)
    context: str | None = _column("the context", "a text put before the question", CONTEXTS)
    cluster: str | None = _column(
        "what rows have in common",
        "what related rows have in common, such as an author or a patient; they stay on one side of a split",
    )

    @property
    def named(self) -> dict[str, str]:
        """Kind -> name of the columns that the user named."""
        return {kind: name for kind, name in asdict(self).items() if name is not None}


UNNAMED = ColumnNames()
"""No column is named: each is found by its usual names, or is the one used in training."""


class ColumnOptions(TypedDict, total=False):
    """Keyword arguments of functions that take column names; see `ColumnNames`."""

    text_column: str | None
    label_column: str | None
    choices_column: str | None
    context_column: str | None
    cluster_column: str | None


KINDS: dict[str, Kind] = {one.name: one.metadata["kind"] for one in fields(ColumnNames)}
OPTIONS = {f"{kind}_column": kind for kind in KINDS}
"""Argument or setting -> kind of column."""


def column_names(options: Mapping[str, Any]) -> ColumnNames:
    """Return the column names from options such as `text_column`; a `TypeError` for an unknown one."""
    for option in options:
        if option not in OPTIONS:
            raise TypeError(f"got an unexpected keyword argument {option!r}")
    return ColumnNames(**{OPTIONS[option]: name for option, name in options.items()})


def column_options(columns: ColumnNames) -> ColumnOptions:
    """Return the named columns as keyword arguments."""
    return cast(ColumnOptions, {f"{kind}_column": name for kind, name in columns.named.items()})


def option_of(kind: str) -> str:
    """Return the option for a kind of column, as in Python and on the command line, for messages."""
    return f"{kind}_column (--{kind}-column)"
