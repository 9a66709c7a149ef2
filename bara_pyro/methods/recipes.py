"""Training recipes: one optimiser on the ELBO, or the two-step scheme of published methods."""

import math
from typing import Any, Literal, Protocol, Unpack

import torch
from torch import Tensor
from torch.optim import Optimizer

from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.optimizers import adamw, linear_schedule
from bara_pyro.core.program import AdaptedLM
from bara_pyro.core.svi import SVI, SVIOptions
from bara_pyro.core.terms import ElboTerms
from bara_pyro.data.types import Batch
from bara_pyro.lm.loading import DTYPES
from bara_pyro.settings import Unread

Recipe = Literal["elbo", "reproduction"]
OF_ELBO = Unread("recipe", ("reproduction",))


class Training(Protocol):
    """Protocol: settings of training that all methods share, the section `train` of a configuration."""

    @property
    def total_steps(self) -> int: ...  # noqa: D102
    @property
    def batch_size(self) -> int: ...  # noqa: D102
    @property
    def peak_lr(self) -> float: ...  # noqa: D102
    @property
    def local_lr_scale(self) -> float | None: ...  # noqa: D102
    @property
    def warmup(self) -> float: ...  # noqa: D102
    @property
    def weight_decay(self) -> float: ...  # noqa: D102
    @property
    def clip_norm(self) -> float | None: ...  # noqa: D102
    @property
    def autocast(self) -> str | None: ...  # noqa: D102
    @property
    def sampled_kl(self) -> bool: ...  # noqa: D102


def default_svi(
    model: AdaptedLM, guide: SiteGuide, train: Training, config: object, *, kind: type[SVI] = SVI
) -> SVI:
    """Return an SVI with one AdamW on the negative ELBO, with linear warm-up and decay.

    `train` is the section of a configuration; `config`, the settings of the method, is not used here.
    """
    optim = adamw(
        model, guide, train.peak_lr, local_lr_scale=train.local_lr_scale, weight_decay=train.weight_decay
    )
    return kind(model, guide, optim, **common(optim, train))


def common(optim: Optimizer, train: Training) -> SVIOptions:
    """Return the arguments of `SVI` that the section `train` sets for any optimiser."""
    return {
        "loss": MeanFieldELBO(sampled_kl=train.sampled_kl),
        "scheduler": linear_schedule(optim, train.total_steps, train.warmup),
        "clip_norm": train.clip_norm,
        "autocast": None if train.autocast is None else DTYPES[train.autocast],
    }


