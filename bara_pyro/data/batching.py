"""Batches in a fixed order for evaluation, and in an order for training that can start at any step."""

from collections.abc import Iterable, Iterator
from functools import lru_cache

import numpy as np
from torch import Tensor

from bara_pyro.data.split import EncodedRows
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError


def batches(
    split: EncodedRows, answer_ids: Tensor, batch_size: int, *, by_length: bool = False
) -> Iterator[Batch]:
    """Yield every row once, always in the same order; the last batch may be smaller.

    Args:
        split: rows from `encode` or `encode_replies`.
        answer_ids: token of each class, long, `C`; see `answer_token_ids`.
        batch_size: rows per batch.
        by_length: sort rows by length (less padding, faster); match results to rows by `Batch.ids`.

    Raises:
        ConfigError: `batch_size` is not positive.

    Examples:
        >>> import bara_pyro as bp
        >>> backbone = bp.load_backbone("microworld")
        >>> task = bp.load_task("micro-wgs")
        >>> split = bp.encode(task.train[:10], backbone.tokenizer)
        >>> answers = bp.answer_token_ids(backbone.tokenizer, task.labels)
        >>> [len(batch) for batch in bp.batches(split, answers, batch_size=4)]
        [4, 4, 2]
    """
    _check_batch_size(batch_size)
    order = list(range(len(split)))
    if by_length:
        order.sort(key=split.lengths.__getitem__)
    for start in range(0, len(order), batch_size):
        yield split.batch(order[start : start + batch_size], answer_ids)


def first_batches(all_batches: Iterable[Batch], rows: int) -> Iterator[Batch]:
    """Yield batches until they hold this many rows together."""
    count = 0
    for batch in all_batches:
        yield batch
        count += len(batch)
        if count >= rows:
            return


def training_batches(num_rows: int, batch_size: int, seed: int, step: int) -> list[int]:
    """Return the row numbers of training batch number `step` (from 0).

    The rows are an endless stream of epochs, each a seeded permutation of all rows, cut into batches; a batch
    may span two epochs, so every batch is full and every row is seen equally often. Each step is computed
    independently of earlier ones, so a resumed run needs only its step.

    Args:
        num_rows: number of training rows.
        batch_size: rows per batch.
        seed: the run's seed, for the permutations.
        step: number of the batch.

    Returns:
        The numbers of `batch_size` rows, from 0 to `num_rows - 1`, for `EncodedSplit.batch`.

    Raises:
        ConfigError: there are no rows, `batch_size` is not positive, or seed or step is negative.

    Examples:
        >>> import bara_pyro as bp
        >>> rows = [bp.training_batches(6, 4, seed=0, step=step) for step in range(3)]
        >>> [len(batch) for batch in rows], sorted(rows[0] + rows[1] + rows[2])  # two epochs of six rows
        ([4, 4, 4], [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5])
    """
    _check_batch_size(batch_size)
    if num_rows < 1 or step < 0 or seed < 0:
        raise ConfigError(
            f"Training batches need rows, a seed and a step of 0 or more (got {num_rows}, {seed}, {step})."
        )
    places = range(step * batch_size, (step + 1) * batch_size)
    return [int(_epoch_order(num_rows, seed, place // num_rows)[place % num_rows]) for place in places]


@lru_cache(maxsize=8)
def _epoch_order(num_rows: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(num_rows)


def _check_batch_size(batch_size: int) -> None:
    if batch_size < 1:
        raise ConfigError(f"batch_size is {batch_size}: choose 1 or more.")
