"""The paired bootstrap over rows: against loops, against closed forms, and how often it covers the truth."""

import itertools
import math
import zlib
from collections.abc import Callable

import numpy as np
import pytest
import torch
from study_cases import predictions

from bara_pyro.errors import DataError
from bara_pyro.metrics import accuracy, bootstrap, brier, ece, nll
from experiments.engine.differences import AVERAGE, METRICS, Predictions, compare

SCORES: dict[str, Callable] = {"acc": accuracy, "ece": ece, "nll": nll, "brier": brier}
TASKS = {"micro-wgs": (120, 2), "micro-arce": (90, 4)}


def study(seeds: int = 2, tasks: dict[str, tuple[int, int]] = TASKS) -> dict:
    return {
        task: {
            arm: {seed: predictions(arm, task, seed, *size) for seed in range(seeds)}
            for arm in ("lora", "blob", "bara")
        }
        for task, size in tasks.items()
    }


def find(entries: list[dict], arm: str, task: str, reference: str = "lora") -> dict:
    (found,) = [e for e in entries if (e["arm"], e["task"], e["reference"]) == (arm, task, reference)]
    return found


def drawn_in_a_loop(arms: dict, arm: str, task: str, metric: str, resamples: int, seed: int) -> list[float]:
    """Score every resample of every run with the public metrics."""
    rows = len(arms["lora"][0][0])
    drawn = np.random.default_rng([seed, zlib.crc32(task.encode())]).integers(rows, size=(resamples, rows))
    result = []
    for index in torch.from_numpy(drawn):
        total = 0.0
        for number in arms[arm]:
            labels, ours = arms[arm][number]
            _, theirs = arms["lora"][number]
            score = SCORES[metric]
            total += score(ours[10][index], labels[index]) - score(theirs[10][index], labels[index])
        result.append(total / len(arms[arm]))
    return result


def moved_quantiles(drawn: list[float], observed: float) -> tuple[float, float]:
    centred = [value - sum(drawn) / len(drawn) + observed for value in drawn]
    return tuple(np.quantile(centred, [0.025, 0.975]))


@pytest.mark.parametrize("metric", METRICS)
def test_equals_scoring_each_resample_in_a_loop(metric: str) -> None:
    data = study()
    entries = compare(data, ["lora"], resamples=40, seed=5)
    loops, observed = {}, {}
    for task, arms in data.items():
        loops[task] = drawn_in_a_loop(arms, "bara", task, metric, 40, 5)
        by_seed = [
            SCORES[metric](arms["bara"][s][1][10], arms["bara"][s][0])
            - SCORES[metric](arms["lora"][s][1][10], arms["lora"][s][0])
            for s in (0, 1)
        ]
        observed[task] = sum(by_seed) / 2
        found = find(entries, "bara", task)[metric]
        assert found["difference"] == pytest.approx(observed[task], abs=1e-6)
        assert found["seed_sd"] == pytest.approx(np.std(by_seed, ddof=1), abs=1e-6)
        assert found["agree"] == sum(np.sign(by_seed) == np.sign(observed[task]))
        assert (found["low"], found["high"]) == pytest.approx(
            moved_quantiles(loops[task], observed[task]), abs=1e-5
        )
    both = [(a + b) / 2 for a, b in zip(*loops.values(), strict=True)]
    found = find(entries, "bara", AVERAGE)[metric]
    assert found["difference"] == pytest.approx(sum(observed.values()) / 2, abs=1e-6)
    assert (found["low"], found["high"]) == pytest.approx(
        moved_quantiles(both, sum(observed.values()) / 2), abs=1e-5
    )


def correct(run: tuple) -> torch.Tensor:
    labels, predicted = run
    return 100.0 * (predicted[10].argmax(-1) == labels).double()


def test_accuracy_has_the_width_of_mcnemars_standard_error() -> None:
    data = study(seeds=1, tasks={"micro-wgs": (1200, 2)})
    arms = data["micro-wgs"]
    only_ours = int(((correct(arms["bara"][0]) > 0) & (correct(arms["lora"][0]) == 0)).sum())
    only_theirs = int(((correct(arms["bara"][0]) == 0) & (correct(arms["lora"][0]) > 0)).sum())
    n = 1200
    error = 100 * math.sqrt((only_ours + only_theirs) - (only_ours - only_theirs) ** 2 / n) / n
    found = find(compare(data, ["lora"]), "bara", "micro-wgs")["acc"]
    assert found["difference"] == pytest.approx(100 * (only_ours - only_theirs) / n)
    # A 2.5 % quantile of 2000 normal draws has a standard error of 0.06 standard deviations.
    assert found["low"] == pytest.approx(found["difference"] - 1.96 * error, abs=0.2 * error)
    assert found["high"] == pytest.approx(found["difference"] + 1.96 * error, abs=0.2 * error)


