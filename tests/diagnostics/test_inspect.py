"""The report of an inspection: its files, its parts for each kind of method, and its memory."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from inspection_cases import OPTIONS, fitted
from pydantic import ValidationError

from bara_pyro.core.program import AdaptedLM
from bara_pyro.data.types import Batch
from bara_pyro.diagnostics.arviz.compat import inference_groups, read_netcdf
from bara_pyro.diagnostics.context import Options, look
from bara_pyro.diagnostics.inspection import (
    Inspection,
    inspect_run,
    part_names,
    passes,
    peak_memory,
    write_page,
)
from bara_pyro.diagnostics.parts.posterior import posterior_trust
from bara_pyro.diagnostics.parts.tokens import token_maps
from bara_pyro.runs.evaluate import evaluate_system

PARTS = part_names(Options())
REPORT = {"index.html", "inspection.json", "posterior.nc", "predictive_check.svg", "reliability_s0.svg"}
OF_DRAWS = {f"reliability_s{OPTIONS.samples}.svg"}
OF_RANK = {"sparsity.svg", "effective_rank.svg"}
OF_TOKENS = {"tokens.html"}
OF_GATES = {*OF_DRAWS, "uncertainty_aleatoric.svg", "uncertainty_epistemic.svg", "pareto_k.svg"}
OF_PHI = {"phi_forest.svg"}


@pytest.fixture
def two_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of nine, whose picture takes a second."""
    texts = {"one": "in winter", "two": "in summer the guest eats beans ?"}
    monkeypatch.setattr("bara_pyro.diagnostics.parts.tokens.default_texts", lambda system: texts)


def read(page: Path) -> Inspection:
    return Inspection.model_validate(json.loads((page.parent / "inspection.json").read_text()))


@pytest.mark.slow
def test_the_page_of_a_run_with_gates(tmp_path: Path) -> None:
    system = fitted("bara-gate", **{"adapter.target_modules": ["q_proj", "v_proj", "lm_head"]})
    calls: list[int] = []
    page, findings = inspect_run(tmp_path, system, OPTIONS, on_part=calls.append)
    assert sum(calls) == len(PARTS) + 1
    html = page.read_text()
    outside = re.sub(r"http-equiv|http://www.w3.org/\S+", "", html)  # names of XML, never fetched
    assert "http" not in outside
    assert html.count("<h2") == len(findings) == 7
    assert {path.name for path in page.parent.iterdir()} == REPORT | OF_GATES | OF_RANK | OF_TOKENS | OF_PHI
    assert html.count("<svg") == len(list(page.parent.glob("*.svg")))
    for target in re.findall(r'<a href="([^"]+)"', html):
        assert f'id="{target[1:]}"' in html if target[0] == "#" else (page.parent / target).exists()
    identifiers = re.findall(r' id="([^"]+)"', html)
    assert len(identifiers) == len(set(identifiers))
    found = read(page)
    assert set(found.seconds) == set(PARTS)
    assert found.total_seconds >= 0.99 * sum(found.seconds.values())
    assert "posterior" in inference_groups(read_netcdf(page.parent / "posterior.nc"))
    # From the stored results alone the same page is written again.
    stored, before = json.loads((page.parent / "inspection.json").read_text()), page.read_bytes()
    assert json.loads(found.model_dump_json()) == stored
    page.unlink()
    write_page(found, page.parent)
    assert page.read_bytes() == before
    with pytest.raises(ValidationError, match="'more'"):
        Inspection.model_validate(stored | {"more": 1})


@pytest.mark.usefixtures("two_texts")
def test_a_quick_look_is_of_the_probabilities_alone(tmp_path: Path) -> None:
    calls: list[int] = []
    page, findings = inspect_run(
        tmp_path, fitted("bara-gate"), replace(OPTIONS, deep=False), on_part=calls.append
    )
    found = read(page)
    assert [name for name in PARTS if getattr(found, name) is not None] == ["scores"] == list(found.seconds)
    assert (len(findings), sum(calls)) == (1, 2)
    assert "--deep" in page.read_text()
    assert {path.name for path in page.parent.iterdir()} >= {"index.html", "inspection.json"}
    assert not (page.parent / "posterior.nc").exists()


def test_a_quick_look_at_an_evaluated_run_draws_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system, nothing = fitted("bara-gate"), replace(OPTIONS, deep=False, samples=0)
    page, _ = inspect_run(tmp_path, system, nothing)
    assert [scores.draws for scores in read(page).scores.main] == [0]  # it has not been evaluated
    evaluate_system(system, tmp_path)
    monkeypatch.setattr("bara_pyro.diagnostics.context.draw", None)  # calling it fails
    monkeypatch.setattr("bara_pyro.diagnostics.parts.scores.draw", None)
    drawn: list[str] = []
    monkeypatch.setattr("bara_pyro.report.html.svg_file", lambda figure, alt: drawn.append(alt) or "<svg/>")
    page, _ = inspect_run(tmp_path, system, nothing)
    found = read(page).scores
    assert ([scores.draws for scores in found.evaluated], found.looked_at) == ([0, 10], [])
    assert "--samples" in page.read_text()
    assert len(drawn) == len(set(drawn)) == 2  # each figure once, for the page and its file


