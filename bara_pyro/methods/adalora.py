"""AdaLoRA: ranks are allocated to modules during training."""

from typing import Unpack

from pydantic import Field, NonNegativeFloat, PositiveInt, model_validator
from torch.optim import Optimizer

from bara_pyro.core.svi import SVI, SVIOptions, adamw
from bara_pyro.errors import ConfigError
from bara_pyro.guides.delta import DeltaGuide
from bara_pyro.methods.allocation import Budget, RankAllocator, Triplets
from bara_pyro.methods.base import Fit, Method, MethodConfig, pair, register_method, setting
from bara_pyro.methods.recipes import Training, common
from bara_pyro.models.adalora import AdaLoRA

MASK_INTERVAL = 10  # steps between two allocations, as in the authors' scripts for GLUE


class AdaLoRAConfig(MethodConfig):
    """Settings of AdaLoRA. The authors' GLUE scripts: t_init 0.09 to 0.15, t_final 0.46 to 0.58."""

    init_r: PositiveInt | None = setting(
        AdaLoRA, "init_r", "rank that training starts from, at least adapter.r; null: 1.5 times it"
    )
    orth_weight: NonNegativeFloat = setting(
        AdaLoRA, "orth_weight", "weight of the distance from orthogonality"
    )
    t_init: float = Field(0.1, ge=0, lt=1, description="share of the steps before ranks are taken away")
    t_final: float = Field(0.5, ge=0, lt=1, description="share of the steps after the last allocation")

    @model_validator(mode="after")
    def _leaves_time(self) -> "AdaLoRAConfig":
        if self.t_init + self.t_final >= 1:
            raise ConfigError(
                f"method.t_init={self.t_init} and method.t_final={self.t_final} are shares of the steps and "
                "must leave some between them for allocation: their sum must be below 1."
            )
        return self


class AdaLoRASVI(SVI[AdaLoRA, DeltaGuide]):
    """One AdamW; after each step the allocator masks singular values.

    Args:
        model, guide, optim, **options: as for `SVI`.
        allocator: the allocator, on the same optimiser.
    """

    def __init__(
        self,
        model: AdaLoRA,
        guide: DeltaGuide,
        optim: Optimizer,
        *,
        allocator: RankAllocator,
        **options: Unpack[SVIOptions],
    ) -> None:
        super().__init__(model, guide, optim, **options)
        self.allocator = allocator

    def update(self) -> None:
        """Take the step and allocate."""
        super().update()
        self.allocator.step()


def adalora_svi(model: AdaLoRA, guide: DeltaGuide, train: Training, config: AdaLoRAConfig) -> AdaLoRASVI:
    """Return the inference that allocates ranks."""
    optim = adamw(model, guide, train.lr, weight_decay=train.weight_decay)
    modules = [Triplets(a.lora_A, a.lora_E, a.lora_B) for a in model.adapters.values()]
    budget = Budget(
        first=model.r * len(modules),
        last=model.target_r * len(modules),
        start=int(config.t_init * train.total_steps),
        end=train.total_steps - int(config.t_final * train.total_steps),
        interval=MASK_INTERVAL,
    )
    allocator = RankAllocator(modules, optim, budget)
    return AdaLoRASVI(model, guide, optim, allocator=allocator, **common(optim, train))


def final_ranks(fit: Fit[AdaLoRA, DeltaGuide, AdaLoRAConfig]) -> dict[str, float]:
    """Return the rank that each module ended with, for the record."""
    ranks = fit.model.ranks()
    return {"rank_mean": sum(ranks.values()) / len(ranks), **{f"rank/{k}": v for k, v in ranks.items()}}


register_method(
    Method(
        "adalora",
        "AdaLoRA: singular values kept by importance (arXiv 2303.10512)",
        AdaLoRAConfig,
        pair(AdaLoRA, DeltaGuide),
        svi=adalora_svi,
        finish=final_ranks,
    )
)
