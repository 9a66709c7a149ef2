"""The two steps of the published recipes: their weights over a cycle, and micro-batches."""

import pytest
import torch
from core_cases import backbone, make_batch
from torch.testing import assert_close

from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.program import AdaptedLM
from bara_pyro.methods import METHODS, build
from bara_pyro.methods.recipes import TwoStepSVI
from bara_pyro.runs.config import load_config

N = 12
ADAPTER = {"r": 3, "lora_alpha": 16.0, "target_modules": None, "full_vocab": False}
METHODS_OF_TWO_STEPS = ["blob", "scalabl", "clora"]


def published(method: str, **settings: object) -> tuple[AdaptedLM, SiteGuide, TwoStepSVI]:
    """A method with its published recipe, B = 0, in a cycle of four steps."""
    values = {"method": {"name": method, "recipe": "reproduction", **settings}, "train.batch_size": 64}
    config = load_config(overrides={**values, "train.steps": 20})
    torch.manual_seed(0)
    model, guide = build(config.method, backbone(), N, ADAPTER)
    svi = METHODS[method].svi(model, guide, config.train, config.method)
    assert isinstance(svi, TwoStepSVI)
    assert svi.cycle == 4
    return model, guide, svi


@pytest.mark.parametrize("method", METHODS_OF_TWO_STEPS)
def test_the_weights_double_and_start_again(method: str) -> None:
    _, _, svi = published(method)
    seen = []
    for _ in range(9):
        seen.append(svi._weight() / svi.kl_weight)
        svi.step(make_batch())
    assert seen == pytest.approx([i / 31 for i in (2, 4, 8, 16, 2, 4, 8, 16, 2)])


@pytest.mark.parametrize("method", METHODS_OF_TWO_STEPS)
def test_micro_batches_take_the_step_of_the_whole_batch(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With B = 0 the likelihood does not move the guide, and the KL does without noise."""
    monkeypatch.setattr("bara_pyro.methods.clora.KL_WEIGHT", 1.0)
    ends = []
    for pieces in ([[0, 1, 2, 3]], [[0], [1, 2, 3]]):
        _, guide, svi = published(method)
        start = [p.detach().clone() for p in guide.parameters()]
        svi.step(*(make_batch(choose=rows) for rows in pieces))
        ends.append([p.detach() for p in guide.parameters()])
        moves = [(p - old).abs().max() for p, old in zip(guide.parameters(), start, strict=True)]
        assert min(moves) > 1e-4
    for whole, cut in zip(*ends, strict=True):
        assert_close(cut, whole, rtol=1e-4, atol=1e-6)