def test_seeds_share_the_rows_and_tasks_do_not() -> None:
    # Tasks of one size: drawn alike, their differences would add up as if they were the same rows.
    data = study(seeds=3, tasks={"one": (900, 2), "two": (900, 2)})
    entries = compare(data, ["lora"])
    variances = []
    for task, arms in data.items():
        rows = torch.stack([correct(arms["bara"][s]) - correct(arms["lora"][s]) for s in range(3)]).mean(0)
        variances.append(float(rows.var(correction=0)) / 900)
        width = find(entries, "bara", task)["acc"]
        assert width["high"] - width["low"] == pytest.approx(2 * 1.96 * math.sqrt(variances[-1]), rel=0.09)
    average = find(entries, "bara", AVERAGE)["acc"]
    expected = 2 * 1.96 * math.sqrt(sum(variances)) / 2
    assert average["high"] - average["low"] == pytest.approx(expected, rel=0.09)
    shared = compare({"one": data["one"], "two": data["one"]}, ["lora"])
    one, average = find(shared, "bara", "one")["nll"], find(shared, "bara", AVERAGE)["nll"]
    assert average["high"] - average["low"] < 0.8 * (one["high"] - one["low"])


def test_covers_the_difference_on_all_rows_as_often_as_it_says() -> None:
    """Two fixed models a seed, rows with x ~ N(0, 1) and P(label 1) = sigmoid(x)."""
    slopes = {"ours": (1.1, 0.7), "theirs": (2.0, -0.5)}
    offsets = {"ours": (0.0, 0.2), "theirs": (0.6, 0.1)}
    signs = {"ours": 0.5, "theirs": -0.5}

    def predict(arm: str, seed: int, x: torch.Tensor) -> torch.Tensor:
        logit = slopes[arm][seed] * x + offsets[arm][seed]
        return torch.stack([torch.zeros_like(logit), logit], dim=1).log_softmax(-1)

    # The truth by quadrature over x, each label with the weight of its probability.
    grid = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    weight = torch.exp(-grid.square() / 2) / math.sqrt(2 * math.pi) * (grid[1] - grid[0])
    truth, hits, repetitions = dict.fromkeys(("acc", "nll", "brier"), 0.0), {}, 250
    for metric in truth:
        for seed, (arm, sign) in itertools.product((0, 1), signs.items()):
            for label, chance in ((1, grid.sigmoid()), (0, 1 - grid.sigmoid())):
                labels = torch.full(grid.shape, label)
                values = bootstrap.PER_ROW[metric](predict(arm, seed, grid), labels)[:, 0]
                truth[metric] += sign * float((weight * chance * values).sum())
    generator = torch.Generator().manual_seed(0)
    for repetition in range(repetitions):
        x = torch.randn(100, dtype=torch.float64, generator=generator)
        labels = (torch.rand(100, generator=generator) < x.sigmoid()).long()
        arms = {arm: {seed: (labels, {10: predict(arm, seed, x)}) for seed in (0, 1)} for arm in signs}
        (found,) = compare({"t": arms}, ["theirs"], resamples=300, level=0.9, seed=repetition)
        for metric, value in truth.items():
            inside = found[metric]["low"] <= value <= found[metric]["high"]
            hits[metric] = hits.get(metric, 0) + inside
    # Binomial(250, 0.9) has a standard deviation of 1.9 points; quantiles of 100 rows lose a little more.
    assert all(0.83 < count / repetitions < 0.96 for count in hits.values()), hits


def test_an_ece_interval_holds_its_difference_where_plain_quantiles_do_not() -> None:
    """Calibrated against overconfident, many tasks: resampling moves the ECE of the calibrated one up."""
    data: dict = {}
    for task in (f"t{i}" for i in range(8)):
        labels, _ = predictions("bara", task, 0, 150)
        sure, calibrated = torch.full((150,), 0.97), torch.full((150,), float((labels == 1).double().mean()))
        runs = {
            name: {0: (labels, {10: torch.stack([1 - p, p], dim=1).double().log()})}
            for name, p in (("sure", sure), ("calibrated", calibrated.clamp(0.02, 0.98)))
        }
        data[task] = runs
    (average,) = [e for e in compare(data, ["sure"]) if e["task"] == AVERAGE]
    found = average["ece"]
    assert found["low"] < found["difference"] < found["high"]
    assert found["verdict"] == "better"
    plain = [
        bootstrap.paired_bootstrap(
            "ece", arms["calibrated"][0][1][10], arms["sure"][0][1][10], arms["sure"][0][0]
        )
        for arms in data.values()
    ]
    middle = sum((p.low + p.high) / 2 for p in plain) / len(plain)
    assert middle > found["high"]


