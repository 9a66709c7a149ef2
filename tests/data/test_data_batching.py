"""The orders of evaluation and training."""

import pytest
import torch

from bara_pyro.data import EncodedSplit, batches, training_batches
from bara_pyro.errors import ConfigError

ANSWERS = torch.tensor([1, 2])


def split_of(lengths):
    return EncodedSplit(
        token_ids=tuple([100 + row] * length for row, length in enumerate(lengths)),
        labels=tuple(row % 2 for row in range(len(lengths))),
        ids=tuple(f"r-{row}" for row in range(len(lengths))),
        pad_id=0,
    )


def contents(split, **options):
    """Return what a model would see of each row, padding apart."""
    seen = {}
    for batch in batches(split, ANSWERS, 3, **options):
        for row, name in enumerate(batch.ids):
            assert name not in seen
            tokens = batch.input_ids[row][batch.attention_mask[row]].tolist()
            seen[name] = (tokens, batch.labels[row].item())
    return seen


def test_every_row_once_in_order_with_a_ragged_last_batch():
    found = list(batches(split_of([3, 9, 1, 5, 2, 8, 4]), ANSWERS, 3))
    assert [name for batch in found for name in batch.ids] == [f"r-{row}" for row in range(7)]
    assert list(map(len, found)) == [3, 3, 1]


def test_length_buckets_change_the_order_and_nothing_else():
    split = split_of([3, 9, 1, 5, 2, 8, 4])
    assert contents(split, by_length=True) == contents(split)
    plain = sum(batch.input_ids.numel() for batch in batches(split, ANSWERS, 3))
    assert sum(batch.input_ids.numel() for batch in batches(split, ANSWERS, 3, by_length=True)) < plain


def test_no_rows_no_batches():
    assert list(batches(split_of([]), ANSWERS, 3)) == []
    with pytest.raises(ConfigError, match="at least one row"):
        split_of([]).batch([], ANSWERS)


@pytest.mark.parametrize(("rows", "size"), [(10, 4), (7, 7), (3, 8), (1, 2), (640, 4)])
def test_any_step_equals_the_stream_and_each_epoch_is_a_permutation(rows, size):
    steps = 3 * rows // size + 2
    stream = [row for step in range(steps) for row in training_batches(rows, size, 5, step)]
    for epoch in range(len(stream) // rows):
        assert sorted(stream[epoch * rows : (epoch + 1) * rows]) == list(range(rows))
    for step in reversed(range(steps)):
        assert training_batches(rows, size, 5, step) == stream[step * size : (step + 1) * size]


def test_training_order_changes_with_seed_and_epoch():
    first, second = training_batches(50, 50, 0, 0), training_batches(50, 50, 0, 1)
    assert first != second
    assert first != training_batches(50, 50, 1, 0)


def test_bad_arguments():
    with pytest.raises(ConfigError, match="batch_size is 0: choose 1 or more"):
        training_batches(4, 0, 0, 0)
    with pytest.raises(ConfigError, match="batch_size is -1"):
        list(batches(split_of([1]), ANSWERS, -1))
    with pytest.raises(ConfigError, match=r"need rows, a seed and a step of 0 or more \(got 0, 0, 0\)"):
        training_batches(0, 1, 0, 0)
    with pytest.raises(ConfigError, match="step of 0 or more"):
        training_batches(4, 1, 0, -1)
