"""Batches of one shape, methods, and recorders that need no GPU."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from core_cases import backbone as tiny
from core_cases import make_batch, randomise
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

import bara_pyro as bp
from bara_pyro.core.svi import SVI
from bara_pyro.data.replies import EncodedReply, reply_batch
from bara_pyro.data.split import collate_ids, with_texts
from bara_pyro.data.types import Batch
from bara_pyro.fast.capture import Outputs, Run, as_captured
from bara_pyro.methods import METHODS, build, method_config
from bara_pyro.runs.sections import TrainConfig

STEPS = 12
# What would wait for a GPU: no CUDA graph can hold that.
WAITS = {"_local_scalar_dense", "item", "nonzero", "masked_select", "equal", "randperm"}


class Traced:
    """Records as CUDA graphs are recorded, ATen call by ATen call."""

    def __init__(self) -> None:
        self.waits: set[str] = set()

    def __call__(self, run: Run, device: torch.device) -> tuple[Outputs, Callable[[], None]]:
        found: list[Outputs] = []

        def flat() -> list[Tensor]:
            found[:] = [run()]
            return tensors_of(found[0])

        with torch.random.fork_rng(devices=[]), as_captured():
            run()  # as a warm-up does: what is cached is there
            graph = make_fx(flat)()
        self.waits |= {name for node in graph.graph.nodes if waits(name := str(node.target), node, graph)}

        @torch.no_grad()
        def replay() -> None:
            for static, value in zip(tensors_of(found[0]), graph(), strict=True):
                static.copy_(value)

        return found[0], replay


def waits(name: str, node: Node, graph: GraphModule) -> bool:
    if name.startswith(
        "aten.lift_fresh"
    ):  # a number of the host; of a tensor without one Pyro asks its device
        return getattr(graph, node.args[0].target).numel() > 0
    return name.split(".")[1:2] in [[wait] for wait in WAITS]


def tensors_of(outputs: Outputs | Tensor) -> list[Tensor]:
    if isinstance(outputs, Tensor):
        return [outputs]
    terms, grads = outputs.terms, [g for g in outputs.grads if g is not None]
    own = [terms.loss, terms.nll, *terms.kl.values(), *terms.extra.values()]
    return [outputs.numbers.detach(), *(value.detach() for value in own), *grads]


def questions(step: int) -> Batch:
    """Four rows that differ in tokens, padding and labels at each step, all seven tokens wide."""
    generator = torch.Generator().manual_seed(step)
    lengths = [7, *torch.randint(2, 7, (3,), generator=generator).tolist()]
    rows = tuple(tuple(torch.randint(1, 61, (n,), generator=generator).tolist()) for n in lengths)
    labels = torch.randint(0, 3, (4,), generator=generator)
    return replace(make_batch(rows), labels=labels)


def replies(step: int) -> Batch:
    """Three prompts with replies, other ones at each step, of one shape."""
    generator = torch.Generator().manual_seed(step)

    def tokens(number: int) -> tuple[int, ...]:
        return tuple(torch.randint(1, 61, (number,), generator=generator).tolist())

    prompts = torch.randint(1, 4, (2,), generator=generator).tolist()
    ends = torch.randint(1, 4, (2,), generator=generator).tolist()
    rows = [(4, 3), *zip(prompts, ends, strict=True)]
    return reply_batch([[EncodedReply(tokens(a), tokens(b), str(n))] for n, (a, b) in enumerate(rows)])


def texts(step: int) -> Batch:
    """Three prompts with two texts each, other ones and of other lengths at each step, of one shape."""
    generator = torch.Generator().manual_seed(step)

    def tokens(number: int) -> tuple[int, ...]:
        return tuple(torch.randint(1, 61, (number,), generator=generator).tolist())

    sizes = [(4, 3, 2), *torch.randint(1, 3, (2, 3), generator=generator).tolist()]
    prompts = [tokens(prompt) for prompt, _, _ in sizes]
    batch = collate_ids(prompts, [0, 1, 0], [f"{step}/{row}" for row in range(3)], torch.tensor([]), 0)
    return with_texts(batch, prompts, [[tokens(first), tokens(second)] for _, first, second in sizes])


BATCHES = {bp.AnswerLikelihood: questions, bp.CompletionLikelihood: replies, bp.TextLikelihood: texts}


def of_method(name: str, likelihood: type = bp.AnswerLikelihood, **settings: object) -> SVI:
    """The inference of a registered method with its preset settings, its B away from 0."""
    if name == "ivon":
        pytest.importorskip("ivon", reason="needs an extra of this package")
    torch.manual_seed(5)
    config = method_config({"name": name, **settings})
    model, guide = build(config, tiny(), 4, {"r": 3, "likelihood": likelihood()})
    return METHODS[name].svi(randomise(model), guide, TrainConfig(steps=STEPS, batch_size=4), config)


class Again:
    """Records by running again: what is tested is what is recorded, not how."""

    def __call__(self, run: Run, device: torch.device) -> tuple[Outputs, Callable[[], None]]:
        with torch.random.fork_rng(devices=[]):
            first = run()

        def replay() -> None:
            with as_captured():
                again = tensors_of(run())
            for static, value in zip(tensors_of(first), again, strict=True):
                static.copy_(value)

        return first, replay
