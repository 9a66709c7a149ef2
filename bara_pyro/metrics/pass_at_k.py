"""pass@k: the probability that at least one of k sampled programs passes its tests."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bara_pyro.errors import ConfigError, DataError
from bara_pyro.metrics._inputs import as_finite_array
from bara_pyro.metrics.over_prompts import Floats, SamplingCurve, sampling_curve


def at_least_one(good: NDArray[np.int64], samples: int) -> Floats:
    """Return the probability that n of N samples include a good one, `prompts x N` for n = 1..N.

        1 - C(N - c, n) / C(N, n)

    The ratio of binomials is a product of n factors, which is exact at 0 and 1 and cannot overflow.

    Args:
        good: `prompts`, the number c of good samples for each prompt.
        samples: the number N of samples for each prompt.
    """
    taken = np.arange(samples)
    # When no bad sample is left, a factor is 0, so later (negative) factors do not matter.
    bad_left = samples - good[:, None] - taken
    return 1.0 - np.cumprod(bad_left / (samples - taken), axis=1, dtype=np.float64)


def pass_at_k_per_problem(passed: ArrayLike, k: Sequence[int] | None = None) -> Floats:
    """Return the unbiased estimate of pass@k for each problem in percent, `problems x K`.

    Arguments and errors are those of `pass_at_k`.

    Examples:
        >>> from bara_pyro.metrics import pass_at_k_per_problem
        >>> passed = [[1, 0, 0, 0], [1, 1, 0, 0]]  # one and two of four samples pass
        >>> pass_at_k_per_problem(passed, [1, 2]).round(4).tolist()  # 3 and 5 of 6 pairs pass
        [[25.0, 50.0], [50.0, 83.3333]]
    """
    outcome = as_finite_array(passed, "passed", ("problems", "samples"))
    wrong = np.argwhere((outcome != 0) & (outcome != 1))
    if len(wrong):
        place = tuple(wrong[0].tolist())
        raise DataError(
            f"passed{list(place)} is {outcome[place]:g}: give 1 for a sample that passes and 0 for others."
        )
    samples = outcome.shape[1]
    return 100.0 * at_least_one(outcome.sum(axis=1).astype(np.int64), samples)[:, check_k(k, samples) - 1]


def check_k(k: Sequence[int] | None, samples: int) -> NDArray[np.int64]:
    """Return `k` as an array, None: 1..`samples`; a `ConfigError` for a value that is not in this range."""
    counts = np.arange(1, samples + 1) if k is None else np.asarray(k)
    if counts.ndim != 1 or not counts.size or counts.dtype.kind not in "iu":
        raise ConfigError(f"k is {k!r}: give a list of integers, [1, 10] for example.")
    outside = counts[(counts < 1) | (counts > samples)]
    if outside.size:
        raise ConfigError(
            f"k is {outside[0]}, but each problem has {samples} samples: "
            f"choose k in 1..{samples}, or sample more."
        )
    return counts.astype(np.int64)


def pass_at_k(
    passed: ArrayLike,
    k: Sequence[int] | None = None,
    *,
    clusters: Sequence[str] | None = None,
    resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> SamplingCurve:
    """Return the unbiased estimate of pass@k in percent, by problem and on average; higher is better.

        100 * (1 - C(n - c, k) / C(n, k))

    for a problem with n samples of which c pass.

    Source: Chen et al. 2021 (arXiv 2107.03374), equation 1.

    Args:
        passed: `problems x samples`, 1 (or True) for a sampled program that passes all tests.
        k: the values of k, at most the number of samples; if None, all of 1..`samples`.
        clusters: the cluster of each problem; if None, every problem is a cluster.
        resamples: number of draws of problems for the intervals.
        level: nominal coverage, between 0 and 1.
        seed: the same seed gives the same intervals.

    Raises:
        DataError: `passed` is empty or ragged, has values other than 0 and 1, or all problems are in one
            cluster.
        ConfigError: a k is below 1 or above the number of samples, or `resamples` or `level` is out of range.

    Examples:
        >>> from bara_pyro.metrics import pass_at_k
        >>> curve = pass_at_k([[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]], [1, 2])
        >>> curve.budgets.tolist(), curve.mean.round(2).tolist()
        ([1, 2], [25.0, 44.44])
        >>> bool((curve.low <= curve.mean).all() and (curve.mean <= curve.high).all())
        True
    """
    per_problem = pass_at_k_per_problem(passed, k)
    return sampling_curve(
        per_problem,
        check_k(k, np.shape(passed)[1]),
        clusters=clusters,
        bounds=(0.0, 100.0),
        resamples=resamples,
        level=level,
        seed=seed,
    )