@pytest.mark.slow
@pytest.mark.usefixtures("two_texts")
def test_a_deep_look_leaves_out_what_is_slow_and_its_cost_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system, read_rows = fitted("bara-gate"), []
    evaluate_system(system, tmp_path)
    forward = type(system.model).forward

    def counted(model: AdaptedLM, batch: Batch) -> torch.Tensor:
        logits = forward(model, batch)
        read_rows.append(logits[..., 0].numel())
        return logits

    monkeypatch.setattr(type(system.model), "forward", counted)
    found = {}
    for thorough in (False, True):
        asked = replace(OPTIONS, thorough=thorough)
        page, _ = inspect_run(tmp_path, system, asked)
        found[thorough] = read(page)
        # Token maps and bounds of the head are not counted in advance.
        assert passes(asked, 12, 12) == pytest.approx(sum(read_rows), rel=0.3)
        assert ("Add --thorough (about" in page.read_text()) is not thorough
        read_rows.clear()
    few, all_ = found[False], found[True]
    assert few.posterior.learning == all_.posterior.learning
    assert (few.scores, few.rank, few.tokens) == (all_.scores, all_.rank, all_.tokens)
    assert (few.uncertainty, few.posterior.left_out) == (None, None)
    assert list(few.longer) == ["--thorough"]


LATENT = {"scores", "rank", "uncertainty", "draws", "posterior", "bounds"}


@pytest.mark.slow
@pytest.mark.usefixtures("two_texts")
@pytest.mark.parametrize(
    ("method", "settings", "parts", "files"),
    [
        ("lora", {}, {"scores", "rank", "draws"}, OF_RANK),
        ("ensemble", {}, {"scores", "draws"}, OF_DRAWS),
        ("bara", {"method.guide": "delta"}, {"scores", "rank", "tokens", "draws"}, {*OF_RANK, *OF_TOKENS}),
        ("bara-gate", {"method.latent": "theta"}, {*LATENT, "tokens"}, {*OF_RANK, *OF_TOKENS, *OF_GATES}),
        ("bara", {"adapter.target_modules": ["lm_head"]}, LATENT, {*OF_RANK, *OF_GATES}),
    ],
)
def test_what_there_is_to_see(
    method: str, settings: dict, parts: set[str], files: set[str], tmp_path: Path
) -> None:
    system = fitted(method, **settings)
    page, findings = inspect_run(tmp_path, system, OPTIONS)
    found = read(page)
    assert {name for name in PARTS if getattr(found, name) is not None} == parts
    of_phi = OF_PHI if "phi" in getattr(system.model, "latent", "") else set()
    written = {path.name for path in page.parent.iterdir()}
    assert {name for name in written if "reliability" not in name} == {
        name for name in REPORT | files | of_phi if "reliability" not in name
    }
    assert len(findings) == len(parts)
    assert "nan" not in " ".join(findings).lower()


@pytest.mark.slow
@pytest.mark.usefixtures("two_texts")
@pytest.mark.parametrize("method", ["bara-gate", "lora"])
def test_a_run_with_smaller_ranks(method: str, tmp_path: Path) -> None:
    paths = [target.path for target in fitted(method).model.targets]
    smaller = fitted(method, dict.fromkeys(paths[1:], 1))
    page, _ = inspect_run(tmp_path, smaller, OPTIONS)
    absent = 2 * len(paths[1:])
    assert read(page).rank.sparsity["psi"] < 99.99 * absent / (3 * len(paths))  # they are not closed gates
    if method == "lora":
        return
    # Nor are they gates that learnt nothing, at a token or in all.
    context = look(tmp_path, smaller, OPTIONS)
    ranks = [smaller.model.rank_pattern.get(path, 3) for path in context.gates.modules]
    for kl in context.drawn.kl_units.values():
        for own, rank in zip(kl, ranks, strict=True):
            assert own.isfinite().sum() == rank
            assert own[:rank].isfinite().all()
    at_prior = {kind: torch.where(kl.isnan(), kl, 0.0) for kind, kl in context.drawn.kl_units.items()}
    closed = replace(context, gates=replace(context.drawn, kl_units=at_prior))
    assert [one.at_prior for one in posterior_trust(closed).learning] == [100.0, 100.0]
    [text] = token_maps(smaller, {"one": "in winter"}, samples=3, tau=1e-9).texts
    assert text.mean == [0.0, 0.0]


def test_peak_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    status = Path("/proc/self/status")
    if status.exists():  # what Linux itself says, in KiB
        high = int(re.search(r"VmHWM:\s+(\d+) kB", status.read_text())[1])
        assert peak_memory() == pytest.approx(high / 1024, rel=0.02)
    resource = pytest.importorskip("resource")
    usage = type("Usage", (), {"ru_maxrss": 3 * 2**20})
    monkeypatch.setattr(resource, "getrusage", lambda who: usage)
    for platform, mib in (("linux", 3 * 2**10), ("darwin", 3)):
        monkeypatch.setattr(sys, "platform", platform)
        assert peak_memory() == mib
    monkeypatch.setitem(sys.modules, "resource", None)  # Windows
    assert peak_memory() is None
