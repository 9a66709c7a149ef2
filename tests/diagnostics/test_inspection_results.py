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
from xarray import DataArray, Dataset

from bara_pyro.data import EncodedSplit
from bara_pyro.diagnostics.arviz.compat import read_netcdf
from bara_pyro.diagnostics.arviz.inference_data import to_inference_data
from bara_pyro.diagnostics.context import Context, look, run_facts
from bara_pyro.diagnostics.parts.draws import _answers, export_draws, render_draws
from bara_pyro.diagnostics.parts.posterior import (
    PosteriorTrust,
    pareto_figure,
    posterior_trust,
    render_posterior,
)
from bara_pyro.diagnostics.parts.rank import rank_use, render_rank
from bara_pyro.diagnostics.parts.scores import (
    DistributionScores,
    _plain,
    chance_eces,
    predictive_scores,
    render_scores,
    scores_of,
    stored_scores,
)
from bara_pyro.diagnostics.parts.tokens import token_page, token_use
from bara_pyro.diagnostics.parts.uncertainty import uncertainty_figure, uncertainty_split
from bara_pyro.diagnostics.sparsity import gate_sparsity
from bara_pyro.extras.bounds.guarantees import guarantees
from bara_pyro.metrics import decompose_nested, ece, evaluate, posterior_predictive
from bara_pyro.runs.evaluate import draw, evaluate_system
from bara_pyro.runs.system import System


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Context:
    return look(tmp_path_factory.mktemp("run"), fitted("bara-gate"), OPTIONS)


@pytest.fixture(scope="module")
def trust(context: Context) -> PosteriorTrust:
    return posterior_trust(context)


def test_scores_are_those_of_the_rows(context: Context) -> None:
    found = predictive_scores(context)
    averaged = posterior_predictive(draw(context.system, context.rows, OPTIONS.samples))
    expected = evaluate(averaged, context.labels)
    assert found.evaluated == []
    assert [s.draws for s in found.looked_at] == [0, OPTIONS.samples]
    shown = found.main[-1]
    assert (shown.acc, shown.ece, shown.nll) == pytest.approx(
        tuple(expected[key] for key in ("acc", "ece", "nll")), rel=1e-5
    )
    assert shown.confidence == pytest.approx(100 * float(averaged.exp().amax(-1).mean()))
    assert f"accuracy {expected['acc']:.1f} %" in render_scores(run_facts(context), found).technical[0]


def test_scores_of_all_rows_are_those_of_evaluate(tmp_path: Path) -> None:
    system = fitted("bara-gate")
    report = evaluate_system(system, tmp_path)
    found = predictive_scores(look(tmp_path, system, OPTIONS))
    for s in found.evaluated:
        assert s.rows == len(system.split("test"))
        for key in ("acc", "ece", "nll", "brier"):
            assert getattr(s, key) == pytest.approx(report["metrics"][str(s.draws)][key], rel=1e-6)
    assert [s.draws for s in found.evaluated] == sorted(map(int, report["metrics"]))
    assert stored_scores(tmp_path, "other settings") == []
    words = " ".join(render_scores(run_facts(look(tmp_path, system, OPTIONS)), found).technical)
    assert f"{found.looked_at[-1].rows} rows used in the rest of this report" in words


def test_ece_by_chance_is_what_calibrated_predictions_show() -> None:
    # Independently: many data sets whose labels are drawn from the predictions, one after the other.
    generator = np.random.default_rng(0)
    probs = np.stack([p := generator.uniform(0, 1, 80), 1 - p], axis=1)
    log_probs = torch.from_numpy(probs).log()
    drawn = [
        ece(log_probs, torch.from_numpy((generator.random(80) > probs[:, 0]).astype(int))) for _ in range(400)
    ]
    error = np.std(drawn) * (1 / 400 + 1 / 200) ** 0.5
    by_chance = float(chance_eces(log_probs).mean())
    assert by_chance == pytest.approx(np.mean(drawn), abs=4 * error)
    assert float(chance_eces(log_probs.repeat(40, 1)).mean()) < by_chance / 3  # it falls as rows are added


