"""Optimisers over model and guide, and their learning-rate schedule."""

from torch import Tensor
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from bara_pyro.core.guide import SiteGuide, check_guide
from bara_pyro.core.program import AdaptedLM
from bara_pyro.errors import ConfigError


def parameters(model: AdaptedLM, guide: SiteGuide) -> list[Tensor]:
    """Return the trainable parameters of model and guide, without the backbone."""
    return [p for module in (model, guide) for p in module.parameters() if p.requires_grad]


def held_by(optim: Optimizer) -> list[Tensor]:
    """Return the tensors that an optimiser holds."""
    return [p for group in optim.param_groups for p in group["params"]]


def check_holds_guide(guide: SiteGuide, optim: Optimizer) -> None:
    """Raise a `ConfigError` if an optimiser would fit none of the guide's trainable parameters.

    An optimiser without the program's parameters is allowed: it fits a posterior with fixed weights.
    """
    trainable = {value for value in guide.parameters() if value.requires_grad}
    if trainable and trainable.isdisjoint(held_by(optim)):
        raise ConfigError(
            f"The optimiser has no parameters of the {type(guide).__name__}: pass "
            "bara_pyro.core.optimizers.parameters(model, guide), or freeze the guide with "
            "requires_grad_(False)."
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
    """Return one AdamW over the trainable parameters of model and guide, with torch's default betas.

    Args:
        model: the program.
        guide: its guide.
        lr: peak learning rate.
        local_lr_scale: learning rate of the amortiser as a share of `lr`; None: 0.1 in the gate form, else 1.
            Under Adam a weight moves by about its learning rate per step, however weak its gradient; at the
            full rate the gates change faster than the projections that they multiply can follow
            (docs/decisions.md, record 5). In the additive form the amortiser replaces the down-projection and
            needs the full rate.
        weight_decay: decoupled weight decay.
        eps: Adam's epsilon.

    Raises:
        ConfigError: the model is a function or inside a handler, or the guide is not a guide of this model.

    Examples:
        >>> import bara_pyro as bp
        >>> model = bp.models.BaRA(bp.load_backbone("microworld"), num_data=8, form="gate")
        >>> optim = bp.adamw(model, bp.guides.WeibullGuide(model), lr=1e-3)
        >>> [group["lr"] for group in optim.param_groups]  # the amortised gates get a tenth
        [0.001, 0.0001]
    """
    if not isinstance(model, AdaptedLM):
        raise ConfigError(
            f"The model is a {type(model).__name__}: pass the program itself, or fit a function that calls "
            "it with pyro.infer.SVI and an optimiser of pyro.optim."
        )
    check_guide(guide, model)
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
        optim: optimiser to schedule; each group's learning rate is its peak.
        steps: number of training steps, after which the learning rate is 0.
        warmup: share of the steps used for the warm-up, 0 to 1.

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
        raise ConfigError(f"steps={steps} must be at least 1, and warmup={warmup} from 0 to 1.")
    rise = max(1, round(warmup * steps))

    def factor(step: int) -> float:
        if step < rise:
            return (step + 1) / rise
        return max(0.0, (steps - step) / max(1, steps - rise))

    return LambdaLR(optim, factor)
