"""AdaLoRA: ranks are allocated to modules during training."""

from typing import Unpack

from pydantic import NonNegativeFloat
from torch.optim import Optimizer

from bara_pyro.core.optimizers import adamw
from bara_pyro.core.svi import SVI, SVIOptions
from bara_pyro.guides.delta import DeltaGuide
from bara_pyro.methods.allocation import Budget, RankAllocator, Triplets
from bara_pyro.methods.base import Fit, Method, MethodConfig, pair, register_method, setting
from bara_pyro.methods.recipes import Training, common
from bara_pyro.models.adalora import AdaLoRA

MASK_INTERVAL = 10  # steps between two allocations, as in the authors' scripts for GLUE
# Shares of the steps before ranks are removed and after the last allocation; 0.09 to 0.15 and 0.46 to 0.58 in
# the authors' scripts.
T_INIT, T_FINAL = 0.1, 0.5


class AdaLoRAConfig(MethodConfig):
    """Settings of AdaLoRA; training starts from 1.5 times the rank `adapter.r`, as published."""

    orth_weight: NonNegativeFloat = setting(
        AdaLoRA, "orth_weight", "weight of the penalty on non-orthogonal factors"
    )


class AdaLoRASVI(SVI[AdaLoRA, DeltaGuide]):
    """SVI with one AdamW, whose allocator masks singular values after each step.

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
        """Take the optimiser step, then allocate ranks."""
        super().update()
        self.allocator.step()


def adalora_svi(model: AdaLoRA, guide: DeltaGuide, train: Training, config: AdaLoRAConfig) -> AdaLoRASVI:
    """Return the SVI that allocates ranks during training."""
    optim = adamw(model, guide, train.lr, weight_decay=train.weight_decay)
    modules = [Triplets(a.lora_A, a.lora_E, a.lora_B) for a in model.adapters.values()]
    budget = Budget(
        first=model.r * len(modules),
        last=model.target_r * len(modules),
        start=int(T_INIT * train.total_steps),
        end=train.total_steps - int(T_FINAL * train.total_steps),
        interval=MASK_INTERVAL,
    )
    allocator = RankAllocator(modules, optim, budget)
    return AdaLoRASVI(model, guide, optim, allocator=allocator, **common(optim, train))


def final_ranks(fit: Fit[AdaLoRA, DeltaGuide, AdaLoRAConfig]) -> dict[str, float]:
    """Return the final rank of each module, for the record."""
    ranks = fit.model.ranks()
    return {"rank_mean": sum(ranks.values()) / len(ranks), **{f"rank/{k}": v for k, v in ranks.items()}}


register_method(
    Method(
        "adalora",
        "AdaLoRA: keeps the most important singular values (arXiv 2303.10512)",
        AdaLoRAConfig,
        pair(AdaLoRA, DeltaGuide),
        svi=adalora_svi,
        finish=final_ranks,
    )
)