def test_rows_keep_their_gates(context: Context) -> None:
    # Batches are made by length; the answers, the gates and the labels of a row must stay together.
    alone = draw(context.system, context.rows, OPTIONS.samples)
    assert torch.allclose(context.log_probs, alone, atol=1e-5)
    assert context.gates.ids == context.rows.ids


def test_rank_use(context: Context) -> None:
    found = rank_use(context)
    expected = gate_sparsity(context.gates, OPTIONS.tau).overall
    assert found.sparsity == expected
    assert f"{expected['psi']:.1f} % of the gates are off in a draw" in render_rank(found).technical[-1]
    assert found.support.broken_sound == 0
    on = (context.gates.psi > OPTIONS.tau).double().sum(-1)
    assert found.summary.mean == pytest.approx(float(on.mean()))
    assert found.rows == pytest.approx(on.mean(dim=(0, 2)).tolist())


def test_uncertainty_split(context: Context) -> None:
    found = uncertainty_split(context)
    expected = decompose_nested(draw(context.system, context.rows, 25, repeats=5), 5)
    for name in ("total", "aleatoric", "global_", "local"):
        assert getattr(found, name) == pytest.approx(float(getattr(expected, name).mean()))
    assert sum(map(found.share, ("aleatoric", "global_", "local"))) == pytest.approx(100)


def test_bounds_with_and_without_the_divergence(context: Context) -> None:
    def largest(rate: float, budget: float) -> float:
        def excess(p: float) -> float:
            return rel_entr(rate, p) + rel_entr(1 - rate, 1 - p) - budget

        return brentq(excess, rate, 1 - 1e-15) if excess(1 - 1e-15) > 0 else 1.0

    found, n = guarantees(context).pac_bayes, len(context.rows)
    draws = OPTIONS.samples * n  # each row has its own
    over_draws = largest(found.drawn.mean, math.log(2 / 0.005) / draws)
    paid = (found.kl_phi + math.log(2 * n**0.5 / 0.045)) / n
    assert found.drawn.pac_bayes == pytest.approx(largest(over_draws, paid))
    assert found.drawn.held_out == pytest.approx(largest(over_draws, math.log(1 / 0.045) / n))
    wrong = float((context.log_probs.exp().mean(0).argmax(-1) != context.labels).double().mean())
    assert found.average.mean == wrong
    assert found.average.held_out == pytest.approx(largest(wrong, math.log(20) / n))


def test_token_maps_of_texts_that_were_given(context: Context, tmp_path: Path) -> None:
    texts = tuple(row.question for row in context.system.task.test[:2])
    own = replace(context.options, texts=texts)
    found = token_use(replace(context, options=own))
    assert [text.title for text in found.texts] == ["text 1", "text 2"]
    page = token_page(found, tmp_path / "tokens.html", "tokens").read_text()
    words = re.sub(r"<.*?>", "", page.split("</h2>")[-1].split("</p>")[0]).split()
    assert words == texts[1].split()


def test_trust(context: Context, trust: PosteriorTrust) -> None:
    assert trust.left_out.rows == 8
    assert {one.kind for one in trust.learning} == {"phi", "theta"}
    assert min(one.mean for one in trust.learning) > 0
    labels = context.labels
    unseen = posterior_predictive(context.log_probs)[torch.arange(len(labels)), labels].mean()
    assert trust.left_out.unseen == pytest.approx(float(unseen), abs=1e-6)


