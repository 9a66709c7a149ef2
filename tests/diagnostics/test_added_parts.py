"""Parts that packages add to an inspection: computed, stored, read back and shown beside the others."""

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from inspection_cases import OPTIONS, fitted
from pydantic import ValidationError

from bara_pyro.diagnostics import Result, parts
from bara_pyro.diagnostics.context import Context
from bara_pyro.diagnostics.inspection import DIAGNOSTICS, Inspection, look_inside, part_names, sections
from bara_pyro.diagnostics.parts import InspectionPart
from bara_pyro.registry import Registry
from bara_pyro.report.html import Section


class Count(Result):
    """What a package finds."""

    rows: int


def count(context: Context) -> Count | None:
    return Count(rows=len(context.rows)) if context.system.model.gates is not None else None


def show(found: Count) -> Section:
    return Section("Counted", [], f"There are {found.rows} rows.", [])


COUNT = InspectionPart(Count, count, show)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offer one part, and no other."""
    registry: Registry[InspectionPart] = Registry(
        "part of an inspection", "bara_pyro.diagnostics", of=InspectionPart
    )
    vars(registry)["_offered"] = {"count": EntryPoint("count", f"{__name__}:COUNT", "bara_pyro.diagnostics")}
    for module in ("parts", "inspection"):
        monkeypatch.setattr(f"bara_pyro.diagnostics.{module}.ADDED", registry)


@pytest.mark.usefixtures("counted")
def test_a_part_is_computed_stored_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = dict.fromkeys(DIAGNOSTICS, lambda context: None) | {"scores": DIAGNOSTICS["scores"]}
    monkeypatch.setattr("bara_pyro.diagnostics.inspection.DIAGNOSTICS", own)
    found = look_inside(tmp_path, fitted("bara-gate"), OPTIONS)
    assert part_names(OPTIONS) == (*own, "count") == tuple(found.seconds)
    again = Inspection.model_validate_json(found.model_dump_json())
    assert again.model_dump_json() == found.model_dump_json()
    assert again.model_extra == {"count": Count(rows=found.run.rows)}
    assert sections(again, tmp_path)[-1].plain == f"There are {found.run.rows} rows."
    stored = found.model_dump(mode="json")
    assert Inspection.model_validate(stored | {"count": None}).model_extra == {"count": None}
    with pytest.raises(ValidationError, match="rows"):
        Inspection.model_validate(stored | {"count": {"rows": "many"}})
    with pytest.raises(ValidationError, match="'bounds'"):  # nobody offers it here
        Inspection.model_validate(stored | {"bounds": None})


def test_the_bounds_are_such_a_part() -> None:
    assert "bounds" in parts.ADDED
    assert "bounds" not in Inspection.model_fields
