"""The kinds of columns: one list for settings, options and Python."""

from collections.abc import Callable

import pytest

import bara_pyro as bp
from bara_pyro.columns import KINDS, OPTIONS, ColumnNames, ColumnOptions, column_names, column_options
from bara_pyro.data import task_from_rows
from bara_pyro.runs.config import load_config
from bara_pyro.runs.sections import TaskConfig

ROWS = [{"text": f"{word} {i}", "label": word} for word in ("bad", "good") for i in range(10)]


def test_every_kind_is_a_setting_and_an_argument() -> None:
    assert list(KINDS) == list(ColumnNames.__dataclass_fields__)
    assert {*OPTIONS} == {*ColumnOptions.__annotations__}
    assert {name for name in TaskConfig.model_fields if name.endswith("_column")} == {*OPTIONS}


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_goes_round(kind: str) -> None:
    names = ColumnNames(**{kind: "x"})
    assert names.named == {kind: "x"}
    assert column_names(column_options(names)) == names
    config = load_config(overrides={f"task.{kind}_column": "x", "task.name": "rows.csv"})
    assert config.task.columns == names


@pytest.mark.parametrize("read", [task_from_rows, lambda rows, **how: bp.load_task("rows.csv", **how)])
def test_an_argument_that_is_no_column_is_a_mistake_of_python(read: Callable) -> None:
    with pytest.raises(TypeError, match="txt_column"):
        read(ROWS, txt_column="text")
