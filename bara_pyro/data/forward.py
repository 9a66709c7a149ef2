"""An order of training in which rows are predicted before they are learnt, and learnt in the end.

Training begins with a quarter of the rows; the others join them one batch after the other, evenly over the
first nine tenths of the steps. Between two arrivals the rows that are there are learnt again, as ever: each
once before any of them twice. So a row arrives at a model that has made many passes over the others, as the
finished one has, and what that says of it is an honest prediction (replay streams and forward calibration:
Bornschein, Li and Hutter, ICLR 2023).
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from bara_pyro.errors import ConfigError

FIRST, LAST = 0.25, 0.9


class ForwardStep(NamedTuple):
    """A step of training: its rows, of which the first `new` arrive."""

    rows: tuple[int, ...]
    new: int


@lru_cache(maxsize=4)
def forward_order(num_rows: int, batch_size: int, seed: int, steps: int) -> tuple[ForwardStep, ...]:
    """Return the rows of every step.

    Raises:
        ConfigError: there are too few steps for all rows to arrive.

    Examples:
        >>> from bara_pyro.data.forward import forward_order
        >>> order = forward_order(8, 2, seed=0, steps=6)
        >>> [step.new for step in order]  # two rows are there from the start, six arrive
        [0, 2, 2, 2, 0, 0]
        >>> len({row for step in order for row in step.rows})
        8
    """
    order = np.random.default_rng([seed, num_rows]).permutation(num_rows).tolist()
    seen = min(num_rows, max(batch_size, round(FIRST * num_rows)))
    arrivals = _arrivals(num_rows - seen, batch_size, steps)
    replay = _Replay(seed)
    found = []
    for step in range(steps):
        new = order[seen : seen + batch_size] if step in arrivals else []
        seen += len(new)
        again = [order[place] for place in replay.take(batch_size - len(new), seen)]
        found.append(ForwardStep((*new, *again), len(new)))
    return tuple(found)


def _arrivals(rows: int, batch_size: int, steps: int) -> frozenset[int]:
    """Return the steps at which a batch of new rows arrives."""
    count = -(-rows // batch_size)
    room = int(LAST * steps)
    if count >= room:
        raise ConfigError(
            f"steps={steps} are too few for calibrated=True (adapter.calibrated), which gives training its "
            f"rows bit by bit: give at least {int((count + 2) / LAST)} (--steps), or leave it out."
        )
    return frozenset((number + 1) * room // (count + 1) for number in range(count))


class _Replay:
    """Rows that are there, each once before any of them twice; places below `seen`, as of the last refill."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng([seed, 1])
        self.left: list[int] = []

    def take(self, count: int, seen: int) -> Iterator[int]:
        """Yield the next places."""
        for _ in range(count):
            if not self.left:
                self.left = self.random.permutation(seen).tolist()
            yield self.left.pop()
