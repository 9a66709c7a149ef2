"""Memory does not grow with the number of steps or of predictions."""

import ctypes
import gc
import sys
from collections.abc import Callable

import pytest
import torch
from core_cases import bara_pair, make_batch, trainer

from bara_pyro.core.prediction import predict

WARM, TIMES = 300, 400
PER_TIME = 200  # bytes, allocated by whatever code: less than a tensor of one number
# Of glibc's `struct mallinfo2`, in its order.
FIELDS = ["arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks"]
FIELDS.append("keepcost")


class Allocated(ctypes.Structure):
    """What glibc's `mallinfo2` returns; of these `uordblks` and `hblkhd` are bytes in use."""

    _fields_ = [(name, ctypes.c_size_t) for name in FIELDS]


def kept(do: Callable[[int], object]) -> tuple[int, int]:
    """Bytes in use and objects of Python that `TIMES` times leave, after `WARM` that fill caches."""
    for i in range(WARM):
        do(i)
    before, objects = in_use(), sys.getallocatedblocks()
    for i in range(WARM, WARM + TIMES):
        do(i)
    return in_use() - before, sys.getallocatedblocks() - objects


def in_use() -> int:
    """Not what the process holds: a leak hides in what was freed before."""
    gc.collect()
    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo2 is None:
        pytest.skip("this C library does not say how much is allocated (glibc 2.33 does)")
    mallinfo2.restype = Allocated
    found = mallinfo2()
    return found.uordblks + found.hblkhd


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
