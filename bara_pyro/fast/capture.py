"""Captured steps: record the gradient step of a Pyro program once as a CUDA graph, then replay it.

On a GPU, the time of a step on a small batch is that of Python, Pyro's handlers and about ten thousand kernel
launches. With capture the program runs once per batch shape; each further step is a copy of the rows, one
launch, and one read of loss and norm. A replay executes the same operations as the program and is bitwise
equal to the eager step. The device's generator draws the noise, and a graph advances it as the program does.

Steps that cannot be recorded run eagerly, with the attention masks of a captured step so that results stay
bitwise equal (`Captured.misfit`), and a warning says so once. `bara_pyro.fast.replay` uses this in training.
"""

import gc
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import torch
from pyro.poutine.runtime import _PYRO_STACK
from torch import Tensor, nn
from torch.nn import functional as F

from bara_pyro.core.program import AdaptedLM
from bara_pyro.core.svi import SVI
from bara_pyro.core.terms import ElboTerms, Part, check_finite, logged, parts_of
from bara_pyro.data.replies import ReplyBatch
from bara_pyro.data.types import Batch
from bara_pyro.lazy import uncollected

WARM_UPS = 3  # eager runs before a capture, which fill caches and allocate memory
MOST = 48  # batch shapes that are recorded (all widths up to 2,048 tokens); others run eagerly
NARROWEST = 4  # widths up to 256 tokens are padded to multiples of two to this power
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
PLAIN = (bool, int, float, str, type(None))


class Outputs(NamedTuple):
    """Outputs of a recorded step, in memory that every replay overwrites."""

    numbers: Tensor  # the values of `parts`, and the gradients' joint norm
    parts: list[Part]
    terms: ElboTerms
    grads: list[Tensor | None]


B = TypeVar("B", bound=Batch)
Run = Callable[[], Any]
Record = Callable[[Run, torch.device], tuple[Any, Callable[[], None]]]
"""Records the operations of a function on a device; returns its outputs and a function that replays them.

The outputs are `Outputs` or a tensor.
"""


class Unfit(Exception):
    """Raised if a step cannot be recorded, because it synchronises or copies numbers from the host."""


@contextmanager
def as_captured() -> Iterator[None]:
    """Make transformers build its attention masks as in a capture: in full, without reading them."""
    is_capturing = torch.cuda.is_current_stream_capturing
    torch.cuda.is_current_stream_capturing = lambda: True
    try:
        yield
    finally:
        torch.cuda.is_current_stream_capturing = is_capturing


@contextmanager
def without_collections() -> Iterator[None]:
    """Collect garbage now, but not while the block runs, because it may hold memory of another graph."""
    gc.collect()
    with uncollected():
        yield


class CudaGraphs:
    """Records CUDA graphs, which share one pool of memory."""

    def __init__(self) -> None:
        self._pool: Any = None

    def __call__(self, run: Run, device: torch.device) -> tuple[Any, Callable[[], None]]:
        """Record a function; raise `Unfit` if it waits for the device, or torch's own error."""
        with torch.cuda.device(device):
            self._warm_up(run)
            graph = torch.cuda.CUDAGraph()
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            with without_collections(), torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                outputs = run()
        return outputs, graph.replay

    def _warm_up(self, run: Run) -> None:
        """Run as in a capture, on the stream to be captured, and restore the state of the generator."""
        gc.collect()  # nodes of earlier backward passes are bound to the stream that made them
        self._stream, now = torch.cuda.Stream(), torch.cuda.current_stream()
        noise, waits = torch.cuda.get_rng_state(), torch.cuda.get_sync_debug_mode()
        self._stream.wait_stream(now)
        try:
            with torch.cuda.stream(self._stream), as_captured():
                for number in range(WARM_UPS):
                    # Waiting for the device would break the capture, and the generator with it.
                    torch.cuda.set_sync_debug_mode("error" if number else waits)
                    run()
        except RuntimeError as error:  # also for lack of memory: an eager step needs less
            raise Unfit(f"the step cannot be recorded ({str(error).splitlines()[0]})") from error
        finally:
            torch.cuda.set_sync_debug_mode(waits)
            now.wait_stream(self._stream)
            torch.cuda.set_rng_state(noise)