def test_a_row_that_weighs_too_much_is_marked(context: Context, trust: PosteriorTrust) -> None:
    left = trust.left_out
    data = to_inference_data(context.system, split="train", rows=8, samples=30, prior=False)
    expected = data.constant_data["pareto_k"]
    by_row = dict(zip(expected["obs"].values, expected.values, strict=True))
    assert left.pareto_k == pytest.approx(by_row, rel=1e-3)  # recorded draws are rounded in another way
    limit = 1 - 1 / np.log10(30)
    assert left.good_k == pytest.approx(limit)
    assert left.high_k == (expected.values > limit).sum()
    (axes,) = pareto_figure(list(left.pareto_k.values()), left.good_k).axes
    assert axes.lines[0].get_ydata()[0] == pytest.approx(limit)
    drawn = np.concatenate([points.get_offsets() for points in axes.collections])
    np.testing.assert_allclose(drawn[:, 1], sorted(left.pareto_k.values()))
    np.testing.assert_array_equal(drawn[:, 0], np.arange(1, 9))
    assert len(axes.collections[-1].get_offsets()) == left.high_k > 0
    few = posterior_trust(replace(context, options=replace(OPTIONS, samples=5)))
    assert render_posterior(few).pictures == []
    assert "10 draws are too few" in " ".join(render_posterior(few).technical)


