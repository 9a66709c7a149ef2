"""A language model spread by accelerate's device map: the same answers.

On a machine without GPUs every part of the map is the CPU: what stands between the parts is tried, the way
from one GPU to another is not.
"""

from typing import Any

import pytest
import torch
from core_cases import backbone, make_batch, randomise
from torch import Tensor, nn

import bara_pyro as bp
from bara_pyro import errors
from bara_pyro.core.prediction import predict
from bara_pyro.errors import BackboneError, ConfigError
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.lm import loading
from bara_pyro.models.bara import BaRA
from bara_pyro.runs.devices import find_device

dispatch_model = pytest.importorskip("accelerate").dispatch_model


def pair(frozen: bp.Backbone) -> tuple[BaRA, WeibullGuide]:
    torch.manual_seed(0)
    model = randomise(BaRA(frozen, 4, r=3, form="gate"))
    return model, WeibullGuide(model)


def answers(frozen: bp.Backbone) -> Tensor:
    return predict(*pair(frozen), make_batch(), samples=2)


def test_spread_by_a_device_map_the_answers_are_the_same() -> None:
    truth = answers(bp.load_backbone("microworld"))
    spread = bp.load_backbone("microworld", device="auto")
    assert torch.allclose(answers(spread), truth, atol=0 if spread.device.type == "cpu" else 1e-3)
    whole = bp.load_backbone("microworld")
    parts = {f"model.{name}": "cpu" for name, _ in whole.lm.model.named_children()} | {"lm_head": "cpu"}
    dispatch_model(whole.lm, parts, force_hooks=True)
    assert whole.lm.hf_device_map == parts
    assert torch.equal(answers(whole), truth)
    with bp.attached(pair(whole)) as lm:
        inside = lm(input_ids=make_batch().input_ids).logits
    assert not torch.equal(lm(input_ids=make_batch().input_ids).logits, inside)


def test_weights_that_are_not_in_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: Any, **__: Any) -> nn.Module:
        return backbone().lm.__class__(backbone().lm.config).to("meta")

    monkeypatch.setattr(loading, "_load_lm", load)
    with pytest.raises(BackboneError, match="does not fit into the memory"):
        bp.load_backbone("microworld", device="auto")


def test_several_processes_cannot_share_all_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_device("auto") == "auto"
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(ConfigError, match="several processes cannot share"):
        find_device("auto")
    assert str(find_device("cpu")) == "cpu"


def test_missing_accelerate_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "find_spec", lambda name: None)
    with pytest.raises(
        BackboneError, match=r"auto needs .* accelerate: pip install 'bara-pyro\[trainer\]'\.$"
    ):
        bp.load_backbone("microworld", device="auto")
