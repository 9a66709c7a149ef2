"""Which ranks AdaLoRA keeps: importance of singular triplets, the budget's schedule, the mask."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

SENSITIVITY, UNCERTAINTY, KEPT = "sensitivity", "uncertainty", "kept"


class Triplets(NamedTuple):
    """The parameters of one module: A, `r x in`; E, `r x 1`; B, `out x r`."""

    lora_A: Tensor
    lora_E: Tensor
    lora_B: Tensor


@dataclass(frozen=True)
class Budget:
    """How many singular values all modules together may have, by the number of steps done.

    `first` for `start` steps, then down to `last` along a cubic curve, which is reached after `end` steps
    and kept.

    Attributes:
        first, last: singular values before and after.
        start, end: steps.
        interval: steps between two allocations in between.
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

    Of each weight w with gradient g, `I = |w g|`; its running mean `S = beta1 S + (1 - beta1) I`
    (sensitivity) and `U = beta2 U + (1 - beta2) |I - S|` (uncertainty) give the score `S U`. A singular value
    scores its own, plus the means over its row of A and its column of B. Those without a place in the budget
    are set to 0; until the last allocation they may grow back.

    The running means live in the optimiser's state beside Adam's: they are part of every checkpoint and of
    no finished run. Order and formulas are those of the authors' code and of PEFT: the weights are those
    after the optimiser's step, the gradient the one before; at equal scores the first is kept where the
    others drop both.

    Attributes:
        modules: the parameters.
        optim: what trains them, an Adam.
        budget: the schedule.
        beta1, beta2: of the running means.
    """

    modules: Sequence[Triplets]
    optim: Optimizer
    budget: Budget
    beta1: float = 0.85
    beta2: float = 0.85

    @torch.no_grad()
    def step(self) -> None:
        """Observe a step that the optimiser has taken, and mask where it is time to."""
        # Counted by the optimiser: a resumed run goes on where it was.
        done = int(self._state(self.modules[0].lora_E)["step"])
        if done < max(self.budget.end, 2):  # the first step always: there must be something to rank by
            self._observe()
        if not self.budget.due(done):
            return
        if done <= self.budget.end:
            kept = self._best(self.budget.after(done))
            if done == self.budget.end:
                self._settle(kept)
        else:
            kept = [self._state(m.lora_E)[KEPT] for m in self.modules]
        for module, mask in zip(self.modules, kept, strict=True):
            module.lora_E.mul_(mask)

    def scores(self) -> list[Tensor]:
        """Return the importance of every singular value, one `r`-vector a module."""
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
            now = (weight * cast(Tensor, weight.grad)).abs()  # every weight is on the loss's path
            state[SENSITIVITY].lerp_(now, 1 - self.beta1)
            state[UNCERTAINTY].lerp_((now - state[SENSITIVITY]).abs(), 1 - self.beta2)

    def _best(self, count: int) -> list[Tensor]:
        """Return 1 for the `count` most important singular values and 0 for the others, `r x 1` a module."""
        scores = self.scores()
        order = torch.cat(scores).argsort(descending=True, stable=True)
        kept = torch.zeros_like(order, dtype=scores[0].dtype)
        kept[order[:count]] = 1.0
        return [mask.unsqueeze(1) for mask in kept.split([len(score) for score in scores])]

    def _settle(self, kept: list[Tensor]) -> None:
        """Note the last allocation and drop what only served to find it."""
        for module, mask in zip(self.modules, kept, strict=True):
            for weight in module:
                for name in (SENSITIVITY, UNCERTAINTY):
                    self._state(weight).pop(name, None)
            self._state(module.lora_E)[KEPT] = mask.clone()
