"""Several threads on one program: each gets the answers that it would get alone."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from core_cases import bara_pair, lora_pair, unlabelled
from torch import Tensor
from torch.testing import assert_close

import bara_pyro as bp
from bara_pyro.core.gate_draws import gate_draws
from bara_pyro.core.prediction import predict
from bara_pyro.methods import build, method_config

THREADS = 3


def at_once(call: Callable[[int], Tensor]) -> list[Tensor]:
    """The results of one call a thread, all of them running at once."""
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(call, range(THREADS)))


def assert_as_alone(call: Callable[[int], Tensor]) -> None:
    alone = [call(number) for number in range(THREADS)]
    for _ in range(4):
        for found, expected in zip(at_once(call), alone, strict=True):
            assert torch.equal(found, expected)


@pytest.mark.parametrize("draws", [None, 3])
def test_forwards_of_an_attached_model(draws: int | None) -> None:
    """Every thread has told where its tokens are before any of them goes on."""
    pair = bara_pair(seed=3, scale=0.3, move=0.2)
    batch = unlabelled()
    with bp.attached(pair, draws) as lm:  # type: ignore[arg-type]

        def logits(number: int) -> Tensor:
            with torch.no_grad():
                return lm(input_ids=batch.input_ids[:, number:], attention_mask=None).logits

        alone = [logits(number) for number in range(THREADS)]
        meet = threading.Barrier(THREADS)

        def wait(*_: object) -> None:
            meet.wait(60)

        handle = pair[0].backbone.states.layers[0].register_forward_pre_hook(wait)
        try:
            together = at_once(logits)
        finally:
            handle.remove()
    for found, expected in zip(together, alone, strict=True):
        # Layers of one input are computed together where no other thread comes between them.
        assert_close(found, expected, rtol=0, atol=1e-5)


def test_predictions_of_a_linearised_posterior() -> None:
    torch.manual_seed(3)
    frozen = bara_pair()[0].backbone
    options = {"r": 2, "lora_alpha": 16.0, "target_modules": None}
    pair = build(method_config({"name": "laplace"}), frozen, 4, options)  # type: ignore[arg-type]
    batch = unlabelled()
    assert_as_alone(lambda number: predict(*pair, batch, samples=number))


def test_activations() -> None:
    pair = lora_pair()
    batches = [unlabelled(), unlabelled(pad=2), unlabelled(choose=[1])]

    def activations(number: int) -> Tensor:
        theta = gate_draws(*pair, [batches[number]]).theta
        assert theta is not None
        return theta

    assert_as_alone(activations)
