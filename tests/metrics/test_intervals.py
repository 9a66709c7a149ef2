"""Intervals crossed over seeds and clusters: closed forms, and how often they hold the truth."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats

from bara_pyro.errors import ConfigError, DataError
from bara_pyro.metrics import TaskDifference, crossed_interval, holm
from bara_pyro.metrics.bootstrap import drawn_scores
from bara_pyro.metrics.intervals import effective

SEEDS, CLUSTERS, EACH = 3, 37, 8  # as in the studies on the microworld, but for the rows of a cluster
NAMES = [f"c{c}" for c in range(CLUSTERS) for _ in range(EACH)]
TRUTH = 10.0


def world(rng, seeds_sd=0.0, clusters_sd=0.0, both_sd=0.0, rows_sd=0.0, seeds=SEEDS) -> np.ndarray:
    """Return scores, seeds x rows, of the crossed random effects model about `TRUTH`."""
    effects = (
        seeds_sd * rng.normal(size=(seeds, 1, 1))
        + clusters_sd * rng.normal(size=(1, CLUSTERS, 1))
        + both_sd * rng.normal(size=(seeds, CLUSTERS, 1))
        + rows_sd * rng.normal(size=(seeds, CLUSTERS, EACH))
    )
    return (TRUTH + effects).reshape(seeds, -1)


def pair(values: np.ndarray, names=NAMES, resamples: int = 400) -> TaskDifference:
    columns = [torch.from_numpy(v)[:, None] for v in values]
    by_seed = torch.from_numpy(values.mean(axis=1))
    return TaskDifference(by_seed, drawn_scores(columns, names, resamples), frozenset(names))


def test_equals_the_closed_form_of_two_way_clusters() -> None:
    """Cameron, Gelbach and Miller's three variances from sums, with their G / (G - 1)."""
    values = world(np.random.default_rng(0), 0.3, 0.5, 0.4, 1.0)
    found = crossed_interval([pair(values, resamples=40_000)])
    cells = values.reshape(SEEDS, CLUSTERS, EACH).mean(axis=2) - values.mean()
    seeds = (cells.mean(axis=1) ** 2).sum() / SEEDS / (SEEDS - 1)
    clusters = (cells.mean(axis=0) ** 2).sum() / CLUSTERS / (CLUSTERS - 1)
    own = cells - cells.mean(axis=1, keepdims=True) - cells.mean(axis=0, keepdims=True)
    both = (own**2).sum() / (SEEDS - 1) / (CLUSTERS - 1) / SEEDS / CLUSTERS
    # A variance of 40,000 draws has a relative error of 0.7 %, the difference of two some more.
    assert found.se_seeds == pytest.approx(math.sqrt(seeds))
    assert found.se_rows == pytest.approx(math.sqrt(clusters), rel=0.02)
    shared = clusters - both
    variance = seeds + shared
    df = variance**2 / (seeds**2 / (SEEDS - 1) + shared**2 / (CLUSTERS - 1))
    assert found.df == pytest.approx(df, rel=0.05)
    low, high = stats.t(found.df, TRUTH, math.sqrt(variance)).interval(0.95)
    assert found.high - found.low == pytest.approx(high - low, rel=0.02)
    assert found.difference == pytest.approx(values.mean())
    assert found.p_value == pytest.approx(
        2 * stats.t(found.df).sf(found.difference / math.sqrt(variance)), rel=0.1
    )


def test_an_average_over_tasks_shares_clusters_and_not_seeds() -> None:
    rng = np.random.default_rng(1)
    one, two = (world(rng, seeds_sd=0.5, rows_sd=0.1) for _ in range(2))
    found = crossed_interval([pair(one), pair(two)])
    by_task = [v.mean(axis=1).var(ddof=1) / SEEDS for v in (one, two)]
    assert found.se_seeds == pytest.approx(math.sqrt(sum(by_task)) / 2)
    assert 2 < found.df < 5  # Satterthwaite's, of twice two
    # The same rows twice: other residents would change both tasks alike, and averaging does not help.
    cluster = world(rng, clusters_sd=0.5, rows_sd=0.1, seeds=1)
    alone, twice = crossed_interval([pair(cluster)]), crossed_interval([pair(cluster), pair(cluster)])
    assert twice.se_rows == pytest.approx(alone.se_rows)