def test_draws_that_are_all_the_same_leave_that_part_out(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of a run that did not move: the page says so, and has all else."""

    def of_a_point(system: System, rows: EncodedSplit, samples: int) -> torch.Tensor:
        return draw(system, rows, 0).expand(samples, -1, -1)

    monkeypatch.setattr("bara_pyro.diagnostics.parts.posterior.draw", of_a_point)
    found = posterior_trust(context)
    assert found.left_out is None
    shown = render_posterior(found)
    assert "the posterior has no spread" in str(shown)
    assert "All draws of 'bara-gate' are the same" in str(shown)


def test_a_difference_within_its_error_is_not_called_memorization(trust: PosteriorTrust) -> None:
    left = trust.left_out.model_copy(update={"elpd": -0.5, "unseen": -0.6, "se": 0.1, "unseen_se": 0.01})
    said = str(render_posterior(trust.model_copy(update={"left_out": left})))
    assert "memorized" not in said
    surer = str(render_posterior(trust.model_copy(update={"left_out": left.model_copy(update={"se": 0.01})})))
    assert "was memorized" in surer
    few = left.model_copy(update={"se": 0.01, "unseen_se": 0.1})  # unseen rows could have been others, too
    assert "was memorized" not in str(render_posterior(trust.model_copy(update={"left_out": few})))
    assert "within two standard errors" in said


def test_drawn_answers(context: Context) -> None:
    found = export_draws(context)
    data = read_netcdf(context.out / found.file)
    y, seen = data.posterior_predictive["y"].values[0], context.labels.numpy()
    for c, share in enumerate(found.answers):
        assert share.answer == context.system.task.labels[c]
        shares = [100 * sum(int(answer == c) for answer in draw) / len(seen) for draw in y]
        assert share.observed == pytest.approx(100 * (seen == c).mean())
        assert [share.low, share.median, share.high] == pytest.approx(np.percentile(shares, [3, 50, 97]))
    medians, phi = found.phi_median, data.posterior["phi"].sel(module="lm_head").values
    assert medians["lm_head"] == pytest.approx(float(np.median(phi)))
    sentence = render_draws(found, context.out).technical[1]
    assert f"from {min(medians.values()):.2f}" in sentence
    assert f"to {max(medians.values()):.2f}" in sentence


def test_answers_that_are_not_as_predicted(context: Context) -> None:
    # All rows get the answer that is predicted for half of them or so.
    task = context.system.task
    same = replace(task, test=tuple(replace(row, label=1) for row in task.test))
    found = export_draws(replace(context, system=replace(context.system, task=same)))
    assert found.answers[1].observed == 100 > found.answers[1].high
    shown = render_draws(found, context.out)
    assert shown.technical[0].startswith("Not as frequent as predicted: 'A' has 0 % of the rows, ")
    assert "'B' has 100 % of the rows, " in shown.technical[0]
    assert "more often than it should" in shown.plain or "less often than it should" in shown.plain


def test_truth_that_is_not_known(context: Context) -> None:
    found = uncertainty_split(replace(context, truth=torch.full_like(context.truth, torch.nan)))
    for kind in ("aleatoric", "epistemic"):
        (axes,) = uncertainty_figure(found, kind).axes
        assert [tick.get_text() for tick in axes.get_xticklabels()] == ["right", "wrong"]
    assert found.aleatoric_bias is None


def test_a_point_has_one_line_of_scores(context: Context) -> None:
    one = predictive_scores(replace(context, log_probs=context.log_probs[:1]))
    assert [s.draws for s in one.looked_at] == [0]


@pytest.mark.parametrize(("rows", "sure", "expected"), [(20, 0.98, 0), (60, 0.99, 0), (60, 0.7, -1)])
def test_all_answers_right_is_no_reproach_where_that_was_to_be_expected(
    rows: int, sure: float, expected: int
) -> None:
    log_probs = torch.tensor([[sure, 1 - sure]], dtype=torch.float64).log().expand(rows, 2)
    assert scores_of(log_probs, torch.zeros(rows, dtype=torch.long), 0).sureness == expected


@pytest.mark.parametrize(
    ("rows", "right", "sure", "said"),
    [
        (
            12,
            5,
            0.58,
            "gaps under 28 points",
        ),
        (4000, 2320, 0.58, "can be trusted"),
        (4000, 2000, 0.58, "overconfident"),
    ],
)
def test_few_rows_prove_no_calibration(rows: int, right: int, sure: float, said: str) -> None:
    """Worse than the most frequent answer, 12 rows of a run were said to be taken at their word."""
    log_probs = torch.tensor([[sure, 1 - sure]], dtype=torch.float64).log().expand(rows, 2)
    labels = (torch.arange(rows) >= right).long()
    assert said in _plain(scores_of(log_probs, labels, 0))


def mixed(rows: int, right: int, sure: float, unsure: float) -> DistributionScores:
    """Predictions of which those of the wrong answers are `unsure`, the others `sure`."""
    chances = torch.where(torch.arange(rows) < right, sure, unsure).double()
    log_probs = torch.stack([chances, 1 - chances], 1).log()
    return scores_of(log_probs, (torch.arange(rows) >= right).long(), 0)


def test_a_direction_that_chance_may_explain_is_named_with_its_interval() -> None:
    """88 % right and 80 % sure was called neither over- nor under-confident."""
    for right, sure in ((53, 0.8), (45, 0.8)):
        found = mixed(60, right, sure, sure)
        error = 2 * 100 * math.sqrt(sure * (1 - sure) / 60)
        gap = 100 * (sure - right / 60)
        assert found.gap_interval == pytest.approx((gap - error, gap + error))
        assert all(f"{end:+.1f}" in _plain(found) for end in found.gap_interval)


def test_groups_that_err_in_opposite_ways_are_not_taken_at_their_word() -> None:
    """As sure as right on the whole, and wrong wherever it is 60 % sure of 400 rows."""
    found = mixed(2000, 1600, 0.85, 0.6)
    assert found.sureness == 0
    assert found.ece > found.chance_ece_high > found.chance_ece
    assert "can be trusted" not in _plain(found)
    fine = scores_of(
        torch.tensor([[0.8, 0.2]]).double().log().expand(2000, 2), (torch.arange(2000) >= 1600).long(), 0
    )
    assert "can be trusted" in _plain(fine)


def outside(answers: int, trials: int = 300) -> float:
    """The share of trials in which predictions that are right have an answer that is not as predicted."""
    rng, rows, draws, found = np.random.default_rng(answers), 64, 400, 0
    odds = np.full(answers, 1 / answers)
    names = [str(i) for i in range(answers)]
    for _ in range(trials):
        drawn = rng.choice(answers, (1, draws, rows), p=odds)
        groups = {
            "posterior_predictive": Dataset(
                {"y": (("chain", "draw", "row"), drawn), "p": ("answer", odds)}, {"answer": names}
            ),
            "observed_data": Dataset({"y": DataArray(rng.choice(answers, rows, p=odds), dims="row")}),
        }
        found += not all(one.within for one in _answers(groups))
    return found / trials


def test_ten_answers_are_found_fault_with_no_more_often_than_two() -> None:
    """6 % of looks, however many answers; 300 trials know that to 1.4 points."""
    assert outside(10) < 0.06 + 0.045
