"""An adapted layer: the frozen layer and the changes that its BaRA adapters add."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import mul
from types import SimpleNamespace
from typing import Any, cast

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from pyro.distributions import TorchDistribution
from torch import Tensor, nn
from torch.nn import functional as F

from bara_pyro.core.latents import Latents, Site
from bara_pyro.core.noise import CounterNoise
from bara_pyro.core.priors import centre_of
from bara_pyro.core.program import AdaptedLM
from bara_pyro.errors import ConfigError
from bara_pyro.extras.hub.peft.config import BaRAConfig
from bara_pyro.guides.amortized import AmortizedGuide
from bara_pyro.guides.families import FAMILIES
from bara_pyro.lm.targets import widths
from bara_pyro.methods.bara import BaRAMethodConfig
from bara_pyro.methods.base import given
from bara_pyro.models.bara import PHI, THETA
from bara_pyro.models.lora import down_projection
from bara_pyro.runs.writing import is_by_module


@dataclass
class SharedDraw:
    """The draw of a forward pass, shared by all layers.

    Attributes:
        addresses: addresses of the pass's noise; None for posterior means.
        phi: adapter -> path -> Phi (`r`) under this draw.
    """

    addresses: CounterNoise | None = None
    phi: dict[str, dict[str, Tensor]] = field(default_factory=dict)


class Weight(nn.Module):
    """A tensor stored as `<name>.weight`, the key of PEFT's adapters."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach())


