"""Active learning: choose the rows to label next, those with the most informative answers.

`log_probs` has shape `S x n x C`: the natural log of the probabilities of n unlabelled rows under each
posterior draw w. If a row has fewer than C answers, the others have probability 0 (`-inf`). Rows are chosen
by

    entropy       H(y)                              the prediction is uncertain, for any reason
    bald          I(y; w) = H(y) - E_w H(y | w)     the draws disagree (Houlsby et al. 2011)
    batch-bald    I(y_1, .., y_b; w)                joint information of a batch (Kirsch et al. 2019)

where y is the answer. `entropy` and `bald` score each row independently and may choose redundant rows.
`batch-bald` is greedy: the next row maximizes

    I(y; w | y_1, .., y_b) = E_{y_1, .., y_b} [ H(sum_s v_s p_s(y)) - sum_s v_s H(p_s(y)) ]

where v_s are the weights of the draws given the b answers. The mean is over all C^b configurations of answers
while they are few, and over configurations drawn from the predictive distribution afterwards.

S draws limit the information in a batch to log S nats, 1.1 nats for an ensemble of three. Near this limit the
choice is mostly noise: use more draws or a smaller batch.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from bara_pyro.errors import ConfigError, check_choice
from bara_pyro.metrics._inputs import DECIMALS, Numbers, check_log_probs
from bara_pyro.metrics.uncertainty import decompose
from bara_pyro.types import Acquisition

CONFIGURATIONS = 1024
SAME = 1e-9  # nats; a smaller difference is rounding
ENTRIES = 2**22  # the most numbers in one intermediate tensor


def choose(
    log_probs: Numbers,
    count: int,
    by: Acquisition = "batch-bald",
    *,
    seed: int = 0,
    configurations: int = CONFIGURATIONS,
) -> Tensor:
    """Return the rows to label next, the most useful first.

    Args:
        log_probs: `S x n x C`, natural log of the probabilities under each draw. All rows must use the same
            draws.
        count: number of rows to choose.
        by: `entropy`, `bald` or `batch-bald` (see the module's description), or `random`. The first of equal
            rows is chosen.
        seed: seed of `random` and of the configurations of `batch-bald`.
        configurations: the most configurations of answers that `batch-bald` averages over. All are used while
            there are no more; afterwards this many are drawn from the predictive distribution.

    Returns:
        Indices of rows, long, `count`.

    Raises:
        ConfigError: `by` is unknown, there are fewer than `count` rows, or `by` is `bald` or `batch-bald` and
            all draws agree.
        DataError: the inputs fail the checks of `metrics.decompose`.

    Examples:
        >>> import torch
        >>> from bara_pyro.extras.active.acquisition import choose
        >>> first = torch.tensor([  # P(first answer): four draws, four rows; the first two rows are equal
        ...     [0.9, 0.9, 0.5, 0.85], [0.9, 0.9, 0.5, 0.25], [0.2, 0.2, 0.5, 0.85], [0.2, 0.2, 0.5, 0.25]])
        >>> log_probs = torch.stack([first, 1 - first], dim=-1).log()
        >>> {by: choose(log_probs, 2, by).tolist() for by in ("entropy", "bald", "batch-bald")}
        {'entropy': [2, 0], 'bald': [0, 1], 'batch-bald': [0, 3]}
    """
    check_choice("by", by, Acquisition)
    draws = check_log_probs(log_probs, "log_probs", dims=3)
    check_count(count, draws.shape[1])
    if by == "random":
        return torch.randperm(draws.shape[1], generator=torch.Generator().manual_seed(seed))[:count]
    if by == "batch-bald":
        return _batch_bald(draws.exp(), count, seed, configurations)
    parts = decompose(draws)
    scores = parts.total if by == "entropy" else parts.epistemic
    if by == "bald":
        _check_differ(scores)
    return _rounded(scores).argsort(descending=True, stable=True)[:count]


def _batch_bald(probs: Tensor, count: int, seed: int, configurations: int) -> Tensor:
    """Choose rows (of `S x n x C`) greedily by the joint information of their answers and the latents."""
    joint = _Joint(len(probs), configurations, seed)
    chosen: list[int] = []
    for place in range(count):
        gains = _rounded(joint.gains(probs))
        if not place:
            _check_differ(gains)
        gains[chosen] = -1.0
        best = int((gains == gains.max()).nonzero()[0])  # the first of equal rows
        chosen.append(best)
        joint.add(probs[:, best])
    return torch.tensor(chosen)


def joint_information(log_probs: Numbers, *, seed: int = 0, configurations: int = CONFIGURATIONS) -> Tensor:
    """Return the joint mutual information of the answers of the first 1, 2, .., n rows and the latents.

    Args:
        log_probs: `S x n x C`, as for `choose`; the order of the rows matters.
        seed: as for `choose`.
        configurations: as for `choose`.

    Returns:
        Mutual information in nats, float64, `n`, at most `log S`.

    Raises:
        DataError: the inputs fail the checks of `metrics.decompose`.

    Examples:
        >>> import torch
        >>> from bara_pyro.extras.active.acquisition import joint_information
        >>> probs = torch.tensor([[[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, 1.0]]])
        >>> joint_information(probs.log()).tolist()  # log 2; the second row adds nothing
        [0.6931471805599453, 0.6931471805599453]
    """
    probs = check_log_probs(log_probs, "log_probs", dims=3).exp()
    joint = _Joint(len(probs), configurations, seed)
    information = []
    for row in range(probs.shape[1]):
        information.append(float(joint.gains(probs[:, [row]])))
        joint.add(probs[:, row])
    # Clipped, because drawn configurations may slightly exceed the limit.
    return torch.tensor(information, dtype=torch.float64).cumsum(0).clamp(max=math.log(len(probs)))


class _Joint:
    """Configurations of the answers of the chosen rows, and the weights of the draws given each.

    Attributes:
        mass: float64, `K`: the probability of each configuration; 1 / K for drawn ones.
        weights: float64, `K x S`: the weights of the draws given each configuration; rows sum to 1.
    """

    def __init__(self, draws: int, most: int, seed: int) -> None:
        self.mass = torch.ones(1, dtype=torch.float64)
        self.weights = torch.full((1, draws), 1 / draws, dtype=torch.float64)
        self.most, self.drawn = most, False
        self.generator = torch.Generator().manual_seed(seed)

    def gains(self, probs: Tensor) -> Tensor:
        """Return `I(y; w | rows so far)` in nats for each candidate (`S x n x C`), float64, `n`."""
        conditional = torch.special.entr(probs).sum(-1)  # S x n
        gains = []
        for part in self._parts(*probs.shape[1:]):
            predicted = torch.einsum("ks,snc->knc", self.weights, probs[:, part])
            gain = torch.special.entr(predicted).sum(-1) - self.weights @ conditional[:, part]
            gains.append(self.mass @ gain)
        # Entropy is concave, so only rounding can make a gain negative.
        return torch.cat(gains).clamp(min=0.0)

    def add(self, probs: Tensor) -> None:
        """Add a row (`S x C`): extend each configuration by every answer, or by one drawn answer."""
        if not self.drawn and len(self.mass) * probs.shape[1] > self.most:
            pick = torch.multinomial(self.mass, self.most, replacement=True, generator=self.generator)
            self.mass, self.weights = (
                torch.full_like(pick, 1 / self.most, dtype=torch.float64),
                self.weights[pick],
            )
            self.drawn = True
        predicted = self.weights @ probs  # K x C
        if self.drawn:
            answer = torch.multinomial(predicted, 1, generator=self.generator)[:, 0]
            joint = self.weights * probs.T[answer]
        else:
            joint = (self.weights[:, None, :] * probs.T).flatten(0, 1)
            self.mass = (self.mass[:, None] * predicted).flatten()
            joint, self.mass = joint[self.mass > 0], self.mass[self.mass > 0]
        self.weights = joint / joint.sum(-1, keepdim=True)

    def _parts(self, rows: int, classes: int) -> Iterator[slice]:
        step = max(1, ENTRIES // (len(self.mass) * classes))
        return (slice(first, first + step) for first in range(0, rows, step))


def _rounded(scores: Tensor) -> Tensor:
    """Return scores rounded so that equal rows have equal scores."""
    return torch.round(scores, decimals=DECIMALS)


def check_count(count: int, rows: int) -> None:
    """Raise `ConfigError` if `count` is not in 1..`rows`."""
    if not 1 <= count <= rows:
        raise ConfigError(f"count is {count}, but there are {rows} rows to choose from: give 1 to {rows}.")


def _check_differ(information: Tensor) -> None:
    """Raise `ConfigError` if the draws agree in every row, so that no answer is informative."""
    most = float(information.max())
    if most < SAME:
        raise ConfigError(
            f"The draws agree in all {len(information)} rows (mutual information at most {most:.3g} nats): "
            "choose by entropy, or take two draws or more from a Bayesian method."
        )
