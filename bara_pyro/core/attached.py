"""A fitted program as an ordinary language model: `forward`, `generate`, pipelines with gates in place."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from bara_pyro.core.guide import Posterior, PosteriorMean, SiteGuide
from bara_pyro.core.program import AdaptedLM, Adapter, Given
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError

Mean = Literal["mean"]


class Fitted(Protocol):
    """What has a program and its fitted guide: a `System`."""

    @property
    def model(self) -> AdaptedLM: ...  # noqa: D102
    @property
    def guide(self) -> SiteGuide: ...  # noqa: D102


def pair_of(run: Fitted | tuple[AdaptedLM, SiteGuide]) -> tuple[AdaptedLM, SiteGuide]:
    """Return program and guide.

    Raises:
        ConfigError: the guide belongs to another model.
    """
    model, guide = run if isinstance(run, tuple) else (run.model, run.guide)
    guide.check(model)
    return model, guide


@contextmanager
def attached(
    run: Fitted | tuple[AdaptedLM, SiteGuide], draws: Mean | int = "mean"
) -> Iterator[PreTrainedModel]:
    """Hang a fitted program on its language model while the block runs.

    Inside, `lm.forward`, `lm.generate` and `transformers.pipeline("text-generation", model=lm, ...)` work as
    ever, with the adapters in place; afterwards, after an exception too, the language model is bit for bit
    what it was. The output embedding's adapter acts on every token that is asked for, and its layer gives
    float32 then. Gradients flow as outside: `torch.no_grad()` where none are wanted.

        with bp.attached(bp.load_system("runs/mine")) as lm:
            lm.generate(**tokens, max_new_tokens=20)

    Args:
        run: what `load_system` or `build_system` gave, or `(model, guide)`.
        draws: "mean": every latent at its posterior mean, as `predict(samples=0)`. A seed: one draw of the
            posterior, as `predict(samples=1, seed=...)` of rows without identifiers: one draw of the global
            latents, and of the local ones a draw for every row of the batch and every position of its text
            (padding on the left is not counted), with or without a key-value cache. Beams are rows: a beam
            search carries the cache of one to another, and so mixes their draws.

    Yields:
        The language model.

    Raises:
        ConfigError: the guide belongs to another model, or the program is more than adapters in a language
            model (an ensemble's members, a temperature of the answers).
    """
    model, guide = pair_of(run)
    if type(model).forward is not AdaptedLM.forward or type(model).logits is not AdaptedLM.logits:
        raise ConfigError(
            f"{type(model).__name__} is more than adapters in one language model, which `attached` cannot "
            "show: use bara_pyro.predict."
        )
    lm = model.backbone.lm
    law = PosteriorMean(guide)
    nothing = torch.zeros(1, 1, dtype=torch.long, device=model.backbone.device)
    with torch.no_grad(), law:
        latents = model.global_latents(Batch(nothing, nothing == 0, nothing[0]))
    with ExitStack() as stack:
        for adapter in model.adapters.values():
            layer = lm.get_submodule(adapter.target.path)
            hook = _Hook(adapter, latents[adapter.target.index], law)
            stack.callback(layer.register_forward_hook(hook).remove)
        yield lm


class _Hook:
    """Adds an adapter's change to its layer's output, its local latents taken from a posterior."""

    def __init__(self, adapter: Adapter, latents: Given, law: Posterior) -> None:
        self.adapter, self.latents, self.law = adapter, latents, law

    def __call__(self, layer: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        if self.adapter.target.is_head:
            output = output.float()  # as `AdaptedLM.logits` adds it
        with self.law:
            return self.adapter.hook(self.latents, tuple(args[0].shape[:1]), layer, args, output)
