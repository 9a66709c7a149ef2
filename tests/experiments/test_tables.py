"""Tables say what the records say: every number is parsed back and computed anew from the files."""

from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

import pytest
import torch
from scipy.stats import norm
from study_cases import invent, predictions, records_of, run_rows

from bara_pyro.errors import DataError
from bara_pyro.metrics import error_auroc, ood_auroc
from bara_pyro.report import Table, markdown
from experiments.engine.differences import METRICS
from experiments.engine.results import Study, load_study
from experiments.engine.rows import RunRows
from experiments.page.doubt import Told, compare_auroc, doubt_table, error_table, errors, shifted
from experiments.page.tables import (
    comparison_table,
    score_table,
    score_tables,
    shift_tables,
    with_shifts,
)
from experiments.page.values import draws_of, gaps

DIGITS = {"acc": 1, "ece": 1, "nll": 3, "brier": 3}


def parse(table: Table) -> tuple[list[str], list[list[str]]]:
    """Return the headings and the cells of a table as GitHub would read them."""
    lines = [line for line in markdown(table).splitlines() if line.startswith("| ")]
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return header, rows


def plain(cell: str) -> str:
    return cell.strip("*_")


def shown(values: list[float], digits: int) -> str:
    text = f"{mean(values):.{digits}f}"
    return text if len(values) == 1 else f"{text} ± {stdev(values):.{digits}f}"


def record(
    acc: float = 50.0, nll: float | None = 1.0, *, draws: float = 0.0, trainable: int = 8, **more
) -> dict:
    """Return the least that a table reads; `draws` is what S = 10 adds to the accuracy."""
    scores = {"acc": acc, "nll": nll, "ece": 10.0, "brier": 0.5}
    metrics = {"0": scores, "10": {**scores, "acc": acc + draws}}
    return {"metrics": metrics, "parameters": {"trainable": trainable}, "sparsity": {}, "shifted": {}, **more}


def by_hand(arms: dict[str, dict[str, list[dict]]]) -> Study:
    return Study(
        "hand",
        {a: {t: dict(enumerate(records)) for t, records in tasks.items()} for a, tasks in arms.items()},
        {},
        [],
    )


# How errors are told ---------------------------------------------------------------------------------------


def test_how_errors_are_told_is_that_of_the_rows(tmp_path: Path) -> None:
    runs = invent("some", tmp_path, seeds=2, tasks={"micro-wgs": 90})
    rows, pairs = [], {}
    for run in runs:
        labels, predicted = predictions(run["arm"], "micro-wgs", run["seed"], 90)
        own = run_rows(run["arm"], "micro-wgs", run["seed"], labels, predicted)
        rows += [replace(own, hash=run["hash"]), replace(own, hash=run["hash"], tested_on="elsewhere")]
        for samples, log_probs in predicted.items():
            sure, answer = log_probs.max(1)
            right, wrong = sure[answer == labels], sure[answer != labels]
            pairs[run["arm"], samples, run["seed"]] = 100 * float((right[:, None] > wrong).double().mean())
    study = load_study("some", tmp_path)
    _, found = parse(error_table(study, rows))
    expected = [("lora", "–", 10), ("blob", "0", 0), ("blob", "10", 10), ("bara", "0", 0), ("bara", "10", 10)]
    for (_, _, drawn, cell), (arm, said, samples) in zip(found, expected, strict=True):
        assert drawn == said
        assert plain(cell) == shown([pairs[arm, samples, seed] for seed in (0, 1)], 1)
    _, without = parse(error_table(study, [row for row in rows if row.arm != "bara"]))
    assert [row[-1] for row in without[-2:]] == ["–", "–"]


# The main table --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seeds", [1, 3])
def test_every_number_is_that_of_the_records(seeds: int, tmp_path: Path) -> None:
    runs = invent("some", tmp_path, seeds=seeds)
    records = records_of("some", tmp_path)
    files = {(run["arm"], run["task"], run["seed"]): records[run["hash"]] for run in runs}
    names = {"MLE (LoRA)": "lora", "BLoB": "blob", "BaRA": "bara"}
    tables = score_tables(load_study("some", tmp_path))
    assert len(tables) == len(METRICS)
    for metric, table in zip(METRICS, tables, strict=True):
        header, rows = parse(table)
        assert header == ["method", "params", "S", "micro-wgs", "micro-arce", "average"]
        assert [(row[0], row[2]) for row in rows] == [
            ("MLE (LoRA)", "–"), ("BLoB", "0"), ("BLoB", "10"), ("BaRA", "0"), ("BaRA", "10")
        ]  # fmt: skip
        for name, parameters, samples, *cells in rows:
            arm, drawn = names[name], "10" if samples == "–" else samples
            score = {key: r["metrics"][drawn][metric] for key, r in files.items() if key[0] == arm}
            values = [[score[arm, task, s] for s in range(seeds)] for task in ("micro-wgs", "micro-arce")]
            averages = [mean(pair) for pair in zip(*values, strict=True)]
            expected = [shown(v, DIGITS[metric]) for v in (*values, averages)]
            assert [plain(cell) for cell in cells] == expected
            assert parameters == f"{files[arm, 'micro-wgs', 0]['parameters']['trainable']:,d}"


