"""Best of n: the expected reward of the best of n sampled replies.

N replies for each prompt are enough for every n up to N. The estimate is the mean over all subsets of n
replies, which is unbiased, varies less than a single subset, and needs only the sorted rewards.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from bara_pyro.errors import DataError
from bara_pyro.metrics._inputs import as_finite_array
from bara_pyro.metrics.over_prompts import Floats, SamplingCurve, sampling_curve
from bara_pyro.metrics.pass_at_k import at_least_one


def rank_weights(samples: int) -> Floats:
    """Return the probability of each rank to be the best of n of N samples, `N x N`.

    Row n - 1 belongs to n; columns are ranks in increasing order. Rank i is the best in C(i - 1, n - 1) of
    the C(N, n) subsets. The largest has probability n / N, and the weight of rank i is that of rank i + 1
    times (i + 1 - n) / i. All factors lie in 0..1, so the products cannot overflow.
    """
    rank = np.arange(1.0, samples + 1)
    factor = np.clip((rank + 1 - rank[:, None]) / rank, 0.0, None)
    factor[:, -1] = rank / samples
    return np.cumprod(factor[:, ::-1], axis=1, dtype=np.float64)[:, ::-1]


def best_of_n_per_prompt(rewards: ArrayLike) -> Floats:
    """Return the expected reward of the best of n replies to each prompt, `prompts x N` for n = 1..N.

        sum_i C(i - 1, n - 1) / C(N, n) * reward_(i)

    where reward_(1) <= .. <= reward_(N) are the sorted rewards of the prompt.

    Args:
        rewards: `prompts x N`; the result has the same unit.

    Raises:
        DataError: `rewards` is empty, ragged or not finite.

    Examples:
        >>> from bara_pyro.metrics import best_of_n_per_prompt
        >>> best_of_n_per_prompt([[1.0, 2.0, 6.0]]).round(4).tolist()  # 9 / 3, 14 / 3 and 6
        [[3.0, 4.6667, 6.0]]
    """
    checked = as_finite_array(rewards, "rewards", ("prompts", "samples"))
    return np.sort(checked, axis=1) @ rank_weights(checked.shape[1]).T


def win_rate_per_prompt(rewards: ArrayLike, references: ArrayLike) -> Floats:
    """Return the win rate in percent of the best of n replies to each prompt, `prompts x N` for n = 1..N.

    Args:
        rewards: `prompts x N`.
        references: `prompts`, the reward of the reference reply. A tie counts as half a win.

    Raises:
        DataError: an input is empty, ragged or not finite, or the numbers of prompts and references differ.

    Examples:
        >>> from bara_pyro.metrics import win_rate_per_prompt
        >>> win_rate_per_prompt([[1.0, 2.0, 6.0]], [2.0]).round(4).tolist()  # loss, tie, win
        [[50.0, 83.3333, 100.0]]
    """
    checked = as_finite_array(rewards, "rewards", ("prompts", "samples"))
    rivals = as_finite_array(references, "references", ("prompts",))
    if len(rivals) != len(checked):
        raise DataError(
            f"There are {len(checked)} prompts and {len(rivals)} references: give one for each prompt."
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
    """Return the expected reward of the best of n = 1..N replies, by prompt and on average.

    Args:
        rewards: `prompts x N`; the result has the same unit.
        clusters: the cluster of each prompt; if None, every prompt is a cluster.
        resamples: number of draws of prompts for the intervals.
        level: nominal coverage, between 0 and 1.
        seed: the same seed gives the same intervals.

    Raises:
        DataError: `rewards` is empty, ragged or not finite, or all prompts are in one cluster.
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
    """Return the win rate of the best of n = 1..N replies over a reference, by prompt and on average.

    The same reward must choose the reply and compare it with the reference. The estimate does not hold for
    replies that one reward chooses and another judges.

    Args:
        rewards: `prompts x N`.
        references: `prompts`, the reward of the reference reply. A tie counts as half a win.
        clusters: the cluster of each prompt; if None, every prompt is a cluster.
        resamples: number of draws of prompts for the intervals.
        level: nominal coverage, between 0 and 1.
        seed: the same seed gives the same intervals.

    Raises:
        DataError: an input is empty, ragged or not finite, the numbers of prompts and references differ, or
            all prompts are in one cluster.
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
