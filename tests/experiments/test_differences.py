"""Comparisons of arms: what is averaged, what is drawn together, what a verdict rests on."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from study_cases import invent, rows_of

from bara_pyro.errors import DataError
from bara_pyro.metrics import accuracy, brier, ece, holm, nll, paired_bootstrap
from bara_pyro.metrics.base import METRICS
from experiments.engine.differences import (
    AVERAGE,
    Comparisons,
    Contrast,
    compare,
    compare_study,
    compared_again,
    metrics_of,
    write_comparisons,
)
from experiments.engine.results import load_study, read_results
from experiments.engine.rows import RunRows, write_rows

SCORES = {"acc": accuracy, "ece": ece, "nll": nll, "brier": brier}
TASKS = {"micro-wgs": (120, 2), "micro-arce": (90, 4)}


def find(entries: list[dict], arm: str, task: str, reference: str = "lora") -> dict:
    (found,) = [e for e in entries if (e["arm"], e["task"], e["reference"]) == (arm, task, reference)]
    return found


def test_the_declared_reference_is_compared_with() -> None:
    declared = Comparisons(Contrast("bara", "blob", "nll"))
    entries = compare_study(rows_of(TASKS), declared)
    assert {entry["reference"] for entry in entries} == {"lora", "blob"}


def primary_of(entries: list[dict]) -> list[tuple[dict, str]]:
    return [(entry, metric) for entry in entries for metric in SCORES if entry[metric].get("primary")]


def of(runs: list[RunRows], arm: str, task: str) -> list[RunRows]:
    return [run for run in runs if (run.arm, run.task) == (arm, task)]


@pytest.mark.parametrize("metric", SCORES)
def test_a_task_is_the_paired_bootstrap_of_its_runs(metric: str) -> None:
    runs = rows_of(TASKS, seeds=3, per=5)
    entries = compare(runs, ["lora"], resamples=200, seed=5)
    for task in TASKS:
        ours, theirs = of(runs, "bara", task), of(runs, "lora", task)
        a, b = (torch.stack([run.log_probs[10] for run in arm]) for arm in (ours, theirs))
        expected = paired_bootstrap(
            metric, a, b, ours[0].labels, clusters=ours[0].clusters, resamples=200, seed=5
        )
        found = find(entries, "bara", task)[metric]
        for key in ("difference", "low", "high", "se_seeds", "se_rows", "df"):
            assert found[key] == pytest.approx(getattr(expected, key), abs=1e-6)
        assert found["p"] == pytest.approx(expected.p_value, rel=1e-3)
        score, labels = SCORES[metric], ours[0].labels
        by_seed = [score(x, labels) - score(y, labels) for x, y in zip(a, b, strict=True)]
        assert found["difference"] == pytest.approx(np.mean(by_seed), abs=1e-6)
        assert found["seed_sd"] == pytest.approx(np.std(by_seed, ddof=1), abs=1e-6)


def test_tasks_share_clusters_by_name_and_rows_by_nothing_else() -> None:
    # Tasks of one size: drawn alike, their differences would add up as if they were the same rows.
    runs = rows_of({"one": (900, 2), "two": (900, 2)}, seeds=1)
    entries = compare(runs, ["lora"])
    one, two, average = (find(entries, "bara", task)["acc"]["se_rows"] for task in ("one", "two", AVERAGE))
    assert average == pytest.approx(math.hypot(one, two) / 2, rel=0.06)  # three spreads of 2,000 draws
    ours = of(runs, "bara", "one") + of(runs, "lora", "one")
    shared = compare(ours + [replace(run, task="again", tested_on="again") for run in ours], ["lora"])
    assert find(shared, "bara", AVERAGE)["acc"]["se_rows"] == pytest.approx(one, abs=1e-6)


def test_shifts_of_one_training_are_averaged_by_seed() -> None:
    """The same trained models asked two sets of rows: what seeds do is seen in their averages."""
    near, far = (rows_of({name: (300, 2)}, seeds=3) for name in ("micro-near", "micro-far"))
    runs = [replace(run, task="micro-obqa") for run in near + far]
    found = find(compare(runs, ["lora"]), "bara", AVERAGE)["nll"]
    by_seed = [
        nll(ours.log_probs[10], ours.labels) - nll(theirs.log_probs[10], theirs.labels)
        for group in (near, far)
        for ours, theirs in zip(*(of(group, arm, group[0].task) for arm in ("bara", "lora")), strict=True)
    ]
    averages = np.reshape(by_seed, (2, 3)).mean(axis=0)
    assert found["se_seeds"] == pytest.approx(averages.std(ddof=1) / math.sqrt(3), abs=1e-6)
    apart = find(compare(near + far, ["lora"]), "bara", AVERAGE)["nll"]
    assert apart["se_seeds"] != pytest.approx(found["se_seeds"], abs=1e-6)


def test_the_primary_contrast_stands_for_itself_and_all_others_are_corrected() -> None:
    entries = compare(rows_of(TASKS, seeds=3), ["lora", "blob"], Contrast("blob", "lora", "nll"))
    entry, metric = primary_of(entries)[0]
    assert (entry["arm"], entry["reference"], entry["task"], metric) == ("blob", "lora", AVERAGE, "nll")
    assert (entry["nll"]["p_holm"], entry["nll"]["primary"]) == (None, True)
    # Each arm is the other's reference, too: the same questions, which count once, and have one answer.
    back = [e for e in entries if (e["arm"], e["reference"]) == ("lora", "blob")]
    mirrored = {e["task"]: e for e in entries if (e["arm"], e["reference"]) == ("blob", "lora")}
    metrics = metrics_of(entry)
    for e in back:
        for m in metrics:
            assert e[m]["p_holm"] == mirrored[e["task"]][m]["p_holm"]
            assert {e[m]["verdict"], mirrored[e["task"]][m]["verdict"]} in ({"unclear"}, {"better", "worse"})
    others = [e[m] for e in entries if e not in back for m in metrics if e[m] is not entry["nll"]]
    assert len(others) == len(metrics) * (len(entries) - len(back)) - 1
    assert [o["p_holm"] for o in others] == pytest.approx(holm([o["p"] for o in others]), rel=1e-3)
    for e in entries:
        for m in metrics:
            found = e[m]
            decisive = found["p"] if found["p_holm"] is None else found["p_holm"]
            better = (found["difference"] > 0) == (METRICS[m].best == "max")
            assert found["verdict"] == ("unclear" if decisive >= 0.05 else "better" if better else "worse")
            assert (found["low"] <= 0 <= found["high"]) == (found["p"] >= 0.05)
    assert primary_of(compare(rows_of(TASKS), ["lora"])) == []
    alone = compare(rows_of({"t": (80, 2)}), ["lora"], Contrast("bara", "lora", "acc"))
    assert primary_of(alone)[0][0]["task"] == "t"


def test_the_same_seed_gives_the_same_numbers_whatever_else_is_compared() -> None:
    runs = rows_of(TASKS)
    first = compare(runs, ["lora", "blob"], resamples=50)
    assert compare(runs, ["lora", "blob"], resamples=50) == first
    other = find(compare(runs, ["lora"], resamples=50, seed=1), "bara", "micro-arce")["nll"]
    found = find(first, "bara", "micro-arce")["nll"]
    assert other["se_rows"] != found["se_rows"]
    fewer = [run for run in reversed(runs) if run.task == "micro-arce" and run.arm != "blob"]
    again = find(compare(fewer, ["lora"], resamples=50), "bara", "micro-arce")["nll"]
    assert {k: again[k] for k in ("low", "high", "p")} == {k: found[k] for k in ("low", "high", "p")}


def test_only_seeds_that_both_have_are_compared() -> None:
    gone = {("bara", "micro-wgs", 1), ("lora", "micro-arce", 2)}
    runs = [run for run in rows_of(TASKS, seeds=3) if (run.arm, run.task, run.seed) not in gone]
    entries = compare(runs, ["lora"], resamples=20)
    assert find(entries, "bara", "micro-wgs")["seeds"] == [0, 2]
    assert find(entries, "bara", "micro-arce")["seeds"] == [0, 1]
    average = find(entries, "bara", AVERAGE)
    assert average["seeds"] == [0]
    tasks = [find(entries, "bara", task)["nll"]["difference"] for task in TASKS]
    assert average["nll"]["difference"] == pytest.approx(sum(tasks) / 2, abs=1e-6)


def test_no_average_without_all_tasks_and_no_spread_of_one_seed() -> None:
    runs = [run for run in rows_of(TASKS, seeds=1) if (run.arm, run.task) != ("bara", "micro-wgs")]
    entries = compare(runs, ["lora"], resamples=20)
    assert {e["task"] for e in entries if e["arm"] == "bara"} == {"micro-arce"}
    found = find(entries, "bara", "micro-arce")["nll"]
    assert (found["seed_sd"], found["se_seeds"]) == (None, None)
    assert {e["task"] for e in entries if e["arm"] == "blob"} == {*TASKS, AVERAGE}


def test_an_infinite_nll_has_a_verdict_and_no_interval() -> None:
    runs = rows_of({"micro-wgs": (60, 2)}, seeds=1)
    (lora,) = of(runs, "lora", "micro-wgs")
    broken = torch.nn.functional.one_hot(1 - lora.labels[:1], 2).double().log()
    log_probs = {10: torch.cat([broken, lora.log_probs[10][1:]])}
    runs += [replace(lora, arm=name, log_probs=log_probs) for name in ("broken", "broken too")]
    entries = compare(runs, ["lora", "broken"], resamples=50)
    verdicts = {
        ("broken", "lora"): "worse", ("lora", "broken"): "better", ("broken too", "broken"): "unclear"
    }  # fmt: skip
    for (arm, reference), verdict in verdicts.items():
        found = find(entries, arm, "micro-wgs", reference)["nll"]
        assert found.pop("verdict") == verdict
        assert set(found.values()) == {None}
    assert math.isfinite(find(entries, "broken", "micro-wgs")["brier"]["high"])


def test_other_rows_other_draws_and_unknown_references_are_refused() -> None:
    runs = rows_of(TASKS, seeds=1)
    with pytest.raises(DataError, match="'truth' has no runs"):
        compare(runs, ["truth"], resamples=5)
    (bara,) = of(runs, "bara", "micro-wgs")
    rest = [run for run in runs if run is not bara]
    for wrong in ({"labels": 1 - bara.labels}, {"ids": bara.ids[::-1]}):
        with pytest.raises(DataError, match=r"bara \(seed 0\) and lora \(seed 0\).* same rows of micro-wgs"):
            compare([*rest, replace(bara, **wrong)], ["lora"], resamples=5)
    with pytest.raises(DataError, match="S = 0 and lora"):
        compare([*rest, replace(bara, log_probs={0: bara.log_probs[0]})], ["lora"], resamples=5)
    with pytest.raises(DataError, match="two runs of one seed on micro-wgs"):
        compare([*runs, bara], ["lora"], resamples=5)


def test_a_study_is_compared_from_its_rows_and_written(tmp_path: Path) -> None:
    results = tmp_path / "results"
    rows = rows_of({"micro-wgs": (200, 2), "micro-arce": (150, 2)})
    how = Comparisons(Contrast("blob", "lora", "acc"), references=("lora", "temperature", "blob"))
    entries = compare_study(rows, how)
    assert entries == compare(rows, ["lora", "blob"], how.primary)  # there is no temperature
    assert {e["task"] for e in entries} == {"micro-wgs", "micro-arce", AVERAGE}
    with pytest.raises(DataError, match="None of the arms bara is a reference"):
        compare_study([run for run in rows if run.arm == "bara"], Comparisons())
    invent("some", results)
    write_rows("some", rows, results)
    found = write_comparisons("some", how, results)
    stored = load_study("some", results)
    assert stored.comparisons == found
    # Of the stored comparisons alone it can be told what to compare, the declared contrast included.
    assert compared_again(read_results("some", results)) == found
