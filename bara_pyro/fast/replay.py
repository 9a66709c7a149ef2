"""Replayed steps on a CPU: record the tensor operations of a gradient step once, then repeat them.

On a CPU, Python, Pyro's handlers and autograd take up to half the time of a step on a small batch. A replay
executes the same operations in the same order, but in TorchScript's interpreter. This includes the backward
pass and the noise. The result is bitwise equal to that of the eager step.

Recording takes as long as some 40 replays save, so a step is recorded once its batch shape has occurred
`AFTER` times. All other steps run eagerly. Training uses `replaying`.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch._prims  # registers `torch.ops.prims`
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from bara_pyro.core.svi import SVI
from bara_pyro.data.types import Batch
from bara_pyro.fast.capture import MOST, Captured, Outputs, Recording, Run, Unfit, captured, shape_of

AFTER = 100  # eager steps before a recording


class Differs(Exception):
    """Raised if a number that Python read during the recording has another value now."""


class Place:
    """Stands for one tensor of a recorded step, which is not kept in memory."""


class CallLog(TorchDispatchMode):
    """Logs the ATen calls of a block, with a `Place` for each tensor.

    Attributes:
        calls: each call's operator, arguments, keyword arguments and result.
        sources: tensors that no call made, such as parameters.
        reads: the places and values of numbers that Python read.
        unfit: a call whose result Python may depend on in another way; the block cannot be replayed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.sources: dict[Place, Tensor] = {}
        self.reads: list[tuple[Place, float]] = []
        self.unfit: str | None = None
        self._places = WeakTensorKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = self.places((args, kwargs or {}), self.sources)
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._local_scalar_dense.default:
            self.reads.append((inputs[0][0], result))
            return result
        if _depends_on_values(func, args):
            self.unfit = str(func)
        if func is torch.ops.aten.view.dtype:  # which TorchScript takes for a view of another shape
            func = torch.ops.prims.view_of_dtype.default
        self.calls.append((func, *inputs, self.places(result, {})))
        return result

    def places(self, values: Any, unknown: dict[Place, Tensor]) -> Any:
        """Return a structure with a place for each tensor; add tensors not seen before to `unknown`."""

        def place(tensor: Tensor) -> Place:
            if tensor not in self._places:
                self._places[tensor] = new = Place()
                unknown[new] = tensor
            return self._places[tensor]

        return tree_map_only(Tensor, place, values)

    def again(self, wanted: list[Place], *sources: Tensor) -> tuple[Tensor, ...]:
        """Repeat the calls with these sources; return the tensors of some places."""
        values = dict(zip(self.sources, sources, strict=True))
        places = (*(call[1:3] for call in self.calls), wanted)
        uses = Counter(leaf for leaf in tree_leaves(places) if isinstance(leaf, Place))

        def value(place: Place) -> Tensor:
            uses[place] -= 1
            return values[place] if uses[place] else values.pop(place)  # free memory as the step does

        for func, *inputs, results in self.calls:
            args, kwargs = tree_map_only(Place, value, inputs)
            new = func(*args, **kwargs)
            values.update(zip(tree_leaves(results), tree_leaves(new), strict=True))
        return tuple(map(value, wanted))


def record(run: Run, device: torch.device) -> tuple[Any, Callable[[], None]]:
    """Record a function on a CPU, as `bara_pyro.fast.capture.Record` does.

    Returns:
        The outputs, and a function that replays them. It raises `Differs` if Python would read another
        number.

    Raises:
        Unfit: a result has a shape that depends on values.
    """
    with torch.random.fork_rng(devices=[]), CallLog() as log:
        outputs = run()
    if log.unfit:
        raise Unfit(f"the step cannot be recorded ({log.unfit})")
    own = _tensors(outputs)
    sources = tuple(value.detach() for value in log.sources.values())
    wanted = [*log.places(own, {}), *(place for place, _ in log.reads)]
    numbers = [number for _, number in log.reads]
    with torch.random.fork_rng(devices=[]), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated, but nothing else runs without Python
        # As `torch.jit.trace`, which would keep the function for ever: some 30 MB for each recording.
        graph, _ = torch._C._create_graph_by_tracing(
            lambda *new: log.again(wanted, *new), sources, lambda tensor: "", True, False, None, []
        )
        repeated = torch._C._create_function_from_graph("step", graph)

    @torch.no_grad()
    def replay() -> None:
        # Optimising the operations takes longer than it saves.
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            found = repeated(*sources)
        if [read.item() for read in found[len(own) :]] != numbers:
            raise Differs
        torch._foreach_copy_(own, list(found[: len(own)]))

    return outputs, replay


