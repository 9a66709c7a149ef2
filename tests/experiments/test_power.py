"""Power, against studies that are drawn: by the variances that are given and by those they would estimate."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm, ttest_1samp
from scipy.stats import t as student

from bara_pyro.errors import ConfigError, DataError
from experiments.engine.rows import RunRows
from experiments.engine.worlds import Design, Spread, detectable, power, spread_of, standard_error

SPREAD = Spread(seed=0.01**2, rows=0.004**2, tasks=6, clusters=37)


def test_a_known_variance_is_the_normal_distribution() -> None:
    assert power(0.01, 0.004, 1e7) == pytest.approx(norm.sf(1.959964 - 2.5), abs=1e-4)
    assert detectable(0.004, 1e7) == pytest.approx((1.959964 + 1.281552) * 0.004, rel=1e-4)


@pytest.mark.parametrize("worlds", [2, 3, 6])
def test_worlds_as_such_are_the_one_sample_test(worlds: int) -> None:
    """A t-test of W drawn numbers, by scipy."""
    size, draws = 2.0, 20_000
    drawn = np.random.default_rng(worlds).normal(size, 1, (draws, worlds))
    found = ttest_1samp(drawn, 0, axis=1)
    share = float(np.mean((found.pvalue < 0.05) & (found.statistic > 0)))
    expected = power(size, 1 / math.sqrt(worlds), worlds - 1)
    assert abs(share - expected) < 4.5 * math.sqrt(expected * (1 - expected) / draws)


@pytest.mark.parametrize("design", [Design(1, 3), Design(3, 10), Design(2, 5, 4.0)])
def test_a_study_that_estimates_its_variances(design: Design) -> None:
    """Seeds of each task and world, and rows of each world, drawn; the test as `crossed_interval` makes it.

    The variance of the rows is estimated with as many degrees of freedom as there are clusters, less one.
    """
    rng, studies, tasks = np.random.default_rng(7), 4000, SPREAD.tasks
    error, df = standard_error(SPREAD, design)
    truth = 2.5 * error
    w, k = design.worlds, design.seeds
    seeds = rng.normal(
        0, math.sqrt(SPREAD.seed * tasks), (studies, w, tasks, k)
    )  # of the average: SPREAD.seed
    rows = rng.normal(0, math.sqrt(SPREAD.rows / design.rows), (studies, w))
    difference = truth + seeds.mean((1, 2, 3)) + rows.mean(1)
    assert float(difference.std()) == pytest.approx(error, rel=0.05)
    parts = seeds.var(-1, ddof=1) / k / tasks**2 / w**2
    asked = SPREAD.clusters * design.rows - 1
    by_rows = SPREAD.rows / design.rows / w**2 * rng.chisquare(asked, (studies, w)) / asked
    variance = parts.sum((1, 2)) + by_rows.sum(1)
    spread = (parts**2).sum((1, 2)) / (k - 1) + (by_rows**2).sum(1) / asked
    found = difference / np.sqrt(variance)
    share = float((found > student.ppf(0.975, variance**2 / spread)).mean())
    # 0.02: Satterthwaite's degrees of freedom are those of the truth here, and estimated there.
    assert share == pytest.approx(power(truth, error, df), abs=0.02 + 4.5 * math.sqrt(0.25 / studies))


def test_more_of_anything_shows_more() -> None:
    def least(*design: float) -> float:
        return detectable(*standard_error(SPREAD, Design(*design)))  # type: ignore[arg-type]

    assert least(1, 3) > least(1, 10) > least(3, 10) > least(3, 10, 4)


def runs(arms: dict[str, float], seeds: int, tasks: tuple[str, ...] = ("a", "b")) -> list[RunRows]:
    """Runs whose log-probabilities of the right answer are an arm's mean, a seed's and a cluster's part."""
    rng = np.random.default_rng(3)
    clusters = tuple(f"c{i // 4}" for i in range(80))
    out = []
    for task in tasks:
        by_cluster = np.repeat(rng.normal(0, 0.05, 20), 4)
        for arm, mean in arms.items():
            sign = 1.0 if arm == "ours" else 0.0
            for seed in range(seeds):
                right = -mean - 0.1 * sign * rng.normal() - sign * by_cluster
                right = np.minimum(right, -0.05)
                distribution = torch.tensor(np.stack([right, np.log1p(-np.exp(right))], axis=1))
                labels = torch.zeros(80, dtype=torch.long)
                ids = tuple(f"{task}{i}" for i in range(80))
                out.append(RunRows(arm, "", "", task, seed, task, ids, clusters, labels, {10: distribution}))
    return out


def test_spread_is_read_off_the_rows() -> None:
    """By hand: the variance of the seeds' differences, and of the clusters' mean differences."""
    made = runs({"ours": 0.6, "theirs": 0.7}, 40)
    found = spread_of(made, "ours", "theirs", "nll")
    assert (found.tasks, found.clusters) == (2, 20)
    nll = np.array([-run.log_probs[10][:, 0].numpy() for run in made])
    nll = nll.reshape(2, 2, 40, 20, 4).mean(-1)  # tasks, arms, seeds, clusters
    difference = nll[:, 0] - nll[:, 1]
    by_seed = difference.mean(-1)
    assert found.seed == pytest.approx(by_seed.var(-1, ddof=1).sum() / 2**2, rel=1e-3)
    # Clusters are drawn 2,000 times: a tenth is three standard errors of a variance.
    by_cluster = difference.mean((0, 1))
    assert found.rows == pytest.approx(21 / 19 * by_cluster.var() / 20, rel=0.1)


def test_what_is_refused() -> None:
    with pytest.raises(ConfigError, match="'lora'"):
        spread_of(runs({"ours": 0.6, "theirs": 0.7}, 2), "lora", "theirs", "nll")
    with pytest.raises(ConfigError, match="'auc'"):
        spread_of(runs({"ours": 0.6, "theirs": 0.7}, 2), "ours", "theirs", "auc")
    with pytest.raises(DataError, match="one seed in common"):
        spread_of(runs({"ours": 0.6, "theirs": 0.7}, 1), "ours", "theirs", "nll")
