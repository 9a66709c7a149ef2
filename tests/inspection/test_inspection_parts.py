"""The parts of an inspection: the numbers behind the sentences and in the pictures."""

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from inspection_cases import OPTIONS, fitted
from scipy.optimize import brentq
from scipy.special import rel_entr

from bara_pyro.diagnostics.arviz.inference_data import to_inference_data
from bara_pyro.diagnostics.arviz.netcdf import read_netcdf
from bara_pyro.diagnostics.gates.sparsity import gate_sparsity
from bara_pyro.diagnostics.page.certificate import certificate
from bara_pyro.diagnostics.page.context import Context, Options, Part, look, options
from bara_pyro.diagnostics.page.draws import draws
from bara_pyro.diagnostics.page.posterior import posterior
from bara_pyro.diagnostics.page.rank import where_the_rank_goes
from bara_pyro.diagnostics.page.tokens import tokens
from bara_pyro.diagnostics.page.trained import trained
from bara_pyro.diagnostics.page.uncertainty import uncertainty
from bara_pyro.metrics import decompose_nested, evaluate, posterior_predictive
from bara_pyro.runs.evaluate import draw


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Context:
    return look(tmp_path_factory.mktemp("run"), fitted("bara-gate"), OPTIONS)


@pytest.fixture(scope="module")
def posterior_part(context: Context) -> Part:
    return posterior(context)


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


def test_bounds_with_and_without_the_divergence(context: Context) -> None:
    def largest(rate: float, budget: float) -> float:
        def excess(p: float) -> float:
            return rel_entr(rate, p) + rel_entr(1 - rate, 1 - p) - budget

        return brentq(excess, rate, 1 - 1e-15) if excess(1 - 1e-15) > 0 else 1.0

    found, n = certificate(context).data["pac_bayes"], len(context.rows)
    bounds, draws = found["drawn-answer"], OPTIONS.bound_draws * n  # each row has its own
    over_draws = largest(bounds["mean"], math.log(2 / 0.005) / draws)
    paid = (found["kl_phi"] + math.log(2 * n**0.5 / 0.045)) / n
    assert bounds["bound"] == pytest.approx(largest(over_draws, paid))
    assert bounds["held_out"] == pytest.approx(largest(over_draws, math.log(1 / 0.045) / n))
    wrong = float((context.log_probs.exp().mean(0).argmax(-1) != context.labels).double().mean())
    assert found["average"]["mean"] == wrong
    assert found["average"]["held_out"] == pytest.approx(largest(wrong, math.log(20) / n))


def test_token_maps_of_texts_that_were_given(context: Context, tmp_path: Path) -> None:
    texts = tuple(row.question for row in context.system.task.test[:2])
    own = replace(context.options, texts=texts)
    part = tokens(replace(context, folder=tmp_path, options=own))
    assert set(part.data["mean_percent_by_text"]) == {"text 1", "text 2"}
    page = (tmp_path / "report" / "tokens.html").read_text()
    words = re.sub(r"<.*?>", "", page.split("</h2>")[-1].split("</div>")[0]).split()
    assert words == texts[1].split()


def test_posterior_part(context: Context, posterior_part: Part) -> None:
    part = posterior_part
    assert part.data["loo"]["rows"] == 12
    assert part.data["collapse"]["kl"]["phi"] > 0
    labels = context.labels
    unseen = posterior_predictive(context.log_probs)[torch.arange(len(labels)), labels].mean()
    assert part.data["loo"]["unseen"] == pytest.approx(float(unseen), abs=1e-6)
    assert len(part.data["prior_predictive"]) == 5


def test_a_row_that_weighs_too_much_is_marked(context: Context, posterior_part: Part) -> None:
    part = posterior_part
    data = to_inference_data(context.system, split="train", rows=12, samples=30, prior=False)
    expected = data.constant_data["pareto_k"]
    assert part.data["loo"]["pareto_k"] == pytest.approx(
        dict(zip(expected["obs"].values, expected.values, strict=True))
    )
    (axes,) = part.pictures["pareto_k"].figure.axes
    limit = axes.lines[0].get_ydata()[0]
    assert limit == pytest.approx(1 - 1 / np.log10(30))
    drawn = np.concatenate([points.get_offsets() for points in axes.collections])
    np.testing.assert_allclose(drawn[:, 1], np.sort(expected.values))
    np.testing.assert_array_equal(drawn[:, 0], np.arange(1, 13))
    above = axes.collections[-1]
    assert "above" in above.get_label()
    assert len(above.get_offsets()) == part.data["loo"]["high_k"] == (expected.values > limit).sum()
    few = posterior(replace(context, options=replace(OPTIONS, train_draws=10)))
    assert few.pictures == {}
    assert "10 draws are too few" in " ".join(few.findings)


def test_draws_part(context: Context) -> None:
    part = draws(context)
    data = read_netcdf(context.out / "posterior.nc")
    y, seen = data.posterior_predictive["y"].values[0], context.labels.numpy()
    for c, name in enumerate(context.system.task.labels):
        found = part.data["answers"][name]
        shares = [100 * sum(int(answer == c) for answer in draw) / len(seen) for draw in y]
        assert found["observed"] == pytest.approx(100 * (seen == c).mean())
        assert [found["low"], found["median"], found["high"]] == pytest.approx(
            np.percentile(shares, [3, 50, 97])
        )
    phi = data.posterior["phi"].sel(module="lm_head").values
    assert part.data["phi_median"]["lm_head"] == pytest.approx(float(np.median(phi)))
    medians = part.data["phi_median"]
    assert f"from {min(medians.values()):.2f}" in part.findings[1]
    assert f"to {max(medians.values()):.2f}" in part.findings[1]


def test_answers_that_are_not_as_predicted(context: Context) -> None:
    # All rows get the answer that is predicted for half of them or so.
    task = context.system.task
    same = replace(task, test=tuple(replace(row, label=1) for row in task.test))
    part = draws(replace(context, system=replace(context.system, task=same)))
    assert part.data["answers"]["B"]["observed"] == 100 > part.data["answers"]["B"]["high"]
    assert part.findings[0].startswith("Not as frequent as predicted: 'A' has 0 % of the rows, ")
    assert "'B' has 100 % of the rows, " in part.findings[0]


def test_truth_that_is_not_known(context: Context) -> None:
    part = uncertainty(replace(context, truth=torch.full_like(context.truth, torch.nan)))
    for axes in part.pictures["uncertainty"].figure.axes:
        assert [tick.get_text() for tick in axes.get_xticklabels()] == ["right", "wrong"]
    assert "aleatoric_bias" not in part.data


def test_a_point_has_one_reliability_diagram(context: Context) -> None:
    one = context.log_probs[:1]
    assert set(trained(replace(context, log_probs=one)).data["scores"]) == {"0"}
    assert set(trained(context).data["scores"]) == {"0", "6"}


def test_all_draws_go_with_their_number() -> None:
    assert options(256, 50, 0.1) == Options()  # what the command takes by default
    few = options(32, 5, 0.2)
    assert few.nested == 3
    assert max(few.bound_draws, few.train_draws, few.token_samples, few.prior_draws) == 10