def test_verdicts_follow_the_metric_and_the_interval() -> None:
    data = study(seeds=2, tasks={"micro-wgs": (1500, 2)})
    (entry,) = [e for e in compare(data, ["lora"]) if e["arm"] == "bara"]
    for metric, sign in (("acc", 1), ("ece", -1), ("nll", -1), ("brier", -1)):
        found = entry[metric]
        covers = found["low"] <= 0 <= found["high"]
        better = sign * found["difference"] > 0
        assert found["verdict"] == ("equal" if covers else "better" if better else "worse")
    assert entry["nll"]["verdict"] == "better"
    assert (entry["seeds"], entry["level"], entry["resamples"]) == ([0, 1], 0.95, 2000)
    swapped = find(compare(data, ["bara"]), "lora", "micro-wgs", "bara")
    assert swapped["nll"]["verdict"] == "worse"
    for metric in METRICS:
        assert swapped[metric]["difference"] == -entry[metric]["difference"]
        assert swapped[metric]["low"] == pytest.approx(-entry[metric]["high"], abs=2e-6)


def test_an_arm_is_equal_to_itself_under_another_name() -> None:
    data = study(seeds=2)
    for arms in data.values():
        arms["copy"] = arms["lora"]
    for entry in compare(data, ["lora"]):
        if entry["arm"] == "copy":
            for metric in METRICS:
                found = entry[metric]
                assert (found["difference"], found["low"], found["high"]) == (0, 0, 0)
                assert (found["verdict"], found["agree"]) == ("equal", 0)


def test_the_same_seed_gives_the_same_numbers_whatever_else_is_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = study(seeds=2)
    first = compare(data, ["lora", "blob"], resamples=50)
    assert compare(data, ["lora", "blob"], resamples=50) == first
    assert compare(data, ["lora"], resamples=50, seed=1) != first[: len(first) // 2]
    turned = {task: dict(reversed(arms.items())) for task, arms in reversed(data.items())}
    assert find(compare(turned, ["lora"], resamples=50), "bara", "micro-arce") == find(
        first, "bara", "micro-arce"
    )
    monkeypatch.setattr(bootstrap, "CHUNK", 500)
    assert compare(data, ["lora", "blob"], resamples=50) == first


def test_only_seeds_that_both_have_are_compared() -> None:
    data = study(seeds=3)
    del data["micro-wgs"]["bara"][1], data["micro-arce"]["lora"][2]
    entries = compare(data, ["lora"], resamples=20)
    assert find(entries, "bara", "micro-wgs")["seeds"] == [0, 2]
    assert find(entries, "bara", "micro-arce")["seeds"] == [0, 1]
    average = find(entries, "bara", AVERAGE)
    assert average["seeds"] == [0]
    tasks = [find(entries, "bara", task)["nll"]["difference"] for task in TASKS]
    assert average["nll"]["difference"] == pytest.approx(sum(tasks) / 2, abs=1e-6)


def test_no_average_without_all_tasks_and_no_spread_of_one_seed() -> None:
    data: Predictions = study(seeds=1)
    del data["micro-wgs"]["bara"]
    entries = compare(data, ["lora"], resamples=20)
    assert {e["task"] for e in entries if e["arm"] == "bara"} == {"micro-arce"}
    assert find(entries, "bara", "micro-arce")["nll"]["seed_sd"] is None
    assert {e["task"] for e in entries if e["arm"] == "blob"} == {*TASKS, AVERAGE}
    assert {e["task"] for e in compare({"t": data["micro-arce"]}, ["lora"], resamples=20)} == {"t"}


def test_an_infinite_nll_has_a_verdict_and_no_interval() -> None:
    data = study(seeds=1, tasks={"micro-wgs": (60, 2)})
    arms = data["micro-wgs"]
    labels, predicted = arms["lora"][0]
    broken = torch.nn.functional.one_hot(1 - labels[:1], 2).double().log()
    arms["broken"] = {0: (labels, {10: torch.cat([broken, predicted[10][1:]])})}
    arms["broken too"] = arms["broken"]
    entries = compare(data, ["lora", "broken"], resamples=50)
    nothing = dict.fromkeys(("difference", "low", "high", "seed_sd", "agree"))
    assert find(entries, "broken", "micro-wgs")["nll"] == {**nothing, "verdict": "worse"}
    assert find(entries, "lora", "micro-wgs", "broken")["nll"] == {**nothing, "verdict": "better"}
    assert find(entries, "broken too", "micro-wgs", "broken")["nll"] == {**nothing, "verdict": "equal"}
    assert math.isfinite(find(entries, "broken", "micro-wgs")["brier"]["high"])


def test_other_rows_other_draws_and_unknown_references_are_refused() -> None:
    data = study(seeds=1)
    with pytest.raises(DataError, match="'truth' has no runs"):
        compare(data, ["truth"], resamples=5)
    labels, predicted = data["micro-wgs"]["bara"][0]
    data["micro-wgs"]["bara"][0] = (1 - labels, predicted)
    with pytest.raises(DataError, match=r"bara \(seed 0\) and lora \(seed 0\).* same rows of micro-wgs"):
        compare(data, ["lora"], resamples=5)
    data["micro-wgs"]["bara"][0] = (labels, {0: predicted[0]})
    with pytest.raises(DataError, match="S = 0 and lora"):
        compare(data, ["lora"], resamples=5)
