"""Stochastic variational inference with one torch optimiser over all parameters of model and guide."""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, NamedTuple, TypedDict, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from bara_pyro.core.elbo import ElboTerms, MeanFieldELBO
from bara_pyro.core.guide import SiteGuide, check_guide
from bara_pyro.core.handlers import PROGRAM
from bara_pyro.core.latents import Site
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError, TrainingError
from bara_pyro.processes import Ranks

M = TypeVar("M", bound=AdaptedLM)
G = TypeVar("G", bound=SiteGuide)


class SVIOptions(TypedDict, total=False):
    """What every inference is told beside its model, guide and optimiser; see `SVI`."""

    loss: MeanFieldELBO | None
    scheduler: LRScheduler | None
    clip_norm: float | None
    autocast: torch.dtype | None


class SVI(Generic[M, G]):
    """What `pyro.infer.SVI` is, for adapters: `step` and `evaluate_loss`, one optimiser, one forward a step.

    Pyro's class (which works on the same model and guide) keeps one optimiser a parameter and so cannot clip
    the joint norm, accumulate gradients or follow one schedule; it accepts no optimiser that can.

    Args:
        model, guide: the program and its guide.
        optim: a torch optimiser over `parameters(model, guide)`; see `adamw`.
        loss: the ELBO.
        scheduler: stepped after each optimiser step.
        clip_norm: joint gradient norm to clip to, or None.
        autocast: dtype of the backbone's matrix products under `torch.autocast`, or None.

    Raises:
        ConfigError: the guide is another model's, the optimiser is none of torch's or holds nothing of the
            guide, the loss is no `MeanFieldELBO`, or `clip_norm` is not above 0.

    Examples:
        >>> import bara_pyro as bp
        >>> backbone, task = bp.load_backbone("microworld"), bp.load_task("micro-wgs")
        >>> answers = bp.answer_token_ids(backbone.tokenizer, task.labels)
        >>> rows = bp.encode(task.train[:8], backbone.tokenizer)
        >>> model = bp.models.BaRA(backbone, num_data=len(rows), form="gate")
        >>> guide = bp.guides.WeibullGuide(model)
        >>> svi = bp.SVI(model, guide, bp.adamw(model, guide, lr=1e-3))
        >>> losses = [svi.step(rows.batch(range(8), answers)) for step in range(20)]
        >>> losses[-1] < losses[0]
        True
        >>> sorted(svi.last)
        ['grad_norm', 'kl_phi', 'kl_theta', 'loss', 'nll']
    """

    # Whether parameters are left out of the optimiser on purpose.
    spares = False
    # Whether the noise of several processes must be the same: a draw that the whole step is about.
    common_noise = False

    def __init__(
        self,
        model: M,
        guide: G,
        optim: Optimizer,
        loss: MeanFieldELBO | None = None,
        *,
        scheduler: LRScheduler | None = None,
        clip_norm: float | None = None,
        autocast: torch.dtype | None = None,
    ) -> None:
        check_guide(guide, model)
        if not isinstance(optim, Optimizer):
            raise ConfigError(
                f"The optimiser is a {type(optim).__name__}: give one of torch, such as bp.adamw(model, "
                "guide, lr=1e-3). Those of Pyro go with pyro.infer.SVI."
            )
        if loss is not None and not isinstance(loss, MeanFieldELBO):
            raise ConfigError(f"The loss is a {type(loss).__name__}: give a bp.MeanFieldELBO.")
        if clip_norm is not None and not clip_norm > 0:
            raise ConfigError(f"clip_norm={clip_norm} must be above 0, or None.")
        if not self.spares:
            check_holds_guide(guide, optim)
        self.model = model
        self.guide = guide
        self.optim = optim
        self.elbo = loss if loss is not None else MeanFieldELBO()
        self.scheduler = scheduler
        self.clip_norm = clip_norm
        self.autocast = autocast
        self.parameters = parameters(model, guide)
        self.ranks: Ranks | None = (
            None  # the processes that gradients are averaged over, if there are several
        )
        # What stands for `gradients`, to the same bits: see `bara_pyro.fast.capture`.
        self.replayed: Callable[..., dict[str, float]] | None = None
        self.last: dict[str, float] = {}

    def step(self, *batches: Batch) -> float:
        """Take one optimiser step on the union of the given (micro-)batches.

        Args:
            batches: one batch, or several whose gradients are accumulated: the step equals that of one batch
                with all their rows, unless the objective averages over the tokens of a batch, as that of
                FVAE's official code does (`recipe: reproduction`).

        Returns:
            The negative ELBO estimate of the whole data set, in nats. `self.last` holds its parts in nats
            per example (`loss`, `nll`, `kl_theta`), `kl_phi` in nats, and the gradient norm.

        Raises:
            ConfigError: there is no batch.
            BackboneError: the language model is in training mode, or a program hangs on it.
            TrainingError: loss or gradient is not finite; the parameters are left as they were.
        """
        if not batches:
            raise ConfigError("A step needs at least one batch.")
        self.model.backbone.check()
        with PROGRAM:
            parts = (self.replayed or self.gradients)(*batches)
        self.update()
        if self.scheduler is not None:
            self.scheduler.step()
        self.last = parts
        return parts["loss"] * self.model.num_data

    def gradients(self, *batches: Batch) -> dict[str, float]:
        """Leave the finite, clipped gradients of the given (micro-)batches in `.grad`; return `self.last`.

        Raises:
            TrainingError: loss or gradient is not finite.
        """
        for parameter in self.parameters:  # also those that the optimiser does not hold (`TwoStepSVI`)
            parameter.grad = None
        rows = sum(len(batch) for batch in batches)
        parts: dict[str, float] = {}
        for batch in batches:
            share = len(batch) / rows
            terms = self.terms(batch)
            own = per_example(self.model, terms, len(batch))
            if self.ranks is None:
                check_finite(own["loss"], terms)
            self.backward(terms, share)
            for key, value in own.items():
                parts[key] = parts.get(key, 0.0) + share * value
        if self.ranks is not None:
            parts = self.ranks.average(self.accumulated(), parts)
            if not math.isfinite(parts["loss"]):  # of all processes, so that all of them stop here
                raise TrainingError(
                    f"The loss is {parts['loss']}: lower the learning rate, or set a clipping norm."
                )
        norm = self.norm()
        return {**parts, "grad_norm": self.clipped(norm, float(norm))}

    def norm(self) -> Tensor:
        """Return the joint norm of the gradients."""
        return nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])

    def clipped(self, norm: Tensor, size: float) -> float:
        """Clip the gradients, whose joint norm is `norm`, that is `size`; return it.

        Raises:
            TrainingError: it is not finite.
        """
        if not math.isfinite(size):
            raise TrainingError(
                f"The gradient of {self._non_finite_gradient()} is not finite: "
                "lower the learning rate, or set a clipping norm."
            )
        if self.clip_norm is not None:
            nn.utils.clip_grads_with_norm_(self.parameters, self.clip_norm, norm)
        return size

    def terms(self, batch: Batch) -> ElboTerms:
        """Evaluate the bound of a batch, with the backbone's products in the chosen type."""
        with self._autocast(batch.input_ids.device):
            return self.elbo.terms(self.model, self.guide, batch)

    def backward(self, terms: ElboTerms, share: float) -> None:
        """Add the gradients of one micro-batch, which is the share `share` of the step's rows.

        The loss is taken per example, so that clipping and the optimiser's epsilon do not depend on the size
        of the data. With `update`, what a method with a training scheme of its own overrides.
        """
        # Filled where it lies: a number from the host would be waited for, and no graph could hold it.
        terms.loss.backward(torch.full_like(terms.loss, share / self.model.num_data))

    def accumulated(self) -> list[Tensor]:
        """Return what `backward` adds to, which is linear in the rows: what processes average."""
        return [p.grad for p in self.parameters if p.grad is not None]

    def update(self) -> None:
        """Move the parameters along their gradients, which are finite and clipped."""
        self.optim.step()

    def evaluate_loss(self, *batches: Batch) -> float:
        """Return the negative ELBO of the union of the given batches, in nats, without a step.

        Raises:
            ConfigError: there is no batch.
            BackboneError: the language model is in training mode, or a program hangs on it.
        """
        if not batches:
            raise ConfigError("A loss needs at least one batch.")
        self.model.backbone.check()
        rows = sum(len(batch) for batch in batches)
        total = 0.0
        for batch in batches:
            with PROGRAM, torch.no_grad():
                total += len(batch) / rows * self.terms(batch).loss.item()
        return total

    def _autocast(self, device: torch.device) -> AbstractContextManager:
        return nullcontext() if self.autocast is None else torch.autocast(device.type, self.autocast)

    def _non_finite_gradient(self) -> str:
        for module in (self.model, self.guide):
            for name, value in module.named_parameters():
                if value.grad is not None and not value.grad.isfinite().all():
                    return name
        return "some parameter"


