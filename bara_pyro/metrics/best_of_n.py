"""Best of n: what the reply of the largest reward among n sampled ones is worth.

N replies a prompt are enough for every n up to N: the mean over all subsets of n replies is an unbiased
estimate, of less variance than any one subset, and needs no more than the sorted rewards.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from bara_pyro.errors import DataError
from bara_pyro.metrics._inputs import as_finite_array
from bara_pyro.metrics.over_prompts import Floats, SamplingCurve, sampling_curve
from bara_pyro.metrics.pass_at_k import at_least_one


def rank_weights(samples: int) -> Floats:
    """Return how often each rank is the best of n of N samples, `N x N`: row n - 1, ranks rising.

    Rank i is the best of C(i - 1, n - 1) subsets among C(N, n). The largest is so in n / N of them; each
    rank below is the one above times (i + 1 - n) / i: products of factors in 0..1, which cannot overflow.
    """
    rank = np.arange(1.0, samples + 1)
    factor = np.clip((rank + 1 - rank[:, None]) / rank, 0.0, None)
    factor[:, -1] = rank / samples
    return np.cumprod(factor[:, ::-1], axis=1, dtype=np.float64)[:, ::-1]


def best_of_n_per_prompt(rewards: ArrayLike) -> Floats:
    """Return the expected largest reward of n of each prompt's N replies, `prompts x N` for n = 1..N.

    Args:
        rewards: `prompts x N`, in any unit, which is that of the result.

    Raises:
        DataError: `rewards` is empty, ragged or not finite.

    Examples:
        >>> from bara_pyro.metrics import best_of_n_per_prompt
        >>> best_of_n_per_prompt([[1.0, 2.0, 6.0]]).round(4).tolist()  # 9 / 3; 14 / 3; 6
        [[3.0, 4.6667, 6.0]]
    """
    checked = as_finite_array(rewards, "rewards", ("prompts", "samples"))
    return np.sort(checked, axis=1) @ rank_weights(checked.shape[1]).T


def win_rate_per_prompt(rewards: ArrayLike, references: ArrayLike) -> Floats:
    """Return how often the best of n replies beats the reference in percent, `prompts x N` for n = 1..N.

    Args:
        rewards: `prompts x N`.
        references: `prompts`, the reward of the reply that is to be beaten; a tie is half a win.

    Raises:
        DataError: an input is empty, ragged or not finite, or there is not one reference a prompt.

    Examples:
        >>> from bara_pyro.metrics import win_rate_per_prompt
        >>> win_rate_per_prompt([[1.0, 2.0, 6.0]], [2.0]).round(4).tolist()  # loss, tie, win
        [[50.0, 83.3333, 100.0]]
    """
    checked = as_finite_array(rewards, "rewards", ("prompts", "samples"))
    rivals = as_finite_array(references, "references", ("prompts",))
    if len(rivals) != len(checked):
        raise DataError(
            f"There are {len(checked)} prompts and {len(rivals)} references: give one reference a prompt."
        )
    samples = checked.shape[1]
    above = at_least_one((checked > rivals[:, None]).sum(axis=1), samples)
    level = at_least_one((checked >= rivals[:, None]).sum(axis=1), samples)
    return 50.0 * (above + level)


def best_of_n(
    rewards: ArrayLike,
    *,
    clusters: Sequence[str] | None = None,
    resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> SamplingCurve:
    """Return the expected largest reward of n = 1..N sampled replies, by prompt and on average.

    Args:
        rewards: `prompts x N`, in any unit, which is that of the result.
        clusters: the cluster of each prompt; each is its own if None.
        resamples: number of draws of prompts for the intervals.
        level: nominal coverage, between 0 and 1.
        seed: the same seed gives the same intervals.

    Raises:
        DataError: `rewards` is empty, ragged or not finite, or all prompts are of one cluster.
        ConfigError: `resamples` or `level` is out of range.

    Examples:
        >>> from bara_pyro.metrics import best_of_n
        >>> curve = best_of_n([[1.0, 2.0, 6.0], [0.0, 3.0, 3.0]])
        >>> curve.budgets.tolist(), curve.mean.round(4).tolist()
        ([1, 2, 3], [2.5, 3.8333, 4.5])
    """
    per_prompt = best_of_n_per_prompt(rewards)
    budgets = np.arange(1, per_prompt.shape[1] + 1)
    return sampling_curve(per_prompt, budgets, clusters=clusters, resamples=resamples, level=level, seed=seed)


def best_of_n_win_rate(
    rewards: ArrayLike,
    references: ArrayLike,
    *,
    clusters: Sequence[str] | None = None,
    resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> SamplingCurve:
    """Return how often the best of n = 1..N replies beats a reference, in percent, by prompt and on average.

    The reward that chooses the reply is the one that compares it: what is chosen by one and judged by another
    is no order statistic.

    Args:
        rewards: `prompts x N`.
        references: `prompts`, the reward of the reply that is to be beaten; a tie is half a win.
        clusters: the cluster of each prompt; each is its own if None.
        resamples: number of draws of prompts for the intervals.
        level: nominal coverage, between 0 and 1.
        seed: the same seed gives the same intervals.

    Raises:
        DataError: an input is empty, ragged or not finite, there is not one reference a prompt, or all
            prompts are of one cluster.
        ConfigError: `resamples` or `level` is out of range.

    Examples:
        >>> from bara_pyro.metrics import best_of_n_win_rate
        >>> curve = best_of_n_win_rate([[1.0, 2.0, 6.0], [0.0, 3.0, 3.0]], [2.0, 5.0])
        >>> curve.mean.round(4).tolist()  # the second prompt's reference is never beaten
        [25.0, 41.6667, 50.0]
    """
    per_prompt = win_rate_per_prompt(rewards, references)
    return sampling_curve(
        per_prompt,
        np.arange(1, per_prompt.shape[1] + 1),
        clusters=clusters,
        bounds=(0.0, 100.0),
        resamples=resamples,
        level=level,
        seed=seed,
    )