@pytest.mark.parametrize("each", [5, 37])
def test_tasks_about_other_clusters_are_mended_each_by_its_own_number(each: int) -> None:
    """Two tasks that share no cluster: the closed form of each, and half of the root of their sum."""
    rng = np.random.default_rng(2)
    values = TRUTH + rng.normal(size=(2, 1, each))
    names = [[f"{task} {c}" for c in range(each)] for task in "ab"]
    found = crossed_interval([pair(v, n, 40_000) for v, n in zip(values, names, strict=True)])
    errors = values.std(axis=2, ddof=1) / math.sqrt(each)
    # The relative error of a variance of 40,000 draws is 0.7 %, that of a standard deviation half of it.
    assert found.se_rows == pytest.approx(math.sqrt((errors**2).sum()) / 2, rel=0.012)


def test_shifts_of_one_training_share_its_luck() -> None:
    """What a seed did to the near rows it did to the far ones: averaging over them tells no more of seeds."""
    rng = np.random.default_rng(5)
    luck = 0.5 * rng.normal(size=(SEEDS, 1))
    near, far = (world(rng, rows_sd=0.1) + luck for _ in range(2))
    home = world(rng, seeds_sd=0.5, rows_sd=0.1)
    by_seed = [values.mean(axis=1) for values in (near, far, home)]
    tasks = [pair(values) for values in (near, far, home)]
    together = crossed_interval(tasks[:2], trainings=["obqa", "obqa"])
    expected = ((by_seed[0] + by_seed[1]) / 2).std(ddof=1) / math.sqrt(SEEDS)
    assert together.se_seeds == pytest.approx(expected)
    assert crossed_interval(tasks[:2]).se_seeds == pytest.approx(expected / math.sqrt(2), rel=0.05)
    assert together.df < 2.5  # of three seeds, not of twice three
    # A third task that was learnt by itself counts as much as each of the two, and is independent.
    all_three = crossed_interval(tasks, trainings=["obqa", "obqa", "home"])
    other = by_seed[2].std(ddof=1) / math.sqrt(SEEDS)
    assert all_three.se_seeds == pytest.approx(math.hypot(2 * expected, other) / 3)
    assert all_three.difference == pytest.approx(np.mean(by_seed))
    # Each by itself is what they are by default.
    assert crossed_interval(tasks, trainings=["a", "b", "c"]) == crossed_interval(tasks)


def test_tasks_of_one_training_with_other_seeds_are_refused() -> None:
    rng = np.random.default_rng(6)
    tasks = [pair(world(rng, rows_sd=0.1, seeds=seeds)) for seeds in (2, 3)]
    with pytest.raises(DataError, match=r"training obqa have \[2, 3\] seeds"):
        crossed_interval(tasks, trainings=["obqa", "obqa"])


# Standard deviations of seed, cluster, their interaction and row.
SPREADS = {"seeds": (0.5, 0.0, 0.0, 0.2), "all": (0.1, 0.3, 0.4, 0.5)}
REPETITIONS = 300


def monte_carlo(coverage: float) -> float:
    return 3 * math.sqrt(coverage * (1 - coverage) / REPETITIONS)


