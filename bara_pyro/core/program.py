"""The probabilistic program that every method shares: adapters in a frozen language model, one answer.

    global latents  ->  hidden states of the language model, each target layer changed by its adapter
                    ->  logits of the answer tokens at the last position  ->  y ~ Categorical

A method is a subclass of `AdaptedLM` (which adapters, which global latents) and of `Adapter` (how one layer
is changed, which local latents it samples). Nothing of the language model is modified: the changes hang on
forward hooks that exist only while the program runs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.distributions import Categorical, Distribution
from pyro.nn import PyroModule
from pyro.poutine.runtime import get_plates
from torch import Tensor, nn

from bara_pyro.core.backbone import Backbone
from bara_pyro.core.targets import Target, find_targets
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError, unknown

LIKELIHOOD = "y"


@dataclass(frozen=True)
class Latents:
    """The latent sites of a program, for a guide to build its posteriors from.

    Attributes:
        global_sites: name -> shape of the value (batch shape and event shape together), one draw a forward.
        local_sites: name -> width of the layer input that the site sees; its event has one dimension, of r
            entries for a gate.
        r: the rank.
        modulating: whether the local latents multiply another function of the layer's input, which then
            carries its size, rather than being all that is added to the layer.
        ranks: local sites of modules with fewer than r units -> how many they have.
    """

    global_sites: dict[str, tuple[int, ...]]
    local_sites: dict[str, int]
    r: int
    modulating: bool = False
    ranks: dict[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether there is any: LoRA has none."""
        return bool(self.global_sites or self.local_sites)


class Adapter(PyroModule):
    """What is added to one frozen linear layer. Subclasses define `forward`.

    Args:
        target: the layer.
        r: rank.
        scaling: `lora_alpha / r`.
    """

    # Given input and output of every forward, where activations are wanted (`tapped`).
    tap: Callable[[Tensor, Tensor], None] | None = None

    def __init__(self, target: Target, r: int, scaling: float) -> None:
        super().__init__()
        self.target = target
        self.r = r
        self.scaling = scaling

    def forward(self, x: Tensor, latents: Any, rows: Tensor | None = None) -> Tensor:
        """Return the change of the layer's output, `... x out_features`, in float32.

        Args:
            x: float32, `[draws x] B x T x in_features`, the layer's input.
            latents: whatever the program's `global_latents` returned.
            rows: output features to compute, for the answer head; all if None.
        """
        raise NotImplementedError


def module_key(name: str) -> str:
    """Return a module path or a site's name as the name of a submodule, which must not contain dots."""
    return name.replace(".", "/")


def chosen_rows(weight: Tensor, rows: Tensor | None) -> Tensor:
    """Return the rows of a weight, `... out x in`, that an adapter is asked to compute; all if None."""
    return weight if rows is None else weight[..., rows, :]


def tempered(beta: float) -> AbstractContextManager:
    """Weight the KL of the sites inside by `beta`: 1 is the exact ELBO, 0 removes the term."""
    if beta == 1:
        return nullcontext()
    return poutine.mask(mask=False) if beta == 0 else poutine.scale(scale=beta)


def outer_draws() -> tuple[int, ...]:
    """Return the shape of the vectorised plates outside the program (dimensions left of -2).

    `Predictive(parallel=True)`, vectorised ELBO particles and `bara_pyro.predict` all put a plate there.
    """
    sizes = {f.dim: f.size for f in get_plates() if f.dim is not None and f.dim < -2}
    return tuple(sizes.get(dim, 1) for dim in range(min(sizes, default=-2), -2))


