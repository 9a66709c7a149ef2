"""Looking inside a run: the files, the numbers behind the sentences, every kind of method."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bara_pyro.config import load_config
from bara_pyro.diagnostics.netcdf import read_netcdf
from bara_pyro.diagnostics.prune import prune
from bara_pyro.diagnostics.sparsity import gate_sparsity
from bara_pyro.evaluate import draw
from bara_pyro.inspection.certificate import certificate
from bara_pyro.inspection.context import Context, Options, look, options
from bara_pyro.inspection.page import inspect_run
from bara_pyro.inspection.posterior import posterior
from bara_pyro.inspection.rank import where_the_rank_goes
from bara_pyro.inspection.trained import trained
from bara_pyro.inspection.uncertainty import uncertainty
from bara_pyro.metrics import decompose_nested, evaluate, posterior_predictive
from bara_pyro.system import System, build_system

OPTIONS = Options(
    rows=10, samples=6, nested=3, token_samples=2, bound_draws=5, train_rows=12, train_draws=40, prior_draws=2
)
FILES = {"index.html", "inspection.json", "posterior.nc", "reliability.png"}
OF_GATES = {"rank.png", "tokens.html", "tokens.png", "uncertainty.png"}


def fitted(method: str, **settings: object) -> System:
    base = {"method": method, "task.name": "micro-wgs", "task.limit": 12, "adapter.r": 3}
    system = build_system(load_config(overrides={**base, **settings}))
    torch.manual_seed(1)
    with torch.no_grad():
        for name, weight in (*system.model.named_parameters(), *system.guide.named_parameters()):
            if weight.requires_grad:
                weight.add_((0.02 if name.endswith("lora_B") else 0.2) * torch.randn_like(weight))
    return system


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Context:
    return look(tmp_path_factory.mktemp("run"), fitted("bara-gate"), OPTIONS)


@pytest.mark.parametrize("method", ["bara-gate", "bara"])
def test_the_files_of_a_run_with_gates(method: str, tmp_path: Path) -> None:
    calls: list[int] = []
    page, findings = inspect_run(tmp_path, fitted(method), OPTIONS, on_part=calls.append)
    assert {path.name for path in page.parent.iterdir()} == FILES | OF_GATES
    assert sum(calls) == 7
    html = page.read_text()
    assert "http" not in html.replace("http-equiv", "")  # nothing outside it
    assert html.count("<h2") == 6
    assert all(target in html for target in re.findall(r'href="#(part-\d)"', html))
    numbers = json.loads((page.parent / "inspection.json").read_text())
    assert numbers["findings"] == findings
    assert len(findings) > 8
    assert set(numbers["parts"]) == {"trained", "rank", "tokens", "uncertainty", "posterior", "certificate"}
    assert "posterior" in [group.strip("/") for group in read_netcdf(page.parent / "posterior.nc").groups()]


LATENT = {"trained", "rank", "uncertainty", "posterior", "certificate"}


@pytest.mark.parametrize(
    ("method", "settings", "parts"),
    [
        ("lora", {}, {"trained", "rank"}),
        ("ensemble", {}, {"trained"}),
        ("bara", {"method.guide": "delta"}, {"trained", "rank", "tokens"}),
        ("bara", {"method.latent": "phi"}, {*LATENT, "tokens"}),
        ("bara-gate", {"method.latent": "theta"}, {*LATENT, "tokens"}),
        ("bara", {"adapter.target_modules": ["lm_head"]}, LATENT),
    ],
)
def test_what_there_is_to_see(method: str, settings: dict, parts: set[str], tmp_path: Path) -> None:
    page, findings = inspect_run(tmp_path, fitted(method, **settings), OPTIONS)
    numbers = json.loads((page.parent / "inspection.json").read_text())
    assert set(numbers["parts"]) == parts
    assert findings
    assert "nan" not in " ".join(findings).lower()


@pytest.mark.parametrize("method", ["bara-gate", "lora"])
def test_a_pruned_run(method: str, tmp_path: Path) -> None:
    system = fitted(method)
    smaller = prune(system, system.split("train"), 0.5).system
    assert smaller.model.rank_pattern
    page, _ = inspect_run(tmp_path, smaller, OPTIONS)
    numbers = json.loads((page.parent / "inspection.json").read_text())
    units = 3 * len(smaller.model.targets)
    gone = units - sum(smaller.model.rank_pattern.values()) - 3 * (9 - len(smaller.model.rank_pattern))
    assert numbers["parts"]["rank"]["sparsity"]["psi"] >= 100 * gone / units


def test_scores_are_those_of_the_rows(context: Context) -> None:
    part = trained(context)
    averaged = posterior_predictive(draw(context.system, context.rows, OPTIONS.samples))
    expected = evaluate(averaged, context.labels, context.truth)
    assert part.data["scores"]["6"] == pytest.approx(expected, rel=1e-5)
    assert f"{expected['acc']:.1f} % right" in part.findings[0]


def test_rows_keep_their_gates(context: Context) -> None:
    # Batches are made by length; the answers, the gates and the labels of a row must stay together.
    alone = draw(context.system, context.rows, OPTIONS.samples)
    assert torch.allclose(context.log_probs, alone, atol=1e-5)
    assert context.gates.ids == context.rows.ids


def test_rank_part(context: Context) -> None:
    part = where_the_rank_goes(context)
    expected = gate_sparsity(context.gates, OPTIONS.tau).overall
    assert part.data["sparsity"] == expected
    assert f"{expected['psi']:.1f} % of the gates are off in a draw" in part.findings[-1]
    assert part.data["support"]["broken_sound"] == 0
    on = (context.gates.psi > OPTIONS.tau).double().sum(-1).mean()
    assert part.data["effective_rank"]["mean"] == pytest.approx(float(on))


def test_uncertainty_part(context: Context) -> None:
    part = uncertainty(context)
    expected = decompose_nested(draw(context.system, context.rows, 9, repeats=3), 3)
    for name in ("total", "aleatoric", "global_", "local"):
        assert part.data[name] == pytest.approx(float(getattr(expected, name).mean()))


def test_over_confidence_is_called_by_its_name(context: Context) -> None:
    # Rows that are all answered wrong, with certainty; then all right, without any.
    sure = torch.tensor([[0.999, 0.001]], dtype=torch.float64).log().expand(6, len(context.rows), 2)
    wrong = replace(context, log_probs=sure, labels=torch.ones_like(context.labels))
    assert "over-confident on the whole" in trained(wrong).findings[0]
    unsure = torch.tensor([[0.51, 0.49]], dtype=torch.float64).log().expand(6, len(context.rows), 2)
    right = replace(context, log_probs=unsure, labels=torch.zeros_like(context.labels))
    assert "under-confident on the whole" in trained(right).findings[0]


def test_a_certificate_never_comes_without_its_assumptions(context: Context) -> None:
    part = certificate(context)
    text = " ".join(part.section.text)
    assert "Assumed" in text or "assum" in text.lower()
    assert part.data["certified"]["bound"] > 0
    additive = look(context.folder, fitted("bara"), OPTIONS)
    assert "not of that kind" in " ".join(certificate(additive).section.text)
    assert "certified" not in certificate(additive).data


def test_posterior_part(context: Context) -> None:
    part = posterior(context)
    assert part.data["loo"]["rows"] == 12
    assert part.data["collapse"]["kl"]["phi"] > 0
    labels = context.labels
    unseen = posterior_predictive(context.log_probs)[torch.arange(len(labels)), labels].mean()
    assert part.data["loo"]["unseen"] == pytest.approx(float(unseen), abs=1e-6)
    assert len(part.data["prior_predictive"]) == 5


def test_all_draws_go_with_their_number() -> None:
    assert options(256, 50, 0.1) == Options()  # what the command takes by default
    few = options(32, 5, 0.2)
    assert few.nested == 3
    assert max(few.bound_draws, few.train_draws, few.token_samples, few.prior_draws) == 20