def check_finite(loss: float, terms: ElboTerms) -> None:
    """Raise `TrainingError` where a loss is not finite, with the parts of its terms that are not."""
    if math.isfinite(loss):
        return
    sites = [f"KL of {site}" for site, kl in terms.kl.items() if not kl.isfinite()]
    sites += [site for site, value in terms.extra.items() if not value.isfinite()]
    where = ", ".join(sites) or "likelihood of y"
    raise TrainingError(
        f"The loss is {terms.loss.item()} ({where}): lower the learning rate, or set a clipping norm."
    )


class Part(NamedTuple):
    """One number of a bound: it is logged under `key`, divided by `share`."""

    key: str
    share: float
    value: Tensor


def parts_of(model: AdaptedLM, terms: ElboTerms, rows: int) -> list[Part]:
    """Return the numbers of a bound, on its device; see `per_example`."""
    n, latents = model.num_data, model.latents
    found = [Part("loss", n, terms.loss.detach()), Part("nll", n, terms.nll.detach())]
    sites = [("kl_", latents.sites[name], kl) for name, kl in terms.kl.items()]
    # What a program does not declare is taken for a factor of the whole.
    sites += [("", latents.auxiliary.get(name, Site(name)), v) for name, v in terms.extra.items()]
    return found + [
        Part(prefix + site.family, rows if site.local else 1, v.detach()) for prefix, site, v in sites
    ]