class TwoStepSVI(SVI):
    """Two-step training of BLoB and related methods: AdamW on the likelihood, then descent on the KL.

    First the optimiser minimises `nll_weight` times the mean cross-entropy. Then every parameter moves by
    `-kl_lr * m_t * pi_i * kl_weight * dKL`, with the optimiser's warm-up and decay `m_t`. The weights
    `pi_i = 2^i / (2^(cycle + 1) - 1)`, with i from 1 to `cycle` in turn, sum to about 1 per cycle. The KL is
    in nats; global sites count once, local ones are summed over the rows and tokens of the batch.

    This does not minimise the negative ELBO; it reproduces published figures. Both gradients are taken at the
    start of the step, whereas the public code of BLoB and ScalaBL takes the KL's after the first half.

    Args:
        model, guide, optim: as for `SVI`. Parameters outside `optim` are moved only by the second step, which
            then also follows the gradient of the likelihood (as in the published BLoB and C-LoRA code).
        kl_lr: learning rate of the second step.
        cycle: number of steps in a cycle of KL weights; see `kl_cycle`.
        kl_weight, nll_weight: constants of the published objectives.
        joint: whether the optimiser follows the gradient of likelihood and weighted KL together, and the
            second step moves only the parameters outside the optimiser (as in the published C-LoRA code).
        **options: options of `SVI`.
    """

    spares = True

    def __init__(
        self,
        model: AdaptedLM,
        guide: SiteGuide,
        optim: Optimizer,
        *,
        kl_lr: float,
        cycle: int,
        kl_weight: float = 1.0,
        nll_weight: float = 1.0,
        joint: bool = False,
        **options: Unpack[SVIOptions],
    ) -> None:
        super().__init__(model, guide, optim, **options)
        self.kl_lr = kl_lr
        self.cycle = cycle
        self.kl_weight = kl_weight
        self.nll_weight = nll_weight
        self.joint = joint
        in_optim = {id(p) for group in optim.param_groups for p in group["params"]}
        self._alone = [id(p) not in in_optim for p in self.parameters]
        self._kl_grads: list[Tensor] = []

    def step(self, *batches: Batch) -> float:
        """Take one optimiser step and one step on the KL; see `SVI.step`."""
        self._kl_grads = [torch.zeros_like(p) for p in self.parameters]
        return super().step(*batches)

    def backward(self, terms: ElboTerms, share: float) -> None:
        """Add the likelihood's gradient to `.grad`, and the KL's to a separate sum (`.grad` if joint)."""
        kl = torch.stack([self._kl(site, terms, share) for site in terms.kl]).sum()
        nll = terms.nll * (self.nll_weight * share / self.model.num_data)
        if self.joint:
            (nll + self._weight() * kl).backward()
            return
        grads = torch.autograd.grad(kl, self.parameters, retain_graph=True, allow_unused=True)
        for total, grad in zip(self._kl_grads, grads, strict=True):
            if grad is not None:
                total.add_(grad)
        nll.backward()

    def accumulated(self) -> list[Tensor]:
        """Return both gradients."""
        return [*super().accumulated(), *self._kl_grads]

    def _kl(self, site: str, terms: ElboTerms, share: float) -> Tensor:
        """Return a micro-batch's part of a site's KL.

        The KL of a local site is a sum over rows. Each process has different rows, and gradients are averaged
        afterwards, so it is multiplied by the number of processes.
        """
        kl = terms.kl[site].to(terms.nll.dtype)
        if site not in self.model.latents.local_sites:
            return kl * share
        return kl * (self.ranks.size if self.ranks else 1)

    def _weight(self) -> float:
        """Return the weight of the KL in this step."""
        # The scheduler's count is in a checkpoint, so that a resumed run continues correctly.
        done = 0 if self.scheduler is None else self.scheduler.last_epoch
        return kl_share(1 + done % self.cycle, self.cycle) * self.kl_weight

    @torch.no_grad()
    def update(self) -> None:
        """Take both steps."""
        group = self.optim.param_groups[0]
        rate = self.kl_lr * group["lr"] / group.get("initial_lr", group["lr"])
        weight = self._weight()
        self.optim.step()
        for p, kl, alone in zip(self.parameters, self._kl_grads, self._alone, strict=True):
            if alone and p.grad is not None:
                p.add_(p.grad, alpha=-rate)
            p.add_(kl, alpha=-rate * weight)


def kl_share(i: int, cycle: int) -> float:
    """Return `pi_i = 2^i / (2^(cycle + 1) - 1)`, the weight of the KL in step i (1 to `cycle`) of a cycle."""
    # For large data sets 2^(cycle + 1) would overflow a float; most of these weights are 0 anyway.
    return 2.0 ** (i - cycle - 1) / (1 - 2.0 ** -(cycle + 1))


def alternating(
    model: AdaptedLM, guide: SiteGuide, optim: Optimizer, train: Training, **options: Any
) -> TwoStepSVI:
    """Return a `TwoStepSVI` with these options and the cycle for the model's number of rows."""
    cycle = kl_cycle(model.num_data, train.batch_size)
    return TwoStepSVI(model, guide, optim, cycle=cycle, **options, **common(optim, train))


def kl_cycle(num_data: int, batch_size: int, gamma: float = 8.0) -> int:
    """Return the number of steps in a cycle, `int(100 N^(pi / gamma) / b)` (BLoB's "dataset rescaling")."""
    return max(1, int(100 * num_data ** (math.pi / gamma) / batch_size))
