"""Stochastic variational inference (SVI) with one torch optimiser for all parameters of model and guide."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Generic, TypedDict, TypeVar

import torch
from pyro.infer import Trace_ELBO
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.core.guide import SiteGuide, check_guide
from bara_pyro.core.handlers import PROGRAM
from bara_pyro.core.optimizers import check_holds_guide, held_by, parameters
from bara_pyro.core.program import AdaptedLM
from bara_pyro.core.terms import ElboTerms, check_elbo, check_finite, loss_alone, per_example
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError, TrainingError
from bara_pyro.processes import Ranks

M = TypeVar("M", bound=AdaptedLM)
G = TypeVar("G", bound=SiteGuide)


class SVIOptions(TypedDict, total=False):
    """Options of every inference class besides model, guide and optimiser; see `SVI`."""

    loss: Trace_ELBO | None
    scheduler: LRScheduler | None
    clip_norm: float | None
    autocast: torch.dtype | None


class SVI(Generic[M, G]):
    """SVI for adapters, like `pyro.infer.SVI`: `step` and `evaluate_loss`, with one forward pass per step.

    Pyro's class works on the same model and guide, with one optimiser per parameter. Only this class clips
    the joint gradient norm, accumulates gradients and follows one schedule.

    Args:
        model, guide: the program and its guide.
        optim: a torch optimiser over `parameters(model, guide)`, see `adamw`; it may hold more tensors.
        loss: the ELBO, `MeanFieldELBO()` by default. With Pyro's `TraceMeanField_ELBO` or `Trace_ELBO`,
            `last` has no KL terms, and its `nll` is NaN.
        scheduler: stepped after each optimiser step.
        clip_norm: joint gradient norm to clip to, or None.
        autocast: dtype of the backbone's matrix products under `torch.autocast`, or None.

    Raises:
        ConfigError: the guide belongs to another model, the optimiser is not a torch optimiser or has no
            parameters of the guide, the loss is not such an ELBO, or `clip_norm` is not above 0.

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

    # Whether the optimiser may lack parameters on purpose.
    spares = False
    # Whether several processes must use the same noise, because the whole step depends on one draw.
    common_noise = False

    def __init__(
        self,
        model: M,
        guide: G,
        optim: Optimizer,
        loss: Trace_ELBO | None = None,
        *,
        scheduler: LRScheduler | None = None,
        clip_norm: float | None = None,
        autocast: torch.dtype | None = None,
    ) -> None:
        check_guide(guide, model)
        if not isinstance(optim, Optimizer):
            raise ConfigError(
                f"The optimiser is a {type(optim).__name__}: pass a torch optimiser, such as bp.adamw(model, "
                "guide, lr=1e-3), or use pyro.infer.SVI (docs/swap.md)."
            )
        check_elbo(loss)
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
        self.parameters = [*dict.fromkeys([*parameters(model, guide), *held_by(optim)])]
        self.ranks: Ranks | None = None  # with several processes: those that average their gradients
        # A replacement of `gradients` with bitwise equal results: see `bara_pyro.fast.capture`.
        self.replayed: Callable[..., dict[str, float]] | None = None
        self.last: dict[str, float] = {}

    def step(self, *batches: Batch) -> float:
        """Take one optimiser step on the union of the given (micro-)batches.

        Args:
            batches: one batch, or several whose gradients are accumulated. The step equals that of one batch
                with all their rows, unless the objective averages over the tokens of a batch, as FVAE's
                official code does (`recipe: reproduction`).

        Returns:
            The negative ELBO estimate of the whole data set, in nats. `self.last` holds its parts: `loss`,
            `nll` and `kl_theta` in nats per example, `kl_phi` in nats, and the gradient norm.

        Raises:
            ConfigError: there is no batch.
            BackboneError: the language model is in training mode, or another program is attached to it.
            TrainingError: loss or gradient is not finite; the parameters are not changed.
        """
        if not batches:
            raise ConfigError("SVI.step received no batch: pass at least one.")
        self.model.backbone.check()
        with PROGRAM:
            parts = (self.replayed or self.gradients)(*batches)
        self.update()
        if self.scheduler is not None:
            self.scheduler.step()
        self.last = parts
        return parts["loss"] * self.model.num_data

    def gradients(self, *batches: Batch) -> dict[str, float]:
        """Compute the clipped gradients of the given (micro-)batches in `.grad`; return `self.last`.

        Raises:
            TrainingError: loss or gradient is not finite.
        """
        for parameter in self.parameters:  # also parameters outside the optimiser (`TwoStepSVI`)
            parameter.grad = None
        rows = sum(len(batch) for batch in batches)
        parts: dict[str, float] = {}
        for batch in batches:
            share = len(batch) / rows
            terms = self.terms(batch)
            values = per_example(self.model, terms, len(batch))
            if self.ranks is None:
                check_finite(values["loss"], terms)
            self.backward(terms, share)
            for key, value in values.items():
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
        """Clip the gradients to `clip_norm`; return their joint norm before clipping.

        Both arguments are the joint norm, as a tensor and as a number.

        Raises:
            TrainingError: the norm is not finite.
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
        """Return the ELBO terms of a batch, computed under `autocast` if set."""
        device = batch.input_ids.device.type
        with nullcontext() if self.autocast is None else torch.autocast(device, self.autocast):
            if isinstance(self.elbo, MeanFieldELBO):
                return self.elbo.terms(self.model, self.guide, batch)
            return loss_alone(self.elbo, self.model, self.guide, batch)

    def backward(self, terms: ElboTerms, share: float) -> None:
        """Add the gradients of one micro-batch with the share `share` of the step's rows.

        The loss is per example, so that clipping and the optimiser's epsilon do not depend on the size of the
        data set. Methods with their own training scheme override this method and `update`.
        """
        # Filled on the device: a number from the host would synchronise and could not be captured in a graph.
        terms.loss.backward(torch.full_like(terms.loss, share / self.model.num_data))

    def accumulated(self) -> list[Tensor]:
        """Return the tensors that `backward` adds to; they are linear in the rows and can be averaged."""
        return [p.grad for p in self.parameters if p.grad is not None]

    def update(self) -> None:
        """Apply the clipped gradients to the parameters."""
        self.optim.step()

    def evaluate_loss(self, *batches: Batch) -> float:
        """Return the negative ELBO of the union of the given batches, in nats, without a step.

        Raises:
            ConfigError: there is no batch.
            BackboneError: the language model is in training mode, or another program is attached to it.
        """
        if not batches:
            raise ConfigError("SVI.evaluate_loss received no batch: pass at least one.")
        self.model.backbone.check()
        rows = sum(len(batch) for batch in batches)
        total = 0.0
        for batch in batches:
            with PROGRAM, torch.no_grad():
                total += len(batch) / rows * self.terms(batch).loss.item()
        return total

    def _non_finite_gradient(self) -> str:
        for module in (self.model, self.guide):
            for name, value in module.named_parameters():
                if value.grad is not None and not value.grad.isfinite().all():
                    return name
        return "some parameter"
