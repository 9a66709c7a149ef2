"""AdaLoRA: ranks are allocated to modules during training.

The importance of singular triplets, a budget schedule and a mask decide.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Unpack, cast

import torch
from pydantic import NonNegativeFloat
from torch import Tensor
from torch.optim import Optimizer

from bara_pyro.core.optimizers import adamw
from bara_pyro.core.svi import SVI, SVIOptions
from bara_pyro.guides.delta import DeltaGuide
from bara_pyro.methods.base import Fit, Method, MethodConfig, pair, register_method, setting
from bara_pyro.methods.recipes import Training, common
from bara_pyro.models.adalora import AdaLoRA

SENSITIVITY, UNCERTAINTY, KEPT = "sensitivity", "uncertainty", "kept"


class Triplets(NamedTuple):
    """The parameters of one module: A, `r x in`; E, `r x 1`; B, `out x r`."""

    lora_A: Tensor
    lora_E: Tensor
    lora_B: Tensor


@dataclass(frozen=True)
class Budget:
    """Schedule of the number of singular values of all modules together.

    The budget is `first` for `start` steps, then falls to `last` along a cubic curve until step `end`, and
    stays there.

    Attributes:
        first, last: number of singular values before and after.
        start, end: steps at which the fall starts and ends.
        interval: steps between two allocations during the fall.
    """

    first: int
    last: int
    start: int
    end: int
    interval: int

    def after(self, step: int) -> int:
        """Return the budget after `step` steps."""
        if step <= self.start:
            return self.first
        left = 1 - (min(step, self.end) - self.start) / (self.end - self.start)
        return int((self.first - self.last) * left**3 + self.last)

    def due(self, step: int) -> bool:
        """Return whether singular values are masked after `step` steps."""
        return step >= self.end or (step > self.start and step % self.interval == 0)


@dataclass
class RankAllocator:
    """Keeps the most important singular values of all modules, by Equations 8 to 10 of the AdaLoRA paper.

    For a weight w with gradient g, `I = |w g|`. The running means `S = beta1 S + (1 - beta1) I` (sensitivity)
    and `U = beta2 U + (1 - beta2) |I - S|` (uncertainty) give its score `S U`. The score of a singular
    triplet is that of the singular value plus the mean scores of its row of A and its column of B. Singular
    values outside the budget are set to 0; until the last allocation they may grow back.

    The running means are part of the optimiser's state: checkpoints contain them, finished runs do not. Order
    and formulas follow the authors' code and PEFT: weights after the optimiser step, gradients before it. At
    equal scores this class keeps the first triplet, whereas their code drops both.

    Attributes:
        modules: parameters of all modules.
        optim: the Adam optimiser that trains them.
        budget: the schedule.
        beta1, beta2: decay rates of the running means.
    """

    modules: Sequence[Triplets]
    optim: Optimizer
    budget: Budget
    beta1: float = 0.85
    beta2: float = 0.85

    @torch.no_grad()
    def step(self) -> None:
        """Update the running means after an optimiser step, and mask singular values if due."""
        # The optimiser counts the steps, so that a resumed run continues correctly.
        done = int(self._state(self.modules[0].lora_E)["step"])
        if done < max(self.budget.end, 2):  # always after the first step: ranking needs scores
            self._observe()
        if not self.budget.due(done):
            return
        if done <= self.budget.end:
            masks = self._best(self.budget.after(done))
            if done == self.budget.end:
                self._settle(masks)
        else:
            masks = [self._state(m.lora_E)[KEPT] for m in self.modules]
        for module, mask in zip(self.modules, masks, strict=True):
            module.lora_E.mul_(mask)

    def scores(self) -> list[Tensor]:
        """Return the importance of every singular value, one `r`-vector per module."""
        return [
            self._score(m.lora_E).squeeze(1) + self._score(m.lora_A).mean(1) + self._score(m.lora_B).mean(0)
            for m in self.modules
        ]

    def _state(self, weight: Tensor) -> dict[str, Tensor]:
        return self.optim.state[weight]

    def _score(self, weight: Tensor) -> Tensor:
        state = self._state(weight)
        return state[SENSITIVITY] * state[UNCERTAINTY]

    def _observe(self) -> None:
        for weight in (weight for module in self.modules for weight in module):
            state = self._state(weight)
            for name in (SENSITIVITY, UNCERTAINTY):
                state.setdefault(name, torch.zeros_like(weight))
            now = (weight * cast(Tensor, weight.grad)).abs()  # every weight has a gradient
            state[SENSITIVITY].lerp_(now, 1 - self.beta1)
            state[UNCERTAINTY].lerp_((now - state[SENSITIVITY]).abs(), 1 - self.beta2)

    def _best(self, count: int) -> list[Tensor]:
        """Return masks, `r x 1` per module: 1 for the `count` most important singular values, else 0."""
        scores = self.scores()
        order = torch.cat(scores).argsort(descending=True, stable=True)
        chosen = torch.zeros_like(order, dtype=scores[0].dtype)
        chosen[order[:count]] = 1.0
        return [mask.unsqueeze(1) for mask in chosen.split([len(score) for score in scores])]

    def _settle(self, masks: list[Tensor]) -> None:
        """Store the last allocation and delete the running means."""
        for module, mask in zip(self.modules, masks, strict=True):
            for weight in module:
                for name in (SENSITIVITY, UNCERTAINTY):
                    self._state(weight).pop(name, None)
            self._state(module.lora_E)[KEPT] = mask.clone()


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
    """SVI with one AdamW, whose allocator, on the same optimiser, masks singular values after each step."""

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
    optim = adamw(model, guide, train.peak_lr, weight_decay=train.weight_decay)
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
