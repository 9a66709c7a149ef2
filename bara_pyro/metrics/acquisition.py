"""Which rows to label next: those whose answers would tell the most (active learning).

Draws are `S x n x C`, natural log of the probabilities of n unlabelled rows under each posterior draw w;
where rows have fewer answers than C, those missing have probability 0 (`-inf`). A row may be chosen by

    entropy       H(y)                              the prediction is uncertain, for whatever reason
    bald          I(y; w) = H(y) - E_w H(y | w)     the draws disagree (Houlsby et al. 2011)
    batch-bald    I(y_1, .., y_b; w)                of rows chosen together (Kirsch et al. 2019)

where y is the answer. Two rows that say the same are counted twice by the first two, which look at each row
by itself. The third is greedy: the next row is the one with the largest

    I(y; w | y_1, .., y_b) = E_{y_1, .., y_b} [ H(sum_s v_s p_s(y)) - sum_s v_s H(p_s(y)) ]

v_s being the weights of the draws once these b answers are known. The mean is over all C^b configurations of
answers while they are few, and over some that are drawn from their predictive distribution from then on.

S draws stand for the posterior, and no answers tell more of them than which it is: a batch has at most log S
nats. Near that ceiling the draws are used up, not the rows: what is chosen there is chosen by little more
than noise, and more draws (or a smaller batch) are what helps. An ensemble of three has 1.1 nats to give.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from bara_pyro.errors import ConfigError, check_choice
from bara_pyro.metrics._inputs import DECIMALS, Numbers, check_log_probs
from bara_pyro.metrics.uncertainty import decompose
from bara_pyro.types import Acquisition

CONFIGURATIONS = 1024
SAME = 1e-9  # nats; less is rounding
ENTRIES = 2**22  # numbers held at a time


@dataclass(frozen=True)
class AcquiredBatch:
    """Rows chosen together.

    Attributes:
        indices: long, `count`: the rows, in the order in which they were chosen.
        information: float64, `count`: mutual information (nats) of the latents and the answers of the rows up
            to this one; at most `log S`.
    """

    indices: Tensor
    information: Tensor


def choose(log_probs: Numbers, count: int, by: Acquisition = "batch-bald", *, seed: int = 0) -> Tensor:
    """Return the rows to label next, the first one first.

    Args:
        log_probs: `S x n x C`, natural log of the probabilities under each draw, which all rows share.
        count: how many rows.
        by: `entropy`, `bald` or `batch-bald`, see above; of equal rows the first. `random`: any.
        seed: of `random`, and of the configurations of `batch-bald`.

    Returns:
        Indices of rows, long, `count`.

    Raises:
        ConfigError: `by` is unknown, there are fewer than `count` rows, or the draws do not differ and
            `by` asks how much they do.
        DataError: as of `metrics.decompose`.

    Examples:
        >>> import torch
        >>> from bara_pyro.metrics import choose
        >>> first = torch.tensor([  # P(first answer): four draws, four rows; the second is as the first
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
        return batch_bald(draws, count, seed=seed).indices
    parts = decompose(draws)
    scores = parts.total if by == "entropy" else parts.epistemic
    if by == "bald":
        _check_differ(scores)
    return _rounded(scores).argsort(descending=True, stable=True)[:count]


def batch_bald(
    log_probs: Numbers, count: int, *, seed: int = 0, configurations: int = CONFIGURATIONS
) -> AcquiredBatch:
    """Return the greedy batch by joint mutual information of its answers and the latents.

    What it returns is at most `log S`: see above.

    Args:
        log_probs: `S x n x C`, as `choose` takes them.
        count: how many rows.
        seed: of the configurations.
        configurations: of the answers of the rows chosen so far that are looked at: all while there are no
            more, then so many drawn from the predictive distribution.

    Raises:
        ConfigError: there are fewer than `count` rows, or the draws do not differ.
        DataError: as of `metrics.decompose`.

    Examples:
        >>> import torch
        >>> from bara_pyro.metrics import batch_bald
        >>> sure, other = [0.9, 0.1], [0.1, 0.9]
        >>> probs = torch.tensor([[sure, sure, other], [other, other, other], [other, other, sure]])
        >>> found = batch_bald(probs.log(), 3)
        >>> found.indices.tolist(), [round(value, 3) for value in found.information.tolist()]
        ([0, 2, 1], [0.332, 0.614, 0.736])
    """
    draws = check_log_probs(log_probs, "log_probs", dims=3)
    check_count(count, draws.shape[1])
    probs = draws.exp()
    joint = _Joint(len(probs), configurations, seed)
    chosen: list[int] = []
    told: list[float] = []
    for place in range(count):
        gains = _rounded(joint.gains(probs))
        if not place:
            _check_differ(gains)
        gains[chosen] = -1.0
        best = int((gains == gains.max()).nonzero()[0])  # of equal ones the first
        told.append(float(gains[best]))
        chosen.append(best)
        joint.add(probs[:, best])
    return AcquiredBatch(torch.tensor(chosen), _summed(told, len(probs)))


def joint_information(log_probs: Numbers, *, seed: int = 0, configurations: int = CONFIGURATIONS) -> Tensor:
    """Return what the answers of the first 1, 2, .., n rows tell together of the latents (nats).

    Args:
        log_probs: `S x n x C`, as `choose` takes them, of the rows in their order.
        seed: as of `batch_bald`.
        configurations: as of `batch_bald`.

    Returns:
        Mutual information, float64, `n`, at most `log S`.

    Raises:
        DataError: as of `metrics.decompose`.

    Examples:
        >>> import torch
        >>> from bara_pyro.metrics import joint_information
        >>> probs = torch.tensor([[[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, 1.0]]])
        >>> joint_information(probs.log()).tolist()  # the second row says what the first has said: log 2
        [0.6931471805599453, 0.6931471805599453]
    """
    probs = check_log_probs(log_probs, "log_probs", dims=3).exp()
    joint = _Joint(len(probs), configurations, seed)
    told = []
    for row in range(probs.shape[1]):
        told.append(float(joint.gains(probs[:, [row]])))
        joint.add(probs[:, row])
    return _summed(told, len(probs))


class _Joint:
    """Configurations of the answers of the rows so far, and the weights of the draws given each.

    Attributes:
        mass: float64, `K`: the probability of each configuration; 1 / K once they are drawn.
        weights: float64, `K x S`: of the draws given the configuration; rows sum to 1.
    """

    def __init__(self, draws: int, most: int, seed: int) -> None:
        self.mass = torch.ones(1, dtype=torch.float64)
        self.weights = torch.full((1, draws), 1 / draws, dtype=torch.float64)
        self.most, self.drawn = most, False
        self.generator = torch.Generator().manual_seed(seed)

    def gains(self, probs: Tensor) -> Tensor:
        """Return `I(y; w | rows so far)` of each of the candidates (`S x n x C`), float64, `n`."""
        given = torch.special.entr(probs).sum(-1)  # S x n
        found = []
        for part in self._parts(*probs.shape[1:]):
            predicted = torch.einsum("ks,snc->knc", self.weights, probs[:, part])
            told = torch.special.entr(predicted).sum(-1) - self.weights @ given[:, part]
            found.append(self.mass @ told)
        # Not negative for any configuration, as entropy is concave, but for rounding.
        return torch.cat(found).clamp(min=0.0)

    def add(self, probs: Tensor) -> None:
        """Add a row, `S x C`: each configuration goes on with every answer, or with one that is drawn."""
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


def _summed(gains: list[float], draws: int) -> Tensor:
    """Return what rows tell together: at most all there is, which drawn answers may exceed a little."""
    return torch.tensor(gains, dtype=torch.float64).cumsum(0).clamp(max=math.log(draws))


def _rounded(scores: Tensor) -> Tensor:
    """Return scores without what rounding adds: equal rows stay equal."""
    return torch.round(scores, decimals=DECIMALS)


def check_count(count: int, rows: int) -> None:
    """Refuse a number of rows that are not there; a `ConfigError`."""
    if not 1 <= count <= rows:
        raise ConfigError(f"count is {count}, and there are {rows} rows to choose from: give 1 to {rows}.")


def _check_differ(information: Tensor) -> None:
    """Refuse draws of which no row's answer tells anything."""
    most = float(information.max())
    if most < SAME:
        raise ConfigError(
            f"The draws of all {len(information)} rows agree (mutual information at most {most:.3g} nats): "
            "choose by entropy, or take two draws or more of a Bayesian method."
        )
