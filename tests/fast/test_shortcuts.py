"""Each shortcut can be switched off by itself: the same predictions and gradients, and the work is done."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from core_cases import ANSWERS, CONFIGS, make_batch, make_lm, randomise, trainer
from torch import Tensor, nn
from torch.testing import assert_close

from bara_pyro.core import resuming
from bara_pyro.core.prediction import predict
from bara_pyro.data.split import collate_ids
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError
from bara_pyro.fast import SHORTCUTS, Shortcut
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.lm.backbone import Backbone
from bara_pyro.models.bara import BaRA

ARCHITECTURES = ("qwen2", "gpt2")
UPPER = {arch: r".*\.1\..*(q_proj|v_proj|query_key_value|c_attn)|lm_head|embed_out" for arch in CONFIGS}
COMMON = list(range(2, 18))
S = 5


def pair(arch: str, off: set[str]) -> tuple[BaRA, WeibullGuide]:
    """A program whose draws are global and whose lower layer has no adapter, so that all shortcuts apply."""
    torch.manual_seed(2)
    backbone = Backbone(make_lm(arch))
    backbone.shortcuts -= off
    model = BaRA(backbone, 4, r=3, form="gate", target_modules=UPPER[arch], latent="phi")
    randomise(model)
    return model, WeibullGuide(model)


def begun_alike() -> Batch:
    texts = [[*COMMON, 7], [*COMMON, 3, 4, 50], [*COMMON, 8, 9]]
    return collate_ids(texts, [0, 1, 0], list("abc"), ANSWERS, 0)


@pytest.fixture(autouse=True)
def short_prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resuming, "LEAST", 5)


@contextmanager
def counted(backbone: Backbone) -> Iterator[dict[str, int]]:
    """Count, under the name of each shortcut, the work that it is there to save."""
    first, last = backbone.states.layers
    seen = dict.fromkeys(SHORTCUTS, 0)

    def add(name: Shortcut, module: nn.Module, args: tuple, kwargs: dict, *, by: Callable[..., int]) -> None:
        seen[name] += by(*args, **kwargs)

    def tokens(hidden: Tensor | None = None, *_: Any, hidden_states: Tensor | None = None, **__: Any) -> int:
        return (hidden_states if hidden is None else hidden).shape[:2].numel()

    attention = next(part for name, part in last.named_children() if "attn" in name)
    parts: dict[str, tuple[nn.Module, Callable[..., int]]] = {
        "frozen_layers": (first.mlp, tokens),
        "prefixes": (attention, tokens),
        "last_layer": (last.mlp, tokens),
        "answer_rows": (backbone.lm.get_output_embeddings(), lambda *_: 1),
        "batched_draws": (backbone.lm.base_model, lambda *_, **__: 1),
    }
    handles = [
        module.register_forward_pre_hook(partial(add, name, by=by), with_kwargs=True)
        for name, (module, by) in parts.items()
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("name", SHORTCUTS)
def test_predictions_and_gradients_are_the_same_without_it(arch: str, name: str) -> None:
    found, gradients = [], []
    for off in (set(), {name}):
        model, guide = pair(arch, off)
        batches = (make_batch(), begun_alike())
        found.append([predict(model, guide, batch, samples=s) for batch in batches for s in (0, S)])
        svi = trainer((model, guide))
        torch.manual_seed(0)
        svi.gradients(make_batch())
        gradients.append([p.grad for p in svi.parameters if p.grad is not None])
    assert_close(*found, rtol=0, atol=1e-5)
    assert_close(*gradients, rtol=1e-4, atol=1e-5)
    assert max(float(grad.abs().max()) for grad in gradients[0]) > 0.01


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("name", SHORTCUTS)
def test_without_it_its_work_is_done_and_no_other(arch: str, name: str) -> None:
    """In predictions of rows that the program has seen before."""
    batch = begun_alike() if name == "prefixes" else make_batch()
    counts = []
    for off in (set(), {name}):
        model, guide = pair(arch, off)
        predict(model, guide, batch, samples=S)
        with counted(model.backbone) as seen:
            predict(model, guide, batch, samples=S)
        counts.append(seen)
    on, off = counts
    everything = S * batch.input_ids.numel()
    if name == "frozen_layers":
        assert (on[name], off[name]) == (0, everything)
    elif name == "prefixes":
        assert (on[name], off[name]) == (S * (len(COMMON) + 3 * 3), everything + S * 3)
    elif name == "last_layer":
        assert (on[name], off[name]) == (S * len(batch), everything)
    elif name == "answer_rows":
        assert (on[name], off[name]) == (0, 1)
    else:
        assert off[name] == S * on[name]
    if name != "prefixes":  # rows that continue a prefix run the last layer for all of their tokens
        for other in {"frozen_layers", "last_layer", "answer_rows"} - {name}:
            assert off[other] == on[other]


def test_training_runs_frozen_layers_and_the_vocabulary_without_them() -> None:
    for off, expected in ((set(), (0, 0)), ({"frozen_layers", "answer_rows"}, (28, 1))):
        svi = trainer(pair("qwen2", off))
        svi.step(make_batch())
        with counted(svi.model.backbone) as seen:
            svi.step(make_batch())
        assert (seen["frozen_layers"], seen["answer_rows"]) == expected


def test_a_name_that_no_shortcut_has_is_refused() -> None:
    backbone = Backbone(make_lm("qwen2"))
    with pytest.raises(ConfigError, match=r"Unknown shortcut 'last_layers' \(last_layer\?\)"):
        backbone.shortcuts = {"last_layers"}
    assert backbone.shortcuts == set(SHORTCUTS)


def test_the_old_switch_is_three_of_them() -> None:
    backbone = Backbone(make_lm("qwen2"))
    new = r"Backbone\.reuse is now Backbone\.shortcuts"
    with pytest.warns(DeprecationWarning, match=new):
        backbone.reuse = False
    assert backbone.shortcuts == {"answer_rows", "batched_draws"}
    with pytest.warns(DeprecationWarning, match=new):
        assert not backbone.reuse
    with pytest.warns(DeprecationWarning, match=new):
        backbone.reuse = True
    assert backbone.shortcuts == set(SHORTCUTS)
