"""Kernels of a training step: what is counted, and how many there are beside PEFT's."""

import pytest
import torch

from bara_pyro.lm.targets import find_targets
from benchmarks.kernels import Kernels, count
from benchmarks.systems import make_batch, make_lm, ours, peft_lora, size_of


def test_what_counts() -> None:
    weight = torch.ones(3, 2, requires_grad=True)
    with Kernels() as kernels:
        x = torch.ones(4, 2)  # fills
        (x @ weight.T).unsqueeze(0).mT.sum().backward()  # product, sum, and a product for the gradient
        torch.empty(3).view(1, 3).t()  # nothing
    forward = {name: n for (part, name), n in kernels.calls.items() if "backward" not in part}
    backward = {name: n for (part, name), n in kernels.calls.items() if "backward" in part}
    assert forward == {"ones": 1, "mm": 1, "sum": 1, "ones_like": 1}
    assert backward == {"mm": 1}


# PEFT 0.21 asks transformers for a name that 5.23 calls deprecated.
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")
# Extra kernels a module over PEFT LoRA's step: what a gate, its draw and its share of the KL are made of.
@pytest.mark.parametrize(("name", "most"), [("lora", 4.0), ("additive", 86.0), ("gate", 111.0)])
def test_extra_kernels_a_module(name: str, most: float) -> None:
    size = size_of("micro")
    batch = make_batch(size)
    step = ours(size, name)[0]
    base = peft_lora(size)[0]
    extra = count(lambda: step(batch)).calls.total() - count(lambda: base(batch)).calls.total()
    modules = len(find_targets(make_lm(size), None))
    assert modules == 9
    assert extra / modules <= most
