"""Memory does not grow with the number of steps or of predictions."""

import ctypes
import gc
import tracemalloc
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from core_cases import bara_pair, make_batch, trainer

from bara_pyro.core.prediction import predict

pytestmark = pytest.mark.slow  # also what shows that a leak would be seen
WARM, TIMES = 300, 300
PER_TIME = 200  # bytes, allocated by whatever code: less than a tensor of one number
# Bytes of Python's own objects: less than a dictionary of one number (256 with it), and more than what tables
# that double now and then leave (some 30 a step, over so many). A million such times are 0.1 GB.
OF_PYTHON = 100
# Of glibc's `struct mallinfo2`, in its order.
FIELDS = ["arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks"]
FIELDS.append("keepcost")


class Allocated(ctypes.Structure):
    """What glibc's `mallinfo2` returns; of these `uordblks` and `hblkhd` are bytes in use."""

    _fields_ = [(name, ctypes.c_size_t) for name in FIELDS]


def kept(do: Callable[[int], object]) -> tuple[float, float]:
    """Bytes that a time leaves, after `WARM` that fill caches: of Python's objects, and by whatever code.

    Python's objects lie in pools of its own, which hide one of them. They are followed from the start, so
    that what takes the place of another weighs nothing. Of two stretches the smaller counts: a leak shows in
    both, a large table of the process that happens to double in one.
    """
    tracemalloc.start()
    times(do, WARM)
    marks = [tracemalloc.get_traced_memory()[0]]
    for _ in range(2):
        times(do, TIMES)
        marks.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    before = in_use()
    times(do, TIMES)
    of_python = min(after - earlier for earlier, after in pairwise(marks))
    return of_python / TIMES, (in_use() - before) / TIMES


def times(do: Callable[[int], object], count: int) -> None:
    for i in range(count):
        do(i)
    gc.collect()


def in_use() -> int:
    """Not what the process holds: a leak hides in what was freed before."""
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
    of_python, of_all = kept(what[name])
    assert of_python < OF_PYTHON
    assert of_all < PER_TIME


def test_a_dictionary_kept_each_time_is_seen() -> None:
    found: list[dict[str, float]] = []
    assert kept(lambda seed: found.append({"loss": seed + 0.5}))[0] >= 2 * OF_PYTHON


def test_logits_kept_each_time_are_seen() -> None:
    tensors: list[torch.Tensor] = []
    assert kept(lambda seed: tensors.append(torch.full((4, 1_000), seed + 0.5)))[1] >= 2 * PER_TIME
