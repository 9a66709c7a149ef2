"""Cache of the hidden states below the lowest adapter, which do not change and run once per row."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from bara_pyro.data.types import TokenRows
from bara_pyro.parts import part_folder

BUDGET = 2**30
"""Bytes of hidden states kept in memory by default; rows beyond are computed each time."""
NAME = "states"  # of the tensor in a file
# What a layer that PEFT has changed says of its adapters.
OF_PEFT = ("_disable_adapters", "_active_adapter")


class StopForward(Exception):
    """Ends a forward pass once the wanted states are available."""


@contextmanager
def replaced_forward(layer: nn.Module, forward: Callable) -> Iterator[None]:
    """Replace a module's `forward` while the block runs; its hooks stay active."""
    before = layer.__dict__.get("forward")  # accelerate puts one there, too
    layer.forward = forward
    try:
        yield
    finally:
        if before is None:
            del layer.forward
        else:
            layer.forward = before


class FrozenStates:
    """Hidden states above the lowest decoder layers of a language model, kept by a row's own tokens.

    Args:
        lm: the language model.
        budget: bytes to keep in memory.

    Attributes:
        layers: its decoder layers; none where they are no plain list.
        path: dotted path of that list.
        folder: where states are kept as files, one a row, instead of in memory; what other runs on the same
            language model left there is found again. None: in memory.
    """

    def __init__(self, lm: PreTrainedModel, budget: int = BUDGET) -> None:
        self.lm = lm
        self.budget = budget
        self.folder: Path | None = None
        lists = [module for module in lm.get_decoder().children() if isinstance(module, nn.ModuleList)]
        self.layers: Sequence[nn.Module] = tuple(lists[0]) if len(lists) == 1 else ()
        self.path = next((name for name, m in lm.named_modules() if self.layers and m is lists[0]), "")
        self._kept: dict[str, Tensor] = {}
        self._weights = self._stamp()
        self._bytes = 0
        self._others = -1  # what a layer returns beside the states; -1: it returns no tuple

    def depth(self, adapted: Iterable[str]) -> int:
        """Return how many of the lowest layers hold no adapter, given the paths of what the body's change."""
        found = len(self.layers)
        for path in adapted:
            inside = bool(self.layers) and path.startswith(f"{self.path}.")
            found = min(found, int(path[len(self.path) + 1 :].split(".")[0]) if inside else 0)
        return found

    def size(self, lengths: Sequence[int]) -> int:
        """Return the bytes of the states of rows with the given numbers of tokens."""
        width = int(self.lm.config.get_text_config().hidden_size)
        return sum(lengths) * width * torch.empty((), dtype=self.lm.dtype).element_size()

    def of(self, depth: int, tokens: TokenRows, inputs: Callable[[TokenRows], dict[str, Any]]) -> Tensor:
        """Return the states above the lowest `depth` layers, `B x T x d`, 0 on padding.

        Args:
            depth: number of layers.
            tokens: the rows.
            inputs: what the language model's body is given for them.
        """
        self._forget_where_weights_changed()
        lengths = tokens.attention_mask.sum(-1).tolist()
        keys = _keys(depth, tokens, lengths)
        found: list[Tensor] = []
        for row, key in enumerate(keys):
            states = self._get(key)
            if states is None:
                # Alone: in company it would round otherwise, and a run depend on what was asked before it.
                states = self.run(depth, inputs(tokens.chosen(row, lengths[row])))[0]
                self._put(key, states)
            found.append(states)
        out = found[0].new_zeros(*tokens.input_ids.shape, found[0].shape[-1])
        for row, states in enumerate(found):
            out[row, -lengths[row] :] = states
        return out

    @torch.no_grad()
    def run(self, depth: int, inputs: dict[str, Any]) -> Tensor:
        """Run the lowest `depth` layers on a body's inputs; return their states, `B x T x d`."""
        with self.noting(depth, stop=True) as seen:
            self.lm.base_model(**inputs)
        return seen[0]

    @contextmanager
    def noting(self, depth: int, stop: bool = False) -> Iterator[list[Tensor]]:
        """Note the states above the lowest `depth` layers while the block runs.

        With `stop` the block ends there; it ends without an error wherever something raises `StopForward`.
        """
        seen: list[Tensor] = []

        def note(module: nn.Module, args: object, output: Any) -> None:
            self._others = len(output) - 1 if isinstance(output, tuple) else -1
            seen.append(output if self._others < 0 else output[0])
            if stop:
                raise StopForward

        handle = self.layers[depth - 1].register_forward_hook(note)
        try:
            yield seen
        except StopForward:
            pass
        finally:
            handle.remove()

    @contextmanager
    def standing_in(self, depth: int, states: Tensor) -> Iterator[None]:
        """Give layer `depth` these states, `B x T x d`, while the block runs, and skip those below it."""

        def stand_in(*_: object, **__: object) -> Tensor | tuple[Tensor | None, ...]:
            return states if self._others < 0 else (states, *[None] * self._others)

        with ExitStack() as stack:
            for layer in self.layers[:depth]:
                stack.enter_context(replaced_forward(layer, stand_in))
            yield

    def _stamp(self) -> int:
        """Return a hash that changes with the weights, except for writes through `.data`.

        It sees `load_state_dict`, optimisers, `to`, and the active PEFT adapters of other layers.
        """
        weights = tuple((id(p), p._version, p.dtype) for p in self.lm.parameters())
        others = (vars(m) for m in self.lm.modules() if "_disable_adapters" in vars(m))
        return hash((weights, *(tuple(str(own.get(name)) for name in OF_PEFT) for own in others)))

    def _forget_where_weights_changed(self) -> None:
        """Drop cached states if the weights have changed; the folder belongs to the old weights as well."""
        if (found := self._stamp()) != self._weights:
            self._kept, self._bytes, self._weights, self.folder = {}, 0, found, None

    def _get(self, key: str) -> Tensor | None:
        if self.folder is None:
            return self._kept.get(key)
        path = self.folder / f"{key}.safetensors"
        return load_file(path, device=str(self.lm.device))[NAME] if path.exists() else None

    def _put(self, key: str, states: Tensor) -> None:
        size = states.numel() * states.element_size()
        if self.folder is not None:
            path = self.folder / f"{key}.safetensors"
            with part_folder(path) as place:
                save_file({NAME: states.contiguous()}, place / path.name)
                (place / path.name).replace(path)
        elif self._bytes + size <= self.budget:
            self._kept[key] = states.clone()  # not a view, which would keep the whole batch
            self._bytes += size


def _keys(depth: int, tokens: TokenRows, lengths: Sequence[int]) -> list[str]:
    """Return what rows' states are kept under: their tokens, and the type that products are made in."""
    device = tokens.input_ids.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    ids, segments = tokens.input_ids.cpu().numpy(), tokens.segments
    parts = None if segments is None else segments.cpu().numpy()
    keys = []
    for row, n in enumerate(lengths):
        digest = hashlib.blake2b(f"{depth}/{dtype}/{n}".encode(), digest_size=16)
        digest.update(ids[row, -n:].tobytes())
        if parts is not None:
            digest.update(parts[row, -n:].tobytes())
        keys.append(digest.hexdigest())
    return keys