def satterthwaites_coverage(seeds: float, shared: float) -> float:
    """Return how often |normal| < t(df) sqrt(V) where both parts of V are chi-squared: 92 to 95 %."""
    rng = np.random.default_rng(0)
    known = seeds * rng.chisquare(SEEDS - 1, 20_000) / (SEEDS - 1)
    other = shared * rng.chisquare(CLUSTERS - 1, 20_000) / (CLUSTERS - 1)
    df = (known + other) ** 2 / (known**2 / (SEEDS - 1) + other**2 / (CLUSTERS - 1))
    half = stats.t.ppf(0.975, df) * np.sqrt(known + other)
    return float(np.mean(1 - 2 * stats.norm.sf(half / math.sqrt(seeds + shared))))


@pytest.mark.parametrize("spread", SPREADS)
def test_holds_the_truth_as_often_as_theory_says_where_rows_alone_do_not(spread: str) -> None:
    s, c, b, r = SPREADS[spread]
    rng = np.random.default_rng(7)
    crossed = alone = 0
    row_errors = []
    for _ in range(REPETITIONS):
        values = world(rng, s, c, b, r)
        found = crossed_interval([pair(values, resamples=200)])
        crossed += found.low <= TRUTH <= found.high
        rows = values.mean(axis=0)
        row_errors.append(rows.std(ddof=1) / math.sqrt(len(rows)))
        alone += abs(values.mean() - TRUTH) <= 1.96 * row_errors[-1]
    seeds = s**2 / SEEDS + b**2 / SEEDS / CLUSTERS + r**2 / SEEDS / CLUSTERS / EACH
    expected = satterthwaites_coverage(seeds, c**2 / CLUSTERS)
    assert crossed / REPETITIONS == pytest.approx(expected, abs=monte_carlo(expected))
    # Rows alone: the true standard deviation of the mean against the one that they count.
    by_rows = 1 - 2 * stats.norm.sf(1.96 * np.mean(row_errors) / math.sqrt(seeds + c**2 / CLUSTERS))
    assert by_rows < 0.85
    assert alone / REPETITIONS == pytest.approx(by_rows, abs=monte_carlo(by_rows))


def test_one_seed_speaks_of_rows_alone() -> None:
    found = crossed_interval([pair(world(np.random.default_rng(4), 9.0, 0.5, seeds=1))])
    assert found.se_seeds is None
    assert found.df == CLUSTERS - 1
    half = stats.t(CLUSTERS - 1).ppf(0.975) * found.se_rows
    assert (found.low, found.high) == pytest.approx((found.difference - half, found.difference + half))


def test_what_never_varies_is_known_as_well_as_clusters_are_many() -> None:
    """All of two clusters lie on one side of 0 half of the time where there is no difference."""
    same = TaskDifference(torch.zeros(3), torch.zeros(50, 3), frozenset("ab"))
    assert (crossed_interval([same]).low, crossed_interval([same]).p_value) == (0.0, 1.0)
    for clusters, low, high in (("ab", 0.0, 2.0), ("abcde", 0.0, 2.0), ("abcdef", 1.0, 1.0)):
        one = crossed_interval([TaskDifference(torch.ones(3), torch.ones(50, 3), frozenset(clusters))])
        assert (one.low, one.high, one.p_value) == (low, high, 2 * 0.5 ** len(clusters))
        assert one.excludes_zero == (low > 0)


@pytest.mark.parametrize("sizes", [[50, *[2] * 9], [1, 2, 4, 8, 16, 32]])
def test_clusters_of_unlike_sizes_hold_the_truth_as_often_as_they_say(sizes: list[int]) -> None:
    """Counted by their names they do so in 62 to 90 % of the cases: a large one decides."""
    rng, held, index = np.random.default_rng(5), 0, np.repeat(np.arange(len(sizes)), sizes)
    names = [f"c{i}" for i in index]
    for seed in range(400):
        rows = rng.normal(size=len(sizes))[index] + rng.normal(size=len(index))
        columns = [torch.from_numpy(100 + rows)[:, None]]  # scores are sizes of means: away from 0
        drawn = drawn_scores(columns, names, 200, seed)
        found = crossed_interval([TaskDifference(torch.tensor([100 + rows.mean()]), drawn, Counter(names))])
        held += found.low <= 100 <= found.high
    assert held / 400 > 0.95 - 3 * math.sqrt(0.95 * 0.05 / 400)


