"""IVON-LoRA: variational online Newton over LoRA's weights (Cong et al., 2024, arXiv 2411.04421).

    q(w) = Normal(m, 1 / (ess (h + delta)))        for every weight w of A and B
    minimises  E_q[mean cross-entropy] + KL(q || Normal(0, 1 / (ess delta))) / ess

`delta` is `train.weight_decay` (0, a flat prior, in the published scripts). `h` is the running estimate of
the loss's curvature, from `hhat = g (w - m) / sigma^2` with one draw w and its gradient g. If `ess` is the
number of training rows and delta > 0, the objective is the negative ELBO divided by `ess`, and `1 / (ess
delta)` is the prior variance. Published values of `ess` are far larger, which gives a posterior colder than
the exact one.
"""

from functools import partial
from typing import TYPE_CHECKING, Unpack

import torch
from pydantic import Field

from bara_pyro.core.optimizers import parameters
from bara_pyro.core.svi import SVI, SVIOptions
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError
from bara_pyro.guides.posthoc import PosthocGuide
from bara_pyro.methods.base import Fit, Method, MethodConfig, pair, register_method
from bara_pyro.methods.recipes import Training, common
from bara_pyro.models.posthoc import PosthocLoRA

if TYPE_CHECKING:
    from ivon import IVON


BETA1, BETA2 = 0.9, 0.99999  # decay of the running gradient and of the running curvature, as published
HESS_INIT = 1e-3  # initial h; the initial noise scale is 1 / sqrt(ess h)
CLIP_RADIUS = 1e-3  # largest Newton step of a weight before the learning rate is applied, as published


class IVONConfig(MethodConfig):
    """Settings of IVON-LoRA; learning rate (0.03) and delta are `train.lr` and `train.weight_decay`.

    Published values of the initial curvature (`HESS_INIT`) and `ess`: 3e-4 and 1e7 (WinoGrande small, BoolQ),
    3e-4 and 1e8 (WinoGrande medium), 1e-3 and 1e6 (ARC, OpenBookQA), all for 10,000 steps. A step moves a
    weight by at most `train.lr * CLIP_RADIUS`, which is 3e-5 at the published learning rate. For runs of
    about a thousand steps, where AdamW would use 1e-3, set `train.lr` near 0.3 (found on the microworld).
    """

    ess: float = Field(
        1e6, gt=0, description="effective sample size; higher values give less noise and regularisation"
    )


class IVONSVI(SVI[PosthocLoRA, PosthocGuide]):
    """Take gradients at one draw of all weights per step, and update mean and curvature with IVON.

    All micro-batches of a step share the draw, so accumulation changes only the memory of a step. Gradients
    are clipped (`train.clip_norm`) before the curvature is estimated from them.
    """

    optim: "IVON"
    common_noise = True  # all processes share the draw, since the curvature is gradient times noise

    def __init__(
        self, model: PosthocLoRA, guide: PosthocGuide, optim: "IVON", **options: Unpack[SVIOptions]
    ) -> None:
        super().__init__(model, guide, optim, **options)
        site_of = {id(model.weight_of(site)): site for site in model.latents.global_sites}
        self.sites = [site_of[id(p)] for p in self.parameters]

    def gradients(self, *batches: Batch) -> dict[str, float]:
        """Compute the gradients at a posterior draw, then restore the weights to the means."""
        # IVON moves parameters into new memory and does not restore them after an error.
        memory = [p.data for p in self.parameters]
        try:
            with self.optim.sampled_params(train=True):
                return super().gradients(*batches)
        finally:
            self._move_to(memory)

    def update(self) -> None:
        """Update means and curvature, and set the guide's scales."""
        if self.scheduler is not None:
            # IVON's own step count (for bias correction) is not part of its state, so set it here.
            self.optim.current_step = self.scheduler.last_epoch
        memory = [p.data for p in self.parameters]
        self.optim.step()
        with torch.no_grad():
            for home, p in zip(memory, self.parameters, strict=True):
                home.copy_(p)
        self._move_to(memory)
        self._write_scales()

    def _move_to(self, memory: list[torch.Tensor]) -> None:
        """Let the parameters use the given memory, to which other objects refer."""
        for p, home in zip(self.parameters, memory, strict=True):
            p.data = home

    @torch.no_grad()
    def _write_scales(self) -> None:
        (group,) = self.optim.param_groups
        sigma = (group["ess"] * (group["hess"] + group["weight_decay"])).rsqrt()
        sizes = [p.numel() for p in self.parameters]
        for site, scale, p in zip(self.sites, sigma.split(sizes), self.parameters, strict=True):
            self.guide.scale(site).copy_(scale.view_as(p))


def ivon_svi(model: PosthocLoRA, guide: PosthocGuide, train: Training, config: IVONConfig) -> SVI:
    """Return IVON's SVI; a `ConfigError` without the package ivon-opt."""
    try:
        from ivon import IVON
    except ImportError as error:
        raise ConfigError(
            "The method 'ivon' needs the package ivon-opt, which is optional because of its GPL licence: "
            "pip install ivon-opt."
        ) from error
    optim = IVON(
        parameters(model, guide),
        lr=train.peak_lr,
        ess=config.ess,
        hess_init=HESS_INIT,
        beta1=BETA1,
        beta2=BETA2,
        weight_decay=train.weight_decay,
        clip_radius=CLIP_RADIUS,
        rescale_lr=False,
    )
    return IVONSVI(model, guide, optim, **common(optim, train))


def fit_ivon(fit: Fit[PosthocLoRA, PosthocGuide, IVONConfig]) -> dict[str, float]:
    """Mark the posterior as fitted; return the mean, smallest and largest standard deviation of a weight."""
    fit.model.mark_fitted()
    scales = torch.cat([fit.guide.scale(site).flatten() for site in fit.model.latents.global_sites])
    return {
        "mean_scale": float(scales.mean()),
        "min_scale": float(scales.min()),
        "max_scale": float(scales.max()),
    }


register_method(
    Method(
        "ivon",
        "IVON-LoRA: variational online Newton (arXiv 2411.04421); needs ivon-opt",
        IVONConfig,
        pair(partial(PosthocLoRA, random="AB"), PosthocGuide),
        train={"lr": 0.03},
        svi=ivon_svi,
        finish=fit_ivon,
        peft=True,
    )
)