class Recording:
    """One gradient step for batches of one shape.

    Args:
        svi: the inference.
        batch: the first of these batches.
        record: see `Record`.
    """

    def __init__(self, svi: SVI, batch: Batch, record: Record) -> None:
        self.svi = svi
        static: dict[str, Any] = {name: value.clone() for name, value in tensors(batch).items()}
        self.batch = replace(batch, **static)
        self.outputs: Outputs
        self.outputs, self._replay = record(self._run, batch.input_ids.device)

    def _run(self) -> Outputs:
        svi = self.svi
        for parameter in svi.parameters:
            parameter.grad = None
        terms = svi.terms(self.batch)
        parts = parts_of(svi.model, terms, len(self.batch))
        svi.backward(terms, 1.0)
        numbers = torch.stack([*(part.value for part in parts), svi.norm()])
        return Outputs(numbers, parts, _detached(terms), [p.grad for p in svi.parameters])

    def replay(self, batch: Batch) -> dict[str, float]:
        """Leave a batch's finite, clipped gradients in `.grad`, as `SVI.gradients` does; return its parts."""
        new, old = tensors(batch), tensors(self.batch)
        torch._foreach_copy_([old[name] for name in new], list(new.values()))
        self._replay()
        for parameter, grad in zip(self.svi.parameters, self.outputs.grads, strict=True):
            parameter.grad = grad
        *numbers, size = self.outputs.numbers.tolist()
        values = logged(self.outputs.parts, numbers)
        check_finite(values["loss"], self.outputs.terms)
        norm = self.outputs.numbers[-1]
        return {**values, "grad_norm": self.svi.clipped(norm, size)}


class Captured:
    """Replacement for `SVI.gradients` that replays recorded steps.

    Args:
        svi: the inference.
        record: see `Record`; by default CUDA graphs, which only a GPU has.

    Attributes:
        recordings: recorded steps by batch shape and settings.
        eager: reasons why steps ran eagerly.
        unfit: reason why no step is replayed after a failed recording, or None.
    """

    def __init__(self, svi: SVI, record: Record | None = None) -> None:
        self.svi = svi
        self.recordings: dict[Hashable, Recording] = {}
        self.eager: set[str] = set()
        self.unfit: str | None = None
        self._record = record or CudaGraphs()
        self._devices = {"cuda"} if record is None else {"cuda", "cpu"}

    def __call__(self, *batches: Batch) -> dict[str, float]:
        """Leave the finite, clipped gradients of a step in `.grad`; return `SVI.last`."""
        recording_or_reason = self.misfit(*batches) or self._recording(batches[0])
        if isinstance(recording_or_reason, Recording):
            return recording_or_reason.replay(batches[0])
        if recording_or_reason not in self.eager:
            self.eager.add(recording_or_reason)
            warnings.warn(
                f"Training runs eagerly, not as a captured step: {recording_or_reason}.", stacklevel=2
            )
        with as_captured():
            return self.svi.gradients(*batches)

    def _recording(self, batch: Batch) -> Recording | str:
        """Return the recording for a batch, making it if necessary, or the reason why it cannot be made."""
        key = (shape_of(batch), self._settings())
        if key in self.recordings:
            return self.recordings[key]
        if self.unfit is None and len(self.recordings) < MOST:
            try:
                return self.recordings.setdefault(key, Recording(self.svi, batch, self._record))
            except Unfit as error:  # keep the text only: its frames hold the memory of the failed step
                self.unfit = str(error)
                self.recordings.clear()
        return self.unfit or f"the limit of {MOST} recorded batch shapes and settings is reached"

    def misfit(self, *batches: Batch) -> str | None:
        """Return why a step on these batches cannot be replayed; None if it can."""
        svi, backbone = self.svi, self.svi.model.backbone
        kind = type(svi)
        reasons = {
            f"{kind.__name__} computes gradients differently": kind.gradients is not SVI.gradients
            or kind.backward is not SVI.backward,
            "several processes or micro-batches share a step": svi.ranks is not None or len(batches) > 1,
            "checkpointing is on": backbone.checkpointing,
            "a parameter has hooks": any(p._backward_hooks for p in svi.parameters),
        }
        own = next((reason for reason, true in reasons.items() if true), None)
        return own or obstacle(svi.model, svi.parameters, self._devices, *batches)

    def _settings(self) -> Hashable:
        """Return what a recording depends on: numbers that Python reads, and addresses of weights."""
        svi, model = self.svi, self.svi.model
        things = [svi, svi.elbo, model.likelihood, *model.modules(), *svi.guide.modules()]
        places = [p.data_ptr() for p in chain(svi.parameters, model.backbone.lm.parameters())]
        return (tuple(map(_plain, things)), svi.autocast, tuple(places))


