"""Looking inside a run: the files, what there is to see of every kind of method, what it took."""

import json
import re
import sys
from pathlib import Path

import pytest
from inspection_cases import OPTIONS, fitted, shared

from bara_pyro.data import first_rows
from bara_pyro.diagnostics.arviz.compat import groups_of
from bara_pyro.diagnostics.arviz.netcdf import read_netcdf
from bara_pyro.diagnostics.gates.prune import prune
from bara_pyro.diagnostics.page.page import inspect_run, peak_memory

FILES = {
    "trained": {"reliability.png"},
    "rank": {"rank.png"},
    "tokens": {"tokens.html", "tokens.png"},
    "uncertainty": {"uncertainty.png"},
    "draws": {"posterior.nc", "predictive_check.png"},
    "posterior": {"pareto_k.png"},
    "certificate": set(),
}
OF_PHI = {"phi_forest.png", "phi_ridge.png"}


@pytest.fixture(autouse=True)
def small_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few pixels: nobody looks at them here."""
    monkeypatch.setattr("bara_pyro.report.style.DPI", 40)


@pytest.fixture
def two_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of nine, whose picture takes a second."""
    texts = {"one": "in winter", "two": "in summer the guest eats beans ?"}
    monkeypatch.setattr("bara_pyro.diagnostics.page.tokens.default_texts", lambda system: texts)


def files_of(parts: set[str]) -> set[str]:
    return set().union(*(FILES[part] for part in parts)) | {"index.html", "inspection.json"}


def numbers_of(page: Path) -> dict:
    return json.loads((page.parent / "inspection.json").read_text())


def test_the_page_of_a_run_with_gates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nine texts, of the rows of one task: reading eight more takes two seconds.
    monkeypatch.setattr("bara_pyro.diagnostics.gates.tokens.load_task", lambda name: shared().task)
    system = fitted("bara-gate", **{"adapter.target_modules": ["q_proj", "v_proj", "lm_head"]})
    calls: list[int] = []
    page, findings = inspect_run(tmp_path, system, OPTIONS, on_part=calls.append)
    assert sum(calls) == 8
    html = page.read_text()
    assert "http" not in html.replace("http-equiv", "")  # nothing outside it
    assert html.count("<h2") == 7
    assert html.count("<img") == 8
    assert {path.name for path in page.parent.iterdir()} == files_of(set(FILES)) | OF_PHI
    assert all(target in html for target in re.findall(r'href="#(part-\d)"', html))
    numbers = numbers_of(page)
    assert numbers["findings"] == findings
    assert len(findings) > 8
    assert set(numbers["seconds"]) == set(numbers["parts"]) == set(FILES)
    assert numbers["total_seconds"] >= sum(numbers["seconds"].values())
    assert numbers["peak_memory_mib"] > 100  # torch alone takes that
    assert "posterior" in groups_of(read_netcdf(page.parent / "posterior.nc"))


LATENT = {"trained", "rank", "uncertainty", "draws", "posterior", "certificate"}


@pytest.mark.usefixtures("two_texts")
@pytest.mark.parametrize(
    ("method", "settings", "parts"),
    [
        ("lora", {}, {"trained", "rank", "draws"}),
        ("ensemble", {}, {"trained", "draws"}),
        ("bara", {"method.guide": "delta"}, {"trained", "rank", "tokens", "draws"}),
        ("bara", {"method.latent": "phi"}, {*LATENT, "tokens"}),
        ("bara-gate", {"method.latent": "theta"}, {*LATENT, "tokens"}),
        ("bara", {"adapter.target_modules": ["lm_head"]}, LATENT),
    ],
)
def test_what_there_is_to_see(method: str, settings: dict, parts: set[str], tmp_path: Path) -> None:
    system = fitted(method, **settings)
    page, findings = inspect_run(tmp_path, system, OPTIONS)
    assert set(numbers_of(page)["parts"]) == parts
    of_phi = OF_PHI if "phi" in getattr(system.model, "latent", "") else set()
    assert {path.name for path in page.parent.iterdir()} == files_of(parts) | of_phi
    assert findings
    assert "nan" not in " ".join(findings).lower()


@pytest.mark.usefixtures("two_texts")
@pytest.mark.parametrize("method", ["bara-gate", "lora"])
def test_a_pruned_run(method: str, tmp_path: Path) -> None:
    system = fitted(method)
    smaller = prune(system, first_rows(system.split("train"), 4), 0.5).system
    assert smaller.model.rank_pattern
    page, _ = inspect_run(tmp_path, smaller, OPTIONS)
    units = 3 * len(smaller.model.targets)
    gone = sum(3 - rank for rank in smaller.model.rank_pattern.values())
    assert numbers_of(page)["parts"]["rank"]["sparsity"]["psi"] > 99.99 * gone / units


def test_peak_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    status = Path("/proc/self/status")
    if status.exists():  # what Linux itself says, in KiB
        high = int(re.search(r"VmHWM:\s+(\d+) kB", status.read_text())[1])
        assert peak_memory()["peak_memory_mib"] == pytest.approx(high / 1024, rel=0.02)
    resource = pytest.importorskip("resource")
    usage = type("Usage", (), {"ru_maxrss": 3 * 2**20})
    monkeypatch.setattr(resource, "getrusage", lambda who: usage)
    for platform, mib in (("linux", 3 * 2**10), ("darwin", 3)):
        monkeypatch.setattr(sys, "platform", platform)
        assert peak_memory() == {"peak_memory_mib": mib}
    monkeypatch.setitem(sys.modules, "resource", None)  # Windows
    assert peak_memory() == {}