def logged(parts: Sequence[Part], numbers: Sequence[float]) -> dict[str, float]:
    """Return the sums of numbers by their parts' keys, each divided by its share."""
    sums: dict[str, float] = {}
    for part, number in zip(parts, numbers, strict=True):
        sums[part.key] = sums.get(part.key, 0.0) + number / part.share
    return sums


def per_example(model: AdaptedLM, terms: ElboTerms, rows: int) -> dict[str, float]:
    """Return the parts of a bound as they are logged.

    Args:
        model: the program.
        terms: of a batch.
        rows: in the batch.

    Returns:
        In nats per example `loss`, `nll` and what is local (`kl_theta`), in nats what is global (`kl_phi`).
    """
    parts = parts_of(model, terms, rows)
    # In one copy off the device, however many sites there are.
    return logged(parts, torch.stack([part.value for part in parts]).tolist())


def parameters(model: AdaptedLM, guide: SiteGuide) -> list[Tensor]:
    """Return the trainable parameters of model and guide (none of the backbone's)."""
    return [p for module in (model, guide) for p in module.parameters() if p.requires_grad]


def check_holds_guide(guide: SiteGuide, optim: Optimizer) -> None:
    """Refuse an optimiser that would leave the whole posterior where it is, with a `ConfigError`.

    One that leaves out the program's own parameters fits the posterior of fixed weights.
    """
    held = {id(p) for group in optim.param_groups for p in group["params"]}
    own = [value for value in guide.parameters() if value.requires_grad]
    if own and not any(id(value) in held for value in own):
        raise ConfigError(
            f"The optimiser holds no parameter of the {type(guide).__name__}, which would never be fitted: "
            "make it of bara_pyro.core.svi.parameters(model, guide), or set requires_grad_(False) on these."
        )


def adamw(
    model: AdaptedLM,
    guide: SiteGuide,
    lr: float,
    *,
    local_lr_scale: float | None = None,
    weight_decay: float = 0.0,
    eps: float = 1e-6,
) -> AdamW:
    """Return one AdamW over model and guide, with the field's settings (betas default, eps 1e-6).

    Args:
        model: the program.
        guide: its guide.
        lr: learning rate.
        local_lr_scale: the amortiser's rate as a share of `lr`. By default 0.1 where its gates modulate the
            projections of the model (the gate form): under Adam a weight moves by its rate a step however
            weak its gradient, and at the full rate gates wander faster than what they multiply can follow
            (docs/decisions.md, record 5). Else 1: in the additive form the amortiser is the down-projection.
        weight_decay: decoupled.
        eps: Adam's epsilon.

    Examples:
        >>> import bara_pyro as bp
        >>> model = bp.models.BaRA(bp.load_backbone("microworld"), num_data=8, form="gate")
        >>> optim = bp.adamw(model, bp.guides.WeibullGuide(model), lr=1e-3)
        >>> [group["lr"] for group in optim.param_groups]  # of the amortised gates a tenth
        [0.001, 0.0001]
    """
    if local_lr_scale is None:
        local_lr_scale = 0.1 if model.latents.modulating else 1.0
    local = {id(p) for p in guide.local_parameters()}
    groups: list[dict[str, object]] = [
        {"params": [p for p in parameters(model, guide) if id(p) not in local]},
        {"params": guide.local_parameters(), "lr": lr * local_lr_scale},
    ]
    groups = [group for group in groups if group["params"]]
    return AdamW(groups, lr=lr, weight_decay=weight_decay, eps=eps, fused=True)


def linear_schedule(optim: Optimizer, steps: int, warmup: float = 0.06) -> LambdaLR:
    """Return a linear warm-up over the share `warmup` of all steps, then a linear decay to 0.

    Args:
        optim: whose rates are scheduled; each group's own is the highest.
        steps: of the training, at the end of which the rate is 0.
        warmup: share of the steps, 0 to 1.

    Raises:
        ConfigError: a number is out of range.

    Examples:
        >>> import bara_pyro as bp
        >>> import torch
        >>> optim = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
        >>> schedule = bp.linear_schedule(optim, steps=10, warmup=0.2)
        >>> rates = []
        >>> for step in range(10):
        ...     rates.append(round(optim.param_groups[0]["lr"], 3))
        ...     optim.step()
        ...     schedule.step()
        >>> rates
        [0.5, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]
    """
    if steps < 1 or not 0 <= warmup <= 1:
        raise ConfigError(f"steps={steps} must be at least 1 and warmup={warmup} a share from 0 to 1.")
    rise = max(1, round(warmup * steps))

    def factor(step: int) -> float:
        if step < rise:
            return (step + 1) / rise
        return max(0.0, (steps - step) / max(1, steps - rise))

    return LambdaLR(optim, factor)
