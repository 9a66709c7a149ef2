"""Tables for the terminal and for Markdown."""

import io
import math

import pytest
from rich.console import Console

from bara_pyro.cli import terminal
from bara_pyro.errors import ConfigError
from bara_pyro.report.table import Column, Table, cells, markdown, rich_table

COLUMNS = [
    Column("method", "Method"),
    Column("acc", "Accuracy", "%", ".1f", "max"),
    Column("nll", "NLL", "nats", ".3f", "min"),
    Column("n", "Rows", "", "d"),
]
ROWS = [
    {"method": "LoRA", "acc": 55.04, "nll": 1.25, "n": 640},
    {"method": "BaRA", "acc": 56.96, "nll": 0.93, "n": 640},
    {"method": "BLoB", "acc": None, "nll": math.inf},
]


def shown(rows: list, column: Column) -> list[tuple[str, bool]]:
    return [(row[0].text, row[0].best) for row in cells(Table([column], rows))]


def test_markdown_written_out():
    assert markdown(Table(COLUMNS, ROWS, "Test split")) == (
        "Test split\n"
        "\n"
        "| Method | Accuracy (%) | NLL (nats) | Rows |\n"
        "| --- | ---: | ---: | ---: |\n"
        "| LoRA | 55.0 | 1.250 | 640 |\n"
        "| BaRA | **57.0** | **0.930** | 640 |\n"
        "| BLoB | – | ∞ | – |\n"
    )


def test_rich_shows_the_same_cells_and_takes_names_literally():
    rows = [*ROWS, {"method": "[red]x[/red]", "acc": 1.0}]
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    console.print(rich_table(Table(COLUMNS, rows, "Test [split]")))
    text = console.file.getvalue()
    for words in ("Test [split]", "Accuracy (%)", "57.0", "∞", "–", "[red]x[/red]"):
        assert words in text
    bold = [
        cell.plain
        for column in rich_table(Table(COLUMNS, rows)).columns
        for cell in column.cells
        if "bold" in str(cell.style)
    ]
    assert bold == ["57.0", "0.930"]


def test_a_terminal_that_is_too_narrow_loses_no_column(monkeypatch):
    columns = [Column("method", "method"), *(Column(f"task{i}", f"task{i}", "", ".3f") for i in range(6))]
    rows = [{"method": "BaRA gate", **{f"task{i}": (0.123 + i, 0.01) for i in range(6)}}]
    console = Console(file=io.StringIO(), width=60, color_system=None)
    monkeypatch.setattr(terminal, "console", console)
    terminal.show(Table(columns, rows))
    text = console.file.getvalue()
    assert "BaRA" in text
    assert "gate" in text
    assert all(f"{0.123 + i:.3f} ± 0.010" in text for i in range(6))


def marks(values: list, column: Column) -> str:
    """One letter a value: b for the best, s for the second best."""
    found = [row[0] for row in cells(Table([column], [{"v": value} for value in values]))]
    return "".join("b" if cell.best else "s" if cell.second else "." for cell in found)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 3.0, 2.0], ".bs"),
        ([3.0, 3.001, 2.0, 1.0], "bbs."),
        ([3.0, 2.0, 2.001, 1.0], "bss."),
        ([(3.0, 9.0), (2.0, 0.1), None, "failed", math.nan, -math.inf], "bs...."),
        ([3.0, 2.0], "b."),  # there is nothing that the second is better than
        ([3.0, 2.0, 2.0], "b.."),
        ([1.0, 1.0, 1.0], "..."),
    ],
)
def test_second_best(values: list, expected: str):
    column = Column("v", "V", best="max", second=True)
    assert marks(values, column) == expected
    assert marks(values, Column("v", "V", best="max")) == expected.replace("s", ".")
    turned = [-v if isinstance(v, float) else (-v[0], v[1]) if isinstance(v, tuple) else v for v in values]
    assert marks(turned, Column("v", "V", best="min", second=True)) == expected


def test_how_the_second_best_is_shown():
    table = Table([Column("v", "V", format=".0f", best="max", second=True)], [{"v": v} for v in (3, 2, 1)])
    assert markdown(table).splitlines()[2:] == ["| **3** |", "| _2_ |", "| 1 |"]
    (column,) = rich_table(table).columns
    assert [str(cell.style) for cell in column.cells] == ["bold", "italic", ""]


def test_mean_and_standard_deviation():
    rows = [{"v": (55.91, 1.24)}, {"v": (55.0, 20.0)}, {"v": (51.0, None)}]
    assert shown(rows, Column("v", "V", format=".1f", best="max")) == [
        ("55.9 ± 1.2", True),
        ("55.0 ± 20.0", False),
        ("51.0 ± –", False),
    ]
    # A sign is of the mean alone.
    assert shown([{"v": (0.5, 0.25)}], Column("v", "V", format="+.2f")) == [("+0.50 ± 0.25", False)]


def test_a_failed_value_is_shown_and_never_best():
    rows = [{"v": math.nan}, {"v": -math.inf}, {"v": 0}, {"v": True}]
    assert shown(rows, Column("v", "V", best="max")) == [
        ("NaN", False),
        ("-∞", False),
        ("0.00", True),
        ("True", False),
    ]


def test_markdown_escapes_what_would_break_the_table():
    table = Table([Column("a", "A|B")], [{"a": "x | y\n<script>*z*`"}])
    assert markdown(table).splitlines() == ["| A\\|B |", "| --- |", "| x \\| y \\<script>\\*z\\*\\` |"]


def test_no_rows():
    assert markdown(Table(COLUMNS[:2], [])) == "| Method | Accuracy (%) |\n| --- | --- |\n"
    assert rich_table(Table(COLUMNS, [])).row_count == 0


def test_unknown_direction():
    with pytest.raises(ConfigError, match="'largest'"):
        Column("v", "V", best="largest")
