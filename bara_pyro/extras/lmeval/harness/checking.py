"""Rows of the user's own, read once before lm-eval reads them: one that a task cannot use is named.

lm-eval looks at the first row alone when it loads a task, and what is wrong with it or a later one surfaces
where no file is known any more.
"""

import ast
from functools import lru_cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import yaml
from jinja2 import Template, TemplateError, UndefinedError, meta
from lm_eval.utils import env

from bara_pyro.data.reading import objects_in
from bara_pyro.errors import DataError
from bara_pyro.extras.lmeval.harness.rows import OF_ROWS
from bara_pyro.types import Json

WRONG = (TemplateError, KeyError, IndexError, ValueError, TypeError, AttributeError, SyntaxError)
"""What comes of a row without a column, or with another value than a task expects there."""


class _LoaderOfFunctions(yaml.SafeLoader):
    """Reads the name of a function as the function: of the files of this package alone."""


def _function(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> Any:
    return resolve_name(loader.construct_scalar(node))


_LoaderOfFunctions.add_constructor("!function", _function)


def check_task_rows(source: Path, files: list[Path]) -> None:
    """Refuse files with a row that a task cannot use.

    Args:
        source: the task's own file, one of this package.
        files: its rows.

    Raises:
        DataError: a row lacks a column or has no answer among its options, or a line is no JSON object.
    """
    task = yaml.load(source.read_text(encoding="utf-8"), Loader=_LoaderOfFunctions)  # noqa: S506 - a SafeLoader
    for path in files:
        for number, row in enumerate(objects_in(path), start=1):
            _check_row(task, row, f"{path}, row {number}")


def _check_row(task: Json, row: Json, place: str) -> None:
    if "process_docs" in task:
        row = row | _part("row", OF_ROWS[task["process_docs"]], row, place)
    question = _part("question", task["doc_to_text"], row, place)
    told = task["doc_to_target"]
    answer = _part("answer", told, row, place)
    if "doc_to_choice" not in task:
        return
    options = _part("options", task["doc_to_choice"], row, place)
    options = ast.literal_eval(options) if isinstance(options, str) else options
    if isinstance(question, int):
        return  # which option is right; all of them go on to the same words
    if isinstance(answer, str) and not answer.isdigit():
        there = answer in options
    else:
        there = isinstance(answer, int | str) and 0 <= int(answer) < len(options)
    if not there:
        raise DataError(
            f"{place}: the answer{_read_from(_columns(told))} is {answer!r}, which is none of the "
            f"{len(options)} options: mend the row."
        )


def _part(name: str, told: Any, row: Json, place: str) -> Any:
    """Return the question, the options or the answer of a row, by what the task file says of it."""
    try:
        if callable(told):
            return told(row)
        if not isinstance(told, str):
            return told
        return _template(told).render(**row) if "{{" in told else row[told]
    except WRONG as error:
        part = f"the {name}{_read_from(_columns(told))}"
        raise DataError(
            f"{place}: {part} cannot be read ({_reason(error)}): give the row the columns and values that "
            "the dataset on the hub has."
        ) from error


@lru_cache
def _template(text: str) -> Template:
    return env.from_string(text)


# What the sentences say ------------------------------------------------------------------------------


def _columns(told: object) -> list[str]:
    """Return the columns that a part is read from, as far as the task file names them."""
    if not isinstance(told, str):
        return []
    return sorted(meta.find_undeclared_variables(env.parse(told))) if "{{" in told else [told]


def _read_from(columns: list[str]) -> str:
    return f", read from {' and '.join(columns)}," if columns else ""


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"there is no {error}"
    if isinstance(error, UndefinedError) and str(error).endswith(" is undefined"):
        return f"there is no {str(error).removesuffix(' is undefined')}"
    return str(error).rstrip(".").replace(". ", "; ") or type(error).__name__
