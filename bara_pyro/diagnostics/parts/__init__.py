"""Parts that installed packages add to an inspection through the entry points `bara_pyro.diagnostics`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bara_pyro.diagnostics import Result
from bara_pyro.diagnostics.context import Context
from bara_pyro.registry import Registry
from bara_pyro.report.html import Section
from bara_pyro.report.table import Column, Table


def pairs(
    rows: Sequence[tuple[str, object]], headings: tuple[str, str], caption: str, format: str = ".2f"
) -> Table:
    """Return a table with two columns, a name and a value."""
    columns = (Column("what", headings[0]), Column("value", headings[1], format=format))
    return Table(columns, [{"what": what, "value": value} for what, value in rows], caption)


@dataclass(frozen=True)
class InspectionPart:
    """A field of `Inspection`, named after its entry point, and a section of the report.

    Attributes:
        result: class of the result.
        compute: returns the result for a run, or None if the part does not apply to its method.
        render: returns the section of the report.
    """

    result: type[Result]
    compute: Callable[[Context], Result | None]
    render: Callable[[Any], Section]


ADDED: Registry[InspectionPart] = Registry(
    "part of an inspection", "bara_pyro.diagnostics", of=InspectionPart
)
