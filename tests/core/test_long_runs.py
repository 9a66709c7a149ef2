"""Memory does not grow with the number of steps or of predictions."""

import gc
import sys
from collections.abc import Callable

import psutil
import pytest
import torch
from core_cases import bara_pair, make_batch, trainer

from bara_pyro.core.prediction import predict

WARM, TIMES = 300, 400
PER_TIME = 1_000  # bytes of the process, whose memory grows by pages; a small tensor is seen as an object


def kept(do: Callable[[int], object]) -> tuple[int, int]:
    """Bytes of the process and objects of Python that `TIMES` times leave, after `WARM` that fill caches."""
    for i in range(WARM):
        do(i)
    resident, objects = resident_bytes(), sys.getallocatedblocks()
    for i in range(WARM, WARM + TIMES):
        do(i)
    return resident_bytes() - resident, sys.getallocatedblocks() - objects


def resident_bytes() -> int:
    gc.collect()
    return psutil.Process().memory_info().rss


@pytest.fixture
def what() -> dict[str, Callable[[int], object]]:
    torch.manual_seed(0)
    module, batch = r".*\.1\..*q_proj", make_batch()
    svi = trainer(bara_pair(form="gate", target_modules=module), lr=1e-4)
    pair = bara_pair(form="gate", target_modules=module, move=0.1)
    return {
        "a step": lambda _: svi.step(batch),
        "a prediction": lambda seed: predict(*pair, batch, samples=3, seed=seed),
    }


@pytest.mark.parametrize("name", ["a step", "a prediction"])
def test_nothing_is_left(what, name: str) -> None:
    grown, objects = kept(what[name])
    assert grown < PER_TIME * TIMES
    assert objects < TIMES  # not even a number each time


def test_a_number_kept_each_time_is_seen() -> None:
    numbers: list[float] = []
    _, objects = kept(lambda seed: numbers.append(seed + 0.5))
    assert objects >= TIMES


def test_logits_kept_each_time_are_seen() -> None:
    tensors: list[torch.Tensor] = []
    grown, objects = kept(lambda seed: tensors.append(torch.full((4, 1_000), seed + 0.5)))
    assert grown >= PER_TIME * TIMES
    assert objects >= TIMES