def test_as_many_clusters_of_one_size_count_as_they_are() -> None:
    known = frozenset("abc")
    assert effective([known]) == effective([Counter("aabbcc")]) == 3
    assert effective([{"a": 2, "b": 1, "c": 1}]) == pytest.approx(16 / 6)
    # Of two tasks about the same clusters no more, about others as many more.
    assert effective([known, known]) == 3
    assert effective([known, frozenset("def")]) == 6


def test_one_cluster_and_a_level_out_of_range_are_refused() -> None:
    drawn = TaskDifference(torch.ones(3), torch.ones(50, 3), frozenset("a"))
    with pytest.raises(DataError, match="one cluster"):
        crossed_interval([drawn])
    for level in (0.0, 1.0):
        with pytest.raises(ConfigError, match="level"):
            crossed_interval([drawn], level)


def test_holm_is_the_closed_test_of_bonferronis() -> None:
    """A hypothesis goes where every set that it is in goes: the least p times the size of the set."""
    for p in ([0.01, 0.04, 0.03, 0.005], [0.2, 0.9, 0.9], [0.5], [0.01, 0.01, 0.02, 0.0, 1.0]):
        places = range(len(p))
        sets = [s for k in range(1, len(p) + 1) for s in itertools.combinations(places, k)]
        expected = [max(min(1.0, len(s) * min(p[j] for j in s)) for s in sets if i in s) for i in places]
        assert holm(p) == pytest.approx(expected)
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])  # R: p.adjust(, "holm")
    assert holm([]) == []


@pytest.mark.parametrize("spread", [2.0, 0.01])
def test_every_term_of_two_tasks_by_a_plain_loop(spread: float) -> None:
    """Variances by seeds and by clusters, and Satterthwaite's degrees of freedom, written out in numpy.

    Where seeds happen to agree, rows alone are what the interval says.
    """
    generator = np.random.default_rng(3)
    names = frozenset("abcdefg")
    by_seed = [spread * generator.normal(size=3), spread * generator.normal(size=4)]
    common = generator.normal(size=(500, 1))  # what clusters do to all seeds and tasks alike
    drawn = [3 * common + generator.normal(size=(500, len(own))) for own in by_seed]
    found = crossed_interval(
        [
            TaskDifference(torch.from_numpy(own), torch.from_numpy(draws), names)
            for own, draws in zip(by_seed, drawn, strict=True)
        ]
    )
    mend, df_rows = 8 / 6, 6
    seeds = [own.var(ddof=1) / len(own) / 4 for own in by_seed]
    rows = mend * np.var((drawn[0].mean(1) + drawn[1].mean(1)) / 2, ddof=1)
    shared = rows
    for own in drawn:
        n = own.shape[1]
        covariance = np.cov(own.T)
        pairs = [covariance[i, j] for i in range(n) for j in range(n) if i != j]
        shared -= mend * (np.mean(np.diag(covariance)) - np.mean(pairs)) / n / 4
    variance = sum(seeds) + shared
    df = variance**2 / (seeds[0] ** 2 / 2 + seeds[1] ** 2 / 3 + shared**2 / df_rows)
    if spread < 1:
        assert variance < rows
        variance, df = rows, df_rows
    assert found.df == pytest.approx(df, rel=1e-9)
    distribution = stats.t(df, found.difference, np.sqrt(variance))
    assert (found.low, found.high) == pytest.approx(distribution.interval(0.95), rel=1e-9)
    assert found.p_value == pytest.approx(2 * min(distribution.cdf(0), distribution.sf(0)), rel=1e-9)
    assert (found.se_seeds, found.se_rows) == pytest.approx((np.sqrt(sum(seeds)), np.sqrt(rows)), rel=1e-9)
