"""How errors and rows from elsewhere are told: the differences of the rows, with intervals that cover."""

from dataclasses import replace
from statistics import mean

import pytest
import torch
from scipy.stats import norm
from study_cases import predictions, run_rows
from test_tables import parse

from bara_pyro.errors import DataError
from bara_pyro.metrics import error_auroc, ood_auroc
from experiments.engine.rows import RunRows
from experiments.page.doubt import Told, compare_auroc, doubt_table, errors, shifted

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
