"""Memory of a batch: the bytes of all tensors that live at once, counted where torch makes them."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from app_cases import save_backbone
from generation_cases import PROMPTS, Pair, adapted
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import DynamicCache

from bara_pyro.extras.replies.generation import generate
from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.loading import load_backbone


class Living(TorchDispatchMode):
    """Bytes of the storages that operations make, as long as anything holds them.

    Attributes:
        peak: the most that there were at once.
        cached: the most that keys and values took.
    """

    def __init__(self, parts: Sequence[torch.nn.Module]) -> None:
        super().__init__()
        self.now = self.peak = self.cached = 0
        self.mine: dict[int, Any] = {}
        weights = [value for part in parts for value in (*part.parameters(), *part.buffers())]
        self.weights = {value.untyped_storage().data_ptr() for value in weights}

    def __torch_dispatch__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in tree_leaves(out):
            if isinstance(value, torch.Tensor):
                self._see(value.untyped_storage())
        return out

    def _see(self, storage: Any) -> None:
        key, count = id(storage), storage.nbytes()
        if key in self.mine or storage.data_ptr() in self.weights:
            return
        self.mine[key] = weakref.ref(storage, lambda _: self._gone(key, count))
        self.now += count
        self.peak = max(self.peak, self.now)

    def _gone(self, key: int, count: int) -> None:
        del self.mine[key]
        self.now -= count


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    return load_backbone(str(save_backbone(tmp_path_factory.mktemp("lm"))))


@pytest.fixture
def living(monkeypatch: pytest.MonkeyPatch) -> Callable[[Pair], Living]:
    """What counts within a block, keys and values as the cache holds them, too."""

    def of(pair: Pair) -> Living:
        counted = Living([*pair, pair[0].backbone.lm])
        updated = DynamicCache.update

        def update(self: DynamicCache, *args: Any, **kwargs: Any) -> Any:
            out = updated(self, *args, **kwargs)
            held = [layer for layer in self.layers if layer.is_initialized]
            bytes_of = [value.nbytes for layer in held for value in (layer.keys, layer.values)]
            counted.cached = max(counted.cached, sum(bytes_of))
            return out

        monkeypatch.setattr(DynamicCache, "update", update)
        return counted

    return of


@pytest.mark.parametrize(
    ("method", "how"),
    [
        ("bara", {"max_new_tokens": 12}),
        ("bara-gate", {"max_new_tokens": 12, "mixture": 2}),
        ("bara-gate", {"max_new_tokens": 2, "top_p": 0.9, "top_k": 9}),
        ("bara-gate", {"max_new_tokens": 12, "temperature": 0, "draws": "mean"}),
    ],
)
def test_what_lives_at_once_is_within_the_budget(
    method: str, how: dict[str, Any], lm: Backbone, living: Callable[[Pair], Living]
) -> None:
    """Caches, activations, logits and noise together; and not far below it, or batches are too small."""
    torch.manual_seed(0)
    pair = adapted(method, lm)
    counted, budget = living(pair), 2**18
    with counted:
        assert len(list(generate(*pair, PROMPTS, replies=8, memory_budget=budget, **how))) == 24
    assert budget // 4 < counted.peak <= budget
    assert budget // 16 < counted.cached