class Replayed(Captured):
    """Replacement for `SVI.gradients` on a CPU that records and replays frequent steps, bitwise equal.

    Args:
        svi: the inference.
        after: eager steps on batches of one shape before they are recorded.
    """

    def __init__(self, svi: SVI, after: int) -> None:
        super().__init__(svi, record)
        self.after = after
        self._seen: Counter[int] = Counter()

    def __call__(self, *batches: Batch) -> dict[str, float]:
        """Leave the finite, clipped gradients of a step in `.grad`; return `SVI.last`."""
        if self.unfit is not None or self.misfit(*batches):
            return self.svi.gradients(*batches)
        batch = batches[0]
        # transformers leaves out the attention mask if no row is padded
        key = (shape_of(batch), bool(batch.attention_mask.all()), self._settings())
        self._seen[hash(key)] += 1
        new = self._seen[hash(key)] - self.after
        if new <= 0 or (key not in self.recordings and len(self.recordings) == MOST):
            return self.svi.gradients(batch)
        noise = torch.get_rng_state()
        try:
            if key not in self.recordings:
                self.recordings[key] = Recording(self.svi, batch, self._record)
            found = self.recordings[key].replay(batch)
        except Exception as error:  # noqa: BLE001 - any of TorchScript's; an invalid batch raises again below
            if key not in self.recordings:
                self.unfit = str(error)
            torch.set_rng_state(noise)
            return self.svi.gradients(batch)
        return found if new > 2 else self._compared(found, noise, batch)

    def _compared(self, found: dict[str, float], noise: Tensor, batch: Batch) -> dict[str, float]:
        """Repeat a replayed step eagerly; replay no further step if it differs, on these or other rows."""
        replayed = [p.grad for p in self.svi.parameters], torch.get_rng_state()
        torch.set_rng_state(noise)
        parts = self.svi.gradients(batch)
        plain = [p.grad for p in self.svi.parameters], torch.get_rng_state()
        pairs = zip(tree_leaves(replayed), tree_leaves(plain), strict=True)
        if found != parts or not all(a is b or torch.equal(a, b) for a, b in pairs):
            self.unfit = "a replayed step differs from the eager step"
            self.recordings.clear()
        return parts


def _depends_on_values(func: Any, args: Any) -> bool:
    """Return whether a call's result has a shape or Python value that depends on values of its arguments."""
    if func is torch.ops.aten.index.Tensor:
        return any(index is not None and not index.dtype.is_signed for index in args[1])  # masks
    return bool({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & {*func.tags})


def _tensors(outputs: Outputs | Tensor) -> list[Tensor]:
    if isinstance(outputs, Tensor):
        return [outputs]
    terms, grads = outputs.terms, [grad for grad in outputs.grads if grad is not None]
    return [outputs.numbers, terms.loss, terms.nll, *terms.kl.values(), *terms.extra.values(), *grads]


@contextmanager
def replaying(svi: SVI) -> Iterator[None]:
    """Make an inference record and replay its steps while the block runs.

    The recordings are freed at the end, with the gradients, whose memory belongs to them.
    """
    if svi.model.backbone.device.type == "cpu":
        svi.replayed = Replayed(svi, AFTER)
    else:
        captured(svi)
    try:
        yield
    finally:
        svi.replayed = None
        for parameter in svi.parameters:
            parameter.grad = None
