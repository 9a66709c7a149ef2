"""Replayed predictions: record a forward pass of `predict` once, then repeat its operations for other rows.

Python and Pyro's handlers take up to two thirds of the time of a prediction of few rows. A replay executes
the same operations in the same order without them. The addresses of the noise (hashes of the rows, numbers of
the draws, positions) are inputs, like the tokens, so the result is bitwise equal to the eager prediction.

Recording takes as long as 25 replays of one row save on a CPU, and 100 of large pieces. A forward pass is
therefore recorded once its shape has occurred `AFTER` times; all others run eagerly. Runs use `replayed`.
"""

import warnings
from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import nullcontext
from copy import copy
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.noise import CounterNoise
from bara_pyro.core.prediction import REPLAYED, run
from bara_pyro.core.program import AdaptedLM
from bara_pyro.core.resuming import length_shared
from bara_pyro.data.types import Batch
from bara_pyro.fast.capture import (
    PLAIN,
    CudaGraphs,
    Record,
    as_captured,
    obstacle,
    shape_of,
    tensors,
)
from bara_pyro.fast.replay import AFTER
from bara_pyro.fast.replay import record as record_on_cpu

MOST = 16  # recorded shapes and settings, each of which takes 14 to 40 MB on a CPU
# Attributes of every module that hold no state, mostly hooks: skipping them saves most of the search for it.
HOOKED = vars(nn.Module()).keys() - {"training", "_parameters", "_buffers", "_modules"}
ADDRESSES = ("draws", "shared", "rows", "positions")  # tensors from which `CounterNoise` makes its numbers


class RecordedForward:
    """One forward pass for batches of one shape; its arguments are those of `run`."""

    def __init__(
        self, model: AdaptedLM, guide: SiteGuide, batch: Batch, noise: CounterNoise | None, record: Record
    ) -> None:
        self._inputs = {name: value.clone() for name, value in _inputs(batch, noise).items()}
        own: dict[str, Any] = {name: self._inputs[name] for name in tensors(batch)}
        rows, addresses = replace(batch, **own), copy(noise)
        self._addresses = addresses  # a CUDA graph reads their seeds, but does not keep them
        if addresses is not None:
            vars(addresses).update({name: self._inputs[name] for name in ADDRESSES})

        def forward() -> Tensor:
            if addresses is not None:
                addresses.move(addresses.positions)  # hashes them as part of the recording
            return run(model, guide, rows, addresses)

        self.values: Tensor
        self.values, self._replay = record(forward, batch.input_ids.device)

    def replay(self, batch: Batch, noise: CounterNoise | None) -> Tensor:
        """Return the values of a batch."""
        new = _inputs(batch, noise)
        torch._foreach_copy_([self._inputs[name] for name in new], list(new.values()))
        self._replay()
        return self.values.clone()