class AdaptedLM(PyroModule):
    """Base program: a frozen language model with one adapter a target layer and a categorical answer.

    Args:
        backbone: the frozen language model.
        num_data: number N of training examples; likelihood and local KL are scaled by N / batch size.
        r: rank.
        lora_alpha: the change is scaled by `lora_alpha / r`.
        target_modules: see `bara_pyro.core.targets.find_targets`.
        full_vocab: compute the logits of the whole vocabulary before taking the answers' (same result).
        rank_pattern: path of a module -> its rank where that is less than r, as PEFT has it; the scaling
            stays `lora_alpha / r`.

    Raises:
        ConfigError: a size is not positive, or the rank pattern names an unknown module or a rank above r.
        BackboneError: a target matches nothing.
    """

    def __init__(
        self,
        backbone: Backbone,
        num_data: int,
        *,
        r: int = 8,
        lora_alpha: float = 16.0,
        target_modules: str | list[str] | None = None,
        full_vocab: bool = False,
        rank_pattern: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__()
        if num_data < 1 or r < 1:
            raise ConfigError(f"num_data={num_data} and r={r} must both be at least 1.")
        # In a tuple, so that neither torch nor Pyro registers what it holds.
        self._frozen = (backbone,)
        self.num_data = num_data
        self.r = r
        self.full_vocab = full_vocab
        self.targets = find_targets(backbone.lm, target_modules)
        self.rank_pattern = _checked_ranks(rank_pattern or {}, self.targets, r)
        self.adapters = PyroModule[nn.ModuleDict]()
        for target in self.targets:
            rank = self.rank_pattern.get(target.path, r)
            self.adapters[module_key(target.path)] = self.make_adapter(target, rank, lora_alpha / r)
        # Looked up once; the layers in a tuple, so that nothing of the language model is registered.
        self._adapters = tuple(self.adapters.values())
        self._body = tuple(
            (adapter, backbone.lm.get_submodule(adapter.target.path))
            for adapter in self._adapters
            if not adapter.target.is_head
        )
        self.to(backbone.device)

    @property
    def backbone(self) -> Backbone:
        """The frozen language model."""
        return self._frozen[0]

    # What a method defines -----------------------------------------------------------------------------

    def make_adapter(self, target: Target, r: int, scaling: float) -> Adapter:
        """Return the adapter of one layer."""
        raise NotImplementedError

    def global_latents(self) -> Any:
        """Sample what is shared by all rows and tokens; the result reaches every adapter."""
        return None

    def one_per_module(self, site: str, entry: Distribution, beta: float) -> Sequence[Tensor]:
        """Sample an r-vector for every module in one statement, its KL weighted by `beta`.

        Args:
            site: name; its value is `modules x r`.
            entry: prior of one entry.
            beta: weight of the KL.

        Returns:
            One `[draws x 1 x] 1 x r` a module, which broadcasts over rows and tokens.
        """
        prior = entry.expand([len(self.targets), self.r]).to_event(1)
        with pyro.plate("modules", len(self.targets), dim=-1), tempered(beta):
            value = pyro.sample(site, prior)
        return value.unsqueeze(-2).unbind(-3)

    def counted(self, batch: Batch) -> Tensor:
        """Return the tokens whose local sites enter the objective, `B x T`: by default the real ones."""
        return batch.attention_mask

    @cached_property
    def latents(self) -> Latents:
        """The latent sites, for guides."""
        return Latents({}, {}, self.r)

    # The program ---------------------------------------------------------------------------------------

    def forward(self, batch: Batch) -> Tensor:
        """Run the program on a batch; return the answers' log-probabilities, `[draws x] B x C`, float32."""
        rows, width = batch.input_ids.shape
        draws = outer_draws()
        shared = self.global_latents()
        indices = torch.arange(rows, device=batch.input_ids.device)
        with pyro.plate("data", self.num_data, subsample=indices, dim=-2):
            with (
                pyro.plate("tokens", width, dim=-1),
                poutine.mask(mask=self.counted(batch)),
                self.attached(shared, (*draws, rows)),
            ):
                copies = torch.Size(draws).numel()
                hidden = self.backbone.hidden(
                    batch.input_ids.repeat(copies, 1), batch.attention_mask.repeat(copies, 1)
                )
            logits = self._answer_logits(hidden[:, -1:], batch.answer_ids, shared, (*draws, rows))
            log_probs = logits.log_softmax(-1)
            labels = None if batch.labels is None else batch.labels.unsqueeze(-1)
            pyro.sample(LIKELIHOOD, Categorical(logits=log_probs, validate_args=False), obs=labels)
        return log_probs.squeeze(-2)

    def _answer_logits(self, last: Tensor, answers: Tensor, shared: Any, lead: tuple[int, ...]) -> Tensor:
        rows = None if self.full_vocab else answers
        logits = self.backbone.logits(last, rows).float()
        for adapter in self._adapters:
            if adapter.target.is_head:
                logits = logits + _change(adapter, last, shared, lead, rows).reshape(logits.shape)
        if self.full_vocab:
            logits = logits[..., answers]
        return logits.reshape(*lead, 1, len(answers))

    @contextmanager
    def attached(self, shared: Any, lead: tuple[int, ...]) -> Iterator[None]:
        """Hang the adapters of the body on the language model while the block runs.

        Args:
            shared: the global latents.
            lead: leading shape of every layer input, `[draws x] B`, to which the language model's flat
                batch dimension is unfolded before an adapter sees it.
        """
        with ExitStack() as stack:
            for adapter, layer in self._body:
                stack.callback(layer.register_forward_hook(_hook(adapter, shared, lead)).remove)
            yield


def _checked_ranks(ranks: Mapping[str, int], targets: Sequence[Target], r: int) -> dict[str, int]:
    known = [target.path for target in targets]
    for path, rank in ranks.items():
        if path not in known:
            raise ConfigError(unknown("module of the rank pattern", path, known))
        if not 1 <= rank <= r:
            raise ConfigError(f"The rank pattern gives {path} a rank of {rank}: choose 1 to r={r}.")
    return dict(ranks)


def _change(adapter: Adapter, x: Tensor, shared: Any, lead: tuple[int, ...], rows: Tensor | None) -> Tensor:
    """Run one adapter in float32, outside autocast, on the unfolded input."""
    x = x.reshape(*lead, *x.shape[1:]).float()
    with torch.autocast(x.device.type, enabled=False):
        # forward, not __call__: inside a running program Pyro's context is already active, and outside one
        # (our SVI, prediction) parameters are read without a `pyro.param` statement each.
        change = adapter.forward(x, shared, rows)
    if adapter.tap is not None:
        adapter.tap(x, change)
    return change


@contextmanager
def tapped(adapters: Sequence[Adapter]) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """Note what adapters see and give while the block runs: path -> input and output of the last forward.

    Inputs are float32, `[draws x] B x T x in_features` (T = 1 at the answer head), and carry no gradient.
    """
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def tap_of(path: str) -> Callable[[Tensor, Tensor], None]:
        return lambda x, change: seen.update({path: (x.detach(), change)})

    try:
        for adapter in adapters:
            adapter.tap = tap_of(adapter.target.path)
        yield seen
    finally:
        for adapter in adapters:
            adapter.tap = None


def _hook(adapter: Adapter, shared: Any, lead: tuple[int, ...]) -> Any:
    def hook(layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        change = _change(adapter, args[0], shared, lead, None)
        return output + change.reshape(output.shape).to(output.dtype)

    return hook