def test_best_and_second_best_are_those_of_a_table_made_by_hand() -> None:
    one = {"t": [record(70.0, 0.50)], "u": [record(60.0, 0.40)]}
    two = {"t": [record(75.0, 0.60)], "u": [record(60.04, 0.70)]}
    three = {"t": [record(74.0, 0.55)], "u": [record(50.0, 0.60)]}
    four = {"t": [record(73.0, None)], "u": [record(40.0, 0.60)]}
    study = by_hand({"lora": one, "blob": two, "ivon": three, "bara": four})
    acc, nll = score_tables(study, ["acc", "nll"])
    # IVON comes after the paper's methods, BaRA last; 60.0 and 60.04 read the same.
    assert parse(acc)[1] == [
        ["MLE (LoRA)", "8", "70.0", "**60.0**", "_65.0_"],
        ["BLoB", "8", "**75.0**", "**60.0**", "**67.5**"],
        ["IVON", "8", "_74.0_", "_50.0_", "62.0"],
        ["BaRA", "8", "73.0", "40.0", "56.5"],
    ]
    assert parse(nll)[1] == [
        ["MLE (LoRA)", "8", "**0.500**", "**0.400**", "**0.450**"],
        ["BLoB", "8", "0.600", "0.700", "0.650"],
        ["IVON", "8", "_0.550_", "_0.600_", "_0.575_"],
        ["BaRA", "8", "∞", "_0.600_", "∞"],
    ]


def test_a_failed_run_is_shown_and_never_ranked() -> None:
    lost = {"failed": "The loss is not finite."}
    study = by_hand(
        {
            "lora": {"t": [record(70.0), record(72.0)], "u": [record(60.0), record(60.0)]},
            "blob": {"t": [record(99.0), lost], "u": [record(90.0), record(91.0)]},
            "bara": {"t": [lost, lost], "u": [record(50.0)]},
            "ivon": {"u": [record(55.0), record(56.0)]},
        }
    )
    assert parse(score_table(study, "acc", study.tasks))[1] == [
        ["MLE (LoRA)", "8", "71.0 ± 1.4", "_60.0 ± 0.0_", "65.5 ± 0.7"],
        ["BLoB", "8", "failed 1/2", "**90.5 ± 0.7**", "failed"],
        ["IVON", "8", "–", "55.5 ± 0.7", "–"],
        ["BaRA", "8", "failed", "50.0", "failed"],
    ]
    assert gaps(study) == [
        "BLoB on t has 1 of 2 seeds: The loss is not finite",
        "IVON on t has 0 of 2 seeds",
        "BaRA on t has 0 of 2 seeds: The loss is not finite",
        "BaRA on u has 1 of 2 seeds",
    ]


def test_draws_have_rows_of_their_own_only_where_they_change_something() -> None:
    assert draws_of({"t": {0: record()}}) == ["10"]
    assert draws_of({"t": {0: record(draws=1e-9)}}) == ["10"]
    assert draws_of({"t": {0: record()}, "u": {0: record(draws=0.1)}}) == ["0", "10"]
    assert draws_of({"t": {0: record(nll=None)}}) == ["10"]
    assert draws_of({"t": {0: {"failed": "x"}}}) == []
    study = by_hand({"lora": {"t": [record(50.0)]}, "bara": {"t": [record(60.0, draws=2.0)]}})
    assert parse(score_table(study, "acc", study.tasks)) == (
        ["method", "params", "S", "t"],
        [["MLE (LoRA)", "8", "–", "50.0"], ["BaRA", "8", "0", "_60.0_"], ["BaRA", "8", "10", "**62.0**"]],
    )


# Shifts ----------------------------------------------------------------------------------------------------


def test_a_shift_that_failed_or_was_not_asked_for() -> None:
    scores = {"metrics": record(40.0)["metrics"], "auroc": {"0": {}, "10": {"entropy": 60.0}}}
    study = by_hand(
        {
            "lora": {"t": [record(shifted={"near": scores})], "other": [record()]},
            "blob": {"t": [record(shifted={"near": {"failed": "no rows"}})]},
            "ivon": {"t": [record()]},
            "bara": {"t": [{"failed": "x"}]},
        }
    )
    wide = with_shifts(study)
    assert wide.tasks == ["t", "near"]
    rows = parse(shift_tables(study)[0])[1]
    assert [row[3] for row in rows] == ["40.0", "failed", "–", "failed"]
    assert [row[2] for row in parse(shift_tables(study)[-1])[1]] == ["60.0", "failed", "–", "failed"]


# Variants and comparisons ----------------------------------------------------------------------------------


