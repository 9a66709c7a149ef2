"""Bring the user's rows into the layout that a task reads, and name the row that it cannot use.

lm-eval checks only the first row of a task, and its later errors name neither file nor row.
"""

import ast
import re
from functools import lru_cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import yaml
from datasets import Dataset
from jinja2 import Template, TemplateError, UndefinedError, meta
from lm_eval.tasks.hellaswag.utils import preprocess
from lm_eval.utils import env

from bara_pyro.data.reading import objects_in
from bara_pyro.errors import DataError
from bara_pyro.types import Json

WRONG = (TemplateError, KeyError, IndexError, ValueError, TypeError, AttributeError, SyntaxError)
"""Errors raised by rows that lack a column or have an unexpected value."""


class _LoaderOfFunctions(yaml.SafeLoader):
    """Load `!function` tags as functions; used only for task files of this package."""


def _function(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> Any:
    return resolve_name(loader.construct_scalar(node))


_LoaderOfFunctions.add_constructor("!function", _function)


def check_task_rows(source: Path, files: list[Path]) -> None:
    """Raise a `DataError` if a task of this package, in the file `source`, cannot use a row of the `files`.

    The row lacks a column, its answer is not among its options, or a line is not a JSON object.
    """
    task = yaml.load(source.read_text(encoding="utf-8"), Loader=_LoaderOfFunctions)  # noqa: S506 - a SafeLoader
    for path in files:
        for number, row in enumerate(objects_in(path), start=1):
            _check_row(task, row, f"{path}, row {number}")


def _check_row(task: Json, row: Json, place: str) -> None:
    if "process_docs" in task:
        row = row | _part("row", OF_ROWS[task["process_docs"]], row, place)
    question = _part("question", task["doc_to_text"], row, place)
    target = task["doc_to_target"]
    answer = _part("answer", target, row, place)
    if "doc_to_choice" not in task:
        return
    options = _part("options", task["doc_to_choice"], row, place)
    options = ast.literal_eval(options) if isinstance(options, str) else options
    if isinstance(question, int):
        return  # the number of the correct option; all options share one continuation
    if isinstance(answer, str) and not answer.isdigit():
        there = answer in options
    else:
        there = isinstance(answer, int | str) and 0 <= int(answer) < len(options)
    if not there:
        raise DataError(
            f"{place}: the answer{_read_from(_columns(target))} is {answer!r}, which is none of the "
            f"{len(options)} options: correct the row."
        )


def _part(name: str, column: Any, row: Json, place: str) -> Any:
    """Return the question, options or answer of a row, as the task file defines it."""
    try:
        if callable(column):
            return column(row)
        if not isinstance(column, str):
            return column
        return _template(column).render(**row) if "{{" in column else row[column]
    except WRONG as error:
        part = f"the {name}{_read_from(_columns(column))}"
        raise DataError(
            f"{place}: {part} cannot be read ({_reason(error)}): give the row the same columns and values as "
            "the dataset on the hub."
        ) from error


@lru_cache
def _template(text: str) -> Template:
    return env.from_string(text)


# Parts of the error messages -------------------------------------------------------------------------


def _columns(template: object) -> list[str]:
    """Return the columns of a part that the task file names."""
    if not isinstance(template, str):
        return []
    return sorted(meta.find_undeclared_variables(env.parse(template))) if "{{" in template else [template]


def _read_from(columns: list[str]) -> str:
    return f", read from {' and '.join(columns)}," if columns else ""


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"there is no {error}"
    if isinstance(error, UndefinedError) and str(error).endswith(" is undefined"):
        return f"there is no {str(error).removesuffix(' is undefined')}"
    return str(error).rstrip(".").replace(". ", "; ") or type(error).__name__


# Rows in other layouts than those of lm-eval's own tasks; the task files name the functions ---------------


# The end of a sentence, after which the second half of a HellaSwag context begins.
STOP = re.compile(r"(.*[.!?]['\")]*\s+)(?=\S)", re.DOTALL)


def hellaswag(dataset: Dataset) -> Dataset:
    """Return rows with `query`, `choices` and `gold`, as lm-eval's `process_docs` of hellaswag does.

    In rows without `ctx_a` and `ctx_b`, the unfinished last sentence of `ctx` is `ctx_b`.
    """
    return dataset.map(_hellaswag_row)


def _hellaswag_row(row: Json) -> Json:
    first, second = (row["ctx_a"], row["ctx_b"]) if "ctx_a" in row else divided_context(row["ctx"])
    query = preprocess(f"{row['activity_label']}: {first} {second.capitalize()}")
    return {"query": query, "choices": [preprocess(e) for e in row["endings"]], "gold": int(row["label"])}


def divided_context(context: str) -> tuple[str, str]:
    """Split a HellaSwag context into its complete sentences and the unfinished last one."""
    match = STOP.match(context)
    if context.rstrip().endswith((".", "!", "?")) or match is None:
        return context, ""
    return match[1].rstrip(), context[match.end() :]


def boolq(dataset: Dataset) -> Dataset:
    """Return rows with SuperGLUE's `label` (0 or 1), from rows with a true or false `answer`."""
    if "label" in dataset.column_names:
        return dataset
    return dataset.map(_boolq_row)


def _boolq_row(row: Json) -> Json:
    return {"label": row["label"] if "label" in row else int(row["answer"])}


OF_ROWS = {hellaswag: _hellaswag_row, boolq: _boolq_row}
"""The function of each of these for one row."""