class BaRALayer(nn.Module, BaseTunerLayer):
    """A linear layer with BaRA's change added to its output; see `bara_pyro.models.bara`.

    Args:
        base_layer: the frozen layer.
        path: its path in the language model, part of the names of its latent sites.
        draw: the model's current draw.
    """

    adapter_layer_names = ("lora_A", "lora_B", "lora_phi", "lora_theta")
    other_param_names = ("guides", "scaling", "ranks", "centres")
    # Attributes of PEFT's class, which has no types.
    active_adapters: list[str]
    disable_adapters: bool
    get_base_layer: Callable[[], nn.Module]
    set_adapter: Callable[..., None]

    def __init__(self, base_layer: nn.Module, path: str, draw: SharedDraw) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.path = path
        self.in_features, self.out_features = widths(base_layer)
        self.lora_A, self.lora_B = nn.ModuleDict(), nn.ModuleDict()
        self.lora_phi, self.lora_theta = nn.ModuleDict(), nn.ModuleDict()
        self.scaling: dict[str, float] = {}
        self.ranks: dict[str, int] = {}
        self.centres: dict[str, float] = {}
        self.guides: dict[str, AmortizedGuide] = {}
        self._draw = (draw,)

    def add(self, name: str, config: BaRAConfig) -> None:
        """Add an adapter, initialised as by `BaRA` and its guide."""
        settings, rank = config.settings, config.rank_pattern.get(self.path, config.r)
        guide = guide_of(settings, config.r, self.path, rank, self.in_features)
        # The guide is not a submodule: its parameters are registered below, under the names of a run's files.
        self.guides[name] = guide
        self.scaling[name], self.ranks[name] = config.lora_alpha / config.r, rank
        self.centres[name] = centre_of(settings.theta_prior) if settings.centred else 0.0
        self.lora_B[name] = Weight(torch.zeros(self.out_features, rank, dtype=torch.float32))
        if settings.form == "gate":
            self.lora_A[name] = Weight(down_projection(rank, self.in_features))
        for site, group in ((PHI, self.lora_phi), (THETA, self.lora_theta)):
            if site in guide.sites:
                group[name] = guide.sites[site]
        self.to_base(name)
        self.set_adapter(self.active_adapters, inference_mode=config.inference_mode)

    def to_base(self, name: str) -> None:
        """Move an adapter to the device of the frozen weights; it stays in float32."""
        device = cast(Tensor, self.get_base_layer().weight).device
        for group in self.adapter_layer_names:
            modules: nn.ModuleDict = getattr(self, group)
            if name in modules and not any(value.is_meta for value in modules[name].parameters()):
                modules[name].to(device)

    def weight_of(self, part: str, name: str) -> Tensor:
        """Return an adapter's tensor in float32.

        Args:
            part: "A", "B", "phi" or "theta".
            name: the adapter.
        """
        group: nn.ModuleDict = getattr(self, f"lora_{part}")
        return cast(Tensor, group[name].weight).float()

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return the layer's output with the change of every active adapter added.

        Args:
            x: `B x T x in_features`.
            *args: arguments of the frozen layer.
            **kwargs: keyword arguments of the frozen layer, and PEFT's `adapter_names`: the adapter of each
                row, used instead of the active ones, or "__base__" for none.

        Raises:
            ConfigError: `adapter_names` does not have one name per row.
        """
        names: Sequence[str] | None = kwargs.pop("adapter_names", None)
        if names is not None and len(names) != len(x):
            raise ConfigError(
                f"adapter_names has {len(names)} names for a batch of {len(x)} rows: give one name per row."
            )
        out = self.base_layer(x, *args, **kwargs)
        if self.disable_adapters:
            return out
        for name in self.active_adapters if names is None else sorted(set(names)):
            if name not in self.lora_B:
                continue  # a layer that this adapter leaves as it is, or "__base__"
            change = self.change(name, x).to(out.dtype)
            if names is not None:
                # Compute all rows, because a row's noise depends on its place in the batch.
                rows = torch.tensor([row_name == name for row_name in names], device=out.device)
                change = torch.where(rows.view(-1, *(1,) * (change.dim() - 1)), change, 0)
            out = out + change
        return out

    def change(self, name: str, x: Tensor) -> Tensor:
        """Return `s B (Phi * (theta - centre))` or `s B ((Phi * theta) * (A x))`, `B x T x out_features`."""
        x = x.float()
        with torch.autocast(x.device.type, enabled=False):
            parts = []
            if name in self.lora_phi:
                parts.append(self.phi(name)[: self.ranks[name]])
            if name in self.lora_theta:
                distribution = self.distribution(name, self.weight_of(THETA, name), self.ranks[name], x)
                noise = self._draw[0].addresses
                site = f"{THETA}/{self.path}"
                theta = (
                    distribution.mean
                    if noise is None
                    else noise.on(x.device).draw_local(site, distribution)[0]
                )
                parts.append(theta - self.centres[name])
            if name in self.lora_A:
                parts.append(F.linear(x, self.weight_of("A", name)))
            out = F.linear(reduce(mul, parts), self.weight_of("B", name) * self.scaling[name])
        return out.expand(*x.shape[:-1], out.shape[-1])  # with Phi alone, the change has no row or token axis

    def phi(self, name: str) -> Tensor:
        """Return Phi (`r`): the current draw, or its posterior mean."""
        raw = self.weight_of(PHI, name)
        if self._draw[0].addresses is not None:
            return self._draw[0].phi[name][self.path].to(raw.device)
        return self.distribution(name, raw, self.guides[name].r).mean

    def distribution(
        self, name: str, weight: Tensor, rank: int, x: Tensor | None = None
    ) -> TorchDistribution:
        """Return the posterior of one of an adapter's gates; see `AmortizedGuide.posterior`."""
        guide = self.guides[name]
        if guide.start.device != weight.device:
            guide.start = guide.start.to(weight.device)
        return guide.posterior(weight, rank, x)

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        """Raise `ConfigError`: gates that depend on the token cannot be merged into a weight."""
        raise ConfigError(
            "BaRA's gates depend on the token and cannot be merged into a weight: write the nearest LoRA "
            "with `bara export --as lora` and merge that."
        )

    def unmerge(self) -> None:
        """Do nothing, because adapters are never merged."""

    def supports_lora_conversion(self, adapter_name: str = "default") -> bool:
        """Return False, for the reason that `merge` gives."""
        return False


def guide_of(settings: BaRAMethodConfig, r: int, path: str, rank: int, in_features: int) -> AmortizedGuide:
    """Return the guide of one module with its initial parameters.

    The stand-in program has only the attributes that guides read: latent sites and their location.
    """
    phi = {PHI: Site(PHI, (r,))} if settings.latent != "theta" else {}
    theta = {THETA: Site(THETA, (rank,), path, local=True, width=in_features)}
    sites = phi if settings.latent == "phi" else phi | theta
    program = SimpleNamespace(
        latents=Latents(r, sites, modulating=settings.form == "gate"),
        num_data=1,  # PEFT does not know the number of rows, so noise starts as for few rows
        backbone=SimpleNamespace(device=None),  # keep the default device: PEFT may load onto "meta"
    )
    family = FAMILIES[settings.guide]
    guide = family(cast(AdaptedLM, program), **given(family, settings))
    if not is_by_module(guide):
        raise ConfigError(
            f"The guide {settings.guide!r} has parameters for all modules together, which PEFT does not "
            "support: choose 'weibull', or load the run with bara_pyro.load_system(folder)."
        )
    return guide