def records(setting: str, device: torch.device) -> bool:
    """Return whether a setting of `capture` records on a device: "auto" does so on a CPU only."""
    return setting == "on" or (setting == "auto" and device.type == "cpu")


def obstacle(model: AdaptedLM, others: Iterable[Tensor], devices: set[str], *batches: Batch) -> str | None:
    """Return why a forward pass cannot be replayed; None if it can.

    Args:
        model: the program.
        others: parameters besides those of the language model.
        devices: types of devices on which there are replays.
        batches: the rows.
    """
    backbone = model.backbone
    places = {value.device for value in chain(backbone.lm.parameters(), others)}
    reasons = {
        "the model is on a CPU": not {place.type for place in places} <= devices,
        "the model is spread over several devices": len(places) > 1,
        "the language model is quantised": backbone.quantized is not None,
        "the states of the lowest layers, which have no adapter, are cached": model.frozen_layers > 0,
        "the rows continue a common prefix": any(batch.past is not None for batch in batches),
        "the adapters are tapped": any(adapter.tap is not None for adapter in model.adapters.values()),
        "a Pyro handler is active around the step": bool(_PYRO_STACK),
        "the language model has hooks": any(getattr(nn.modules.module, f"_global{kind}") for kind in HOOKS)
        or any(getattr(module, kind) for module in backbone.lm.modules() for kind in HOOKS),
    }
    return next((reason for reason, true in reasons.items() if true), None)


def eager(svi: SVI) -> SVI:
    """Make an inference run its steps eagerly with the attention masks of a captured step; return it.

    Its losses are then bitwise equal to those of captured steps.
    """

    def gradients(*batches: Batch) -> dict[str, float]:
        with as_captured():
            return svi.gradients(*batches)

    svi.replayed = gradients
    return svi


def captured(svi: SVI, record: Record | None = None) -> SVI:
    """Make an inference record and replay its gradient steps if possible; return it.

    Args:
        svi: the inference, changed in place; undo it with `svi.replayed = None`.
        record: see `Record`; by default CUDA graphs.
    """
    svi.replayed = Captured(svi, record)
    return svi


def widened(batch: B) -> B:
    """Return a batch padded to one of a few widths, so that few shapes are recorded.

    Widths are multiples of 16 up to 256 tokens; above, there are eight per doubling, so that padding adds at
    most an eighth. Noise is also drawn for padding, so that the draws of a seed depend on the width.
    """
    changed: dict[str, Any] = _padded(batch, "input_ids", "attention_mask", "segments")
    if isinstance(batch, ReplyBatch):
        changed |= _padded(batch, "targets", "scored")
        more = changed["scored"].shape[1] - batch.scored.shape[1]
        changed["counts"] = tuple(count + more for count in batch.counts)
    return replace(batch, **changed)


def _padded(batch: Batch, *names: str) -> dict[str, Tensor]:
    values = {name: getattr(batch, name) for name in names if getattr(batch, name) is not None}
    width = values[names[0]].shape[1]
    step = 1 << max(NARROWEST, (width - 1).bit_length() - 4)
    return {name: F.pad(value, (-width % step, 0)) for name, value in values.items()}


def tensors(batch: Batch) -> dict[str, Tensor]:
    """Return the tensors of a batch by the names of its fields."""
    values = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def shape_of(batch: Batch) -> Hashable:
    """Return everything that Python reads of a batch; batches with equal results share a recording."""
    shapes = tuple((name, value.shape, value.dtype, value.device) for name, value in tensors(batch).items())
    return type(batch), shapes, max(batch.asked), _plain(batch)


def _plain(thing: object) -> tuple[tuple[str, object], ...]:
    return tuple((name, value) for name, value in vars(thing).items() if isinstance(value, PLAIN))


def _detached(terms: ElboTerms) -> ElboTerms:
    """Return terms without their graph, which a replay does not need."""
    kl, extra = ({name: value.detach() for name, value in part.items()} for part in (terms.kl, terms.extra))
    return ElboTerms(terms.loss.detach(), terms.nll.detach(), kl, extra)