class Predictions:
    """Replacement for `bara_pyro.core.prediction.run` that replays recorded forward passes of one guide.

    It does not refer to the guide, so that it is freed with it.

    Args:
        model: the program.
        record: see `bara_pyro.fast.capture.Record`.
        after: eager forward passes of one shape before it is recorded.

    Attributes:
        recordings: recorded forward passes by shape and settings.
        eager: reasons why forward passes ran eagerly.
        unfit: reason why nothing is replayed after a failed recording, or None.
    """

    def __init__(self, model: AdaptedLM, record: Record, after: int) -> None:
        self.likelihood = model.likelihood
        self.after = after
        self.recordings: dict[Hashable, RecordedForward] = {}
        self.eager: set[str] = set()
        self.unfit: str | None = None
        self._record = record
        self._on_cpu = record is record_on_cpu
        self._devices = {"cuda"} if isinstance(record, CudaGraphs) else {"cuda", "cpu"}
        self._seen: Counter[int] = Counter()

    def __call__(
        self,
        model: AdaptedLM,
        guide: SiteGuide,
        batch: Batch,
        noise: CounterNoise | None,
        *,
        alike: bool = False,
    ) -> Tensor:
        """Return the result of `run`; the arguments are the same."""
        # transformers leaves out the attention mask if no row is padded; a captured one is always in full
        with nullcontext() if self._on_cpu else as_captured():
            reason = self.misfit(model, guide, batch, alike)
            found = None if reason else self._replayed(model, guide, batch, noise)
            reason = reason or self.unfit
            if reason and reason not in self.eager:
                self.eager.add(reason)
                if not self._on_cpu:
                    warnings.warn(f"Predictions run eagerly, not as captured ones: {reason}.", stacklevel=2)
            if found is not None:
                return found
            return run(model, guide, batch, noise, alike=alike)

    def _replayed(
        self, model: AdaptedLM, guide: SiteGuide, batch: Batch, noise: CounterNoise | None
    ) -> Tensor | None:
        """Return the values of a batch; None if it is not recorded (yet), or invalid."""
        full = self._on_cpu and bool(batch.attention_mask.all())
        shapes = None if noise is None else (noise.seed, len(noise.draws))
        key = (shape_of(batch), shapes, full, _settings(model, guide))
        self._seen[hash(key)] += 1
        new = self._seen[hash(key)] - self.after
        if self.unfit or new <= 0 or (key not in self.recordings and len(self.recordings) == MOST):
            return None
        try:
            if key not in self.recordings:
                self.recordings[key] = RecordedForward(model, guide, batch, noise, self._record)
            found = self.recordings[key].replay(batch, noise)
        except Exception as error:  # noqa: BLE001 - any of TorchScript's; an invalid batch raises again eagerly
            if key not in self.recordings:
                self.unfit = str(error)
                self.recordings.clear()
            return None
        if new <= 2 and not torch.equal(found, run(model, guide, batch, noise)):
            self.unfit = "a replayed prediction differs from the eager one"
            self.recordings.clear()
            return None
        return found

    def misfit(self, model: AdaptedLM, guide: SiteGuide, batch: Batch, alike: bool = False) -> str | None:
        """Return why a forward pass cannot be replayed; None if it can."""
        device = batch.input_ids.device.type
        if torch.is_autocast_enabled(device) or torch.is_inference_mode_enabled():
            return "autocast or inference mode is on"
        if model.likelihood is not self.likelihood:  # as `core.observing` replaces it, to read the states
            return "the likelihood was replaced"
        if alike and length_shared(model, batch):
            return "the rows begin with the same tokens, which are read once"
        return obstacle(model, chain(model.parameters(), guide.parameters()), self._devices, batch)


def replayed(
    model: AdaptedLM, guide: SiteGuide, record: Record | None = None, after: int | None = None
) -> Predictions:
    """Make a guide's predictions record and replay their forward passes if possible; return the recordings.

    Args:
        model: the program.
        guide: its guide; `del REPLAYED[guide]` undoes it.
        record: see `bara_pyro.fast.capture.Record`; by default that of the model's device.
        after: eager forward passes of one shape before it is recorded; None: `AFTER`.
    """
    if record is None:
        record = record_on_cpu if model.backbone.device.type == "cpu" else CudaGraphs()
    REPLAYED[guide] = predictions = Predictions(model, record, AFTER if after is None else after)
    return predictions


def _inputs(batch: Batch, noise: CounterNoise | None) -> dict[str, Tensor]:
    addresses = {} if noise is None else {name: getattr(noise, name) for name in ADDRESSES}
    return tensors(batch) | addresses


def _settings(model: AdaptedLM, guide: SiteGuide) -> Hashable:
    """Return what a forward pass reads besides its rows: plain values, and addresses of tensors."""
    backbone = model.backbone
    frozen = tuple(value.data_ptr() for value in chain(backbone.lm.parameters(), backbone.lm.buffers()))
    return frozen, tuple(_state([model, guide, backbone, model.likelihood], {id(backbone.lm)}))


def _state(left: list[Any], seen: set[int]) -> Iterator[Hashable]:
    """Yield plain values and addresses of tensors in objects, modules below them, and containers."""
    roots = {*map(id, left)}
    while left:
        thing = left.pop()
        if isinstance(thing, PLAIN):
            yield thing
        elif isinstance(thing, Tensor):
            yield thing.data_ptr()
        elif id(thing) not in seen:
            seen.add(id(thing))
            if isinstance(thing, dict):
                left += thing.values()
            elif isinstance(thing, tuple | list | set | frozenset):
                left += thing
            elif isinstance(thing, nn.Module) or id(thing) in roots:
                left += [value for name, value in vars(thing).items() if name not in HOOKED]
