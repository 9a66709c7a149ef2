"""One adapted layer: the frozen layer, and for every adapter of that name the change that BaRA adds to it."""

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
from bara_pyro.models.lora import down_projection, up_projection


@dataclass
class SharedDraw:
    """The draw that a forward pass uses; shared by all layers.

    Attributes:
        addresses: of the pass's noise; None: every gate has its posterior mean.
        phi: adapter -> path -> its Phi, `r`, under that draw.
    """

    addresses: CounterNoise | None = None
    phi: dict[str, dict[str, Tensor]] = field(default_factory=dict)


class Weight(nn.Module):
    """One tensor, under the key `<name>.weight` that PEFT's adapters use."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach())


class BaRALayer(nn.Module, BaseTunerLayer):
    """A linear layer with BaRA's change added to its output; see `bara_pyro.models.bara`.

    Args:
        base_layer: the frozen layer.
        path: where it is in the language model: half of the names of its latent sites.
        draw: which draw the model is at.
    """

    adapter_layer_names = ("lora_A", "lora_B", "lora_phi", "lora_theta")
    other_param_names = ("guides", "scaling", "ranks", "centres")
    # PEFT's, which has no types.
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
        """Add an adapter, its parameters as `BaRA` and its guide start them."""
        settings, rank = config.settings, config.rank_pattern.get(self.path, config.r)
        guide = guide_of(settings, config.r, self.path, rank, self.in_features)
        # Not registered here: its parameters are, under the names of a run's files.
        self.guides[name] = guide
        self.scaling[name], self.ranks[name] = config.lora_alpha / config.r, rank
        self.centres[name] = centre_of(settings.theta_prior) if settings.centred else 0.0
        self.lora_B[name] = Weight(up_projection(rank, self.out_features))
        if settings.form == "gate":
            self.lora_A[name] = Weight(down_projection(rank, self.in_features))
        for site, group in ((PHI, self.lora_phi), (THETA, self.lora_theta)):
            if site in guide.sites:
                group[name] = guide.sites[site]
        self.to_base(name)
        self.set_adapter(self.active_adapters, inference_mode=config.inference_mode)

    def to_base(self, name: str) -> None:
        """Put an adapter where the frozen weights are; it stays in float32 whatever their type."""
        device = cast(Tensor, self.get_base_layer().weight).device
        for group in self.adapter_layer_names:
            modules: nn.ModuleDict = getattr(self, group)
            if name in modules and not any(value.is_meta for value in modules[name].parameters()):
                modules[name].to(device)

    def weight_of(self, part: str, name: str) -> Tensor:
        """Return an adapter's tensor "A", "B", "phi" or "theta", in float32."""
        group: nn.ModuleDict = getattr(self, f"lora_{part}")
        return cast(Tensor, group[name].weight).float()

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return the layer's output with the change of every active adapter added.

        Args:
            x: `B x T x in_features`.
            *args: of the frozen layer.
            **kwargs: of the frozen layer; and `adapter_names`, as of PEFT's LoRA: of each row the adapter
                whose change is added to it, "__base__" for none. They take the place of the active ones.

        Raises:
            ConfigError: there is not one name a row.
        """
        names: Sequence[str] | None = kwargs.pop("adapter_names", None)
        if names is not None and len(names) != len(x):
            raise ConfigError(
                f"adapter_names has {len(names)} names and the batch {len(x)} rows: give one a row."
            )
        out = self.base_layer(x, *args, **kwargs)
        if self.disable_adapters:
            return out
        for name in self.active_adapters if names is None else sorted(set(names)):
            if name not in self.lora_B:
                continue  # a layer that this adapter leaves as it is, or "__base__"
            change = self.change(name, x).to(out.dtype)
            if names is not None:
                # All rows are computed: a row's noise is that of its place in the batch.
                rows = torch.tensor([own == name for own in names], device=out.device)
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
        return out.expand(*x.shape[:-1], out.shape[-1])  # Phi alone knows neither row nor token

    def phi(self, name: str) -> Tensor:
        """Return Phi, `r`: its draw, or its posterior mean."""
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
        """Refuse: gates that depend on the token fit into no weight."""
        raise ConfigError(
            "BaRA's gates depend on the token and cannot be merged into a weight: `bara export --as lora` "
            "writes the nearest LoRA, which can."
        )

    def unmerge(self) -> None:
        """Do nothing: nothing is ever merged."""

    def supports_lora_conversion(self, adapter_name: str = "default") -> bool:
        """Return False, for the reason that `merge` gives."""
        return False


def guide_of(settings: BaRAMethodConfig, r: int, path: str, rank: int, in_features: int) -> AmortizedGuide:
    """Return the guide of one module, with the parameters that training starts from.

    A guide asks of its program no more than which latent sites there are, and where.
    """
    phi = {PHI: Site(PHI, (r,))} if settings.latent != "theta" else {}
    theta = {THETA: Site(THETA, (rank,), path, local=True, width=in_features)}
    sites = phi if settings.latent == "phi" else phi | theta
    program = SimpleNamespace(
        latents=Latents(r, sites, modulating=settings.form == "gate"),
        num_data=1,  # PEFT is not told how many rows there are: noise starts as with few
        backbone=SimpleNamespace(device=None),  # stays where it is made: PEFT may load onto "meta"
    )
    family = FAMILIES[settings.guide]
    if family.by_unit:
        raise ConfigError(
            f"The guide {settings.guide!r} makes a module from all gates, and a module of PEFT's "
            "knows itself alone: choose 'weibull', or read the run with bara_pyro.load_system(folder)."
        )
    return family(cast(AdaptedLM, program), **given(family, settings))
