"""Parts that installed packages add to an inspection through the entry points `bara_pyro.diagnostics`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bara_pyro.diagnostics.context import Context
from bara_pyro.diagnostics.result import Result
from bara_pyro.diagnostics.shown import Shown
from bara_pyro.moved import old_names
from bara_pyro.registry import Registry


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
    render: Callable[[Any], Shown]


ADDED: Registry[InspectionPart] = Registry(
    "part of an inspection", "bara_pyro.diagnostics", of=InspectionPart
)

__getattr__ = old_names(__name__)