def test_comparisons_that_are_zero_or_infinite() -> None:
    same = {
        "difference": -0.0001,
        "low": 0.0,
        "high": 0.00012,
        "se_seeds": None,
        "se_rows": 0.0001,
        "verdict": "unclear",
    }
    none = dict.fromkeys(("difference", "low", "high", "se_seeds", "se_rows"))
    entry = {
        "arm": "bara", "reference": "lora", "task": "t", "acc": same,
        "ece": same, "nll": {**none, "verdict": "worse"}, "brier": {**none, "verdict": "unclear"},
    }  # fmt: skip
    assert parse(comparison_table([entry], "lora", "t"))[1] == [
        ["BaRA", "0.0 [0.0, 0.0] (–, 0.0) unclear", "0.0 [0.0, 0.0] (–, 0.0) unclear", "∞, worse", "–"]
    ]


ARMS, SEEDS = ("lora", "blob", "bara"), (0, 1, 2)


def asked(rows: int = 200) -> list[RunRows]:
    """Return runs on a task, and the same models on rows from elsewhere, which have the names of no other."""
    found = []
    for arm in ARMS:
        for seed in SEEDS:
            own = run_rows(arm, "here", seed, *predictions(arm, "here", seed, rows, 3))
            away = run_rows(arm, "away", seed, *predictions(arm, "away", seed, rows // 2, 3))
            found += [own, replace(away, task="here", tested_on="away")]
    return found


def of(runs: list[RunRows], arm: str, seed: int, where: str) -> RunRows:
    return next(run for run in runs if (run.arm, run.seed, run.tested_on) == (arm, seed, where))


def entropy(run: RunRows) -> torch.Tensor:
    return -(run.log_probs[10].exp() * run.log_probs[10]).sum(1)


def test_differences_are_those_of_the_rows_averaged_over_seeds() -> None:
    runs = asked()
    found = compare_auroc(errors(runs, "here"), "lora", resamples=50)
    away = compare_auroc(shifted(runs, "here", "away"), "lora", resamples=50)
    assert list(found) == list(away) == ["blob", "bara"]

    def told(arm: str, seed: int, kind: str) -> float:
        own = of(runs, arm, seed, "here")
        if kind == "errors":
            return error_auroc(own.log_probs[10], own.labels)
        return ood_auroc(entropy(own), entropy(of(runs, arm, seed, "away")))

    for arm in found:
        for kind, here in (("errors", found), ("away", away)):
            expected = mean(told(arm, s, kind) - told("lora", s, kind) for s in SEEDS)
            assert here[arm].difference == pytest.approx(expected, abs=1e-4), kind
            assert here[arm].low < here[arm].difference < here[arm].high


def test_a_run_without_errors_is_left_out_and_rows_that_do_not_fit_are_refused() -> None:
    runs = asked()
    sure = {10: torch.nn.functional.one_hot(runs[0].labels, 3).double().add(1e-3).log().log_softmax(1)}
    right = [replace(run, log_probs=sure) if run.arm == "bara" else run for run in runs]
    told = errors([run for run in right if run.tested_on == "here"], "here")
    assert list(compare_auroc(told, "lora", resamples=10)) == ["blob"]
    other = [replace(run, labels=1 - run.labels % 2) if run.arm == "bara" else run for run in runs]
    with pytest.raises(DataError, match="same rows"):
        errors(other, "here")
    assert compare_auroc([], "lora") == {}


def test_the_interval_covers_the_truth_and_is_no_wider_than_it_must() -> None:
    """Two detectors of known AUROC on normal scores; seeds add nothing, so that rows alone decide."""
    truth = 100 * (norm.cdf(1.2 / 2**0.5) - norm.cdf(0.8 / 2**0.5))
    covered, widths, spread = 0, [], []
    for repeat in range(60):
        generator = torch.Generator().manual_seed(repeat)
        positive = torch.arange(240) % 3 == 0
        told = []
        for arm, distance in (("weak", 0.8), ("strong", 1.2)):
            for seed in SEEDS:
                noise = torch.randn(240, generator=generator, dtype=torch.float64)
                told.append(
                    Told(arm, seed, noise + distance * positive, positive, tuple(map(str, range(240))))
                )
        found = compare_auroc(told, "weak", resamples=200)["strong"]
        covered += found.low <= truth <= found.high
        widths.append(found.high - found.low)
        spread.append(found.difference)
    assert covered >= 52  # of 60: at 95 %, fewer has probability 0.7 %
    assert mean(spread) == pytest.approx(truth, abs=4 * float(torch.tensor(spread).std()) / 60**0.5)
    assert mean(widths) < 8 * float(torch.tensor(spread).std())


def test_the_table_shows_each_kind_and_leaves_cells_empty_that_are_not_known() -> None:
    runs = asked()
    header, rows = parse(doubt_table(runs, "here", "lora"))
    assert header == ["method", "wrong answers", "away"]
    expected = compare_auroc(shifted(runs, "here", "away"), "lora")
    assert [row[0] for row in rows] == ["BLoB", "BaRA"]
    for row, arm in zip(rows, ("blob", "bara"), strict=True):
        assert row[2].startswith(f"{expected[arm].difference:+.1f} [".replace("-", "−"))
    alone = [run for run in runs if run.arm != "bara" or run.tested_on == "here"]
    assert parse(doubt_table(alone, "here", "lora"))[1][1][2] == "–"
