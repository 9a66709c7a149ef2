"""Laplace-LoRA (Yang et al., ICLR 2024, arXiv 2308.13111)."""

import time
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from bara_pyro.core.backbone import Backbone
from bara_pyro.data import batches
from bara_pyro.guides.laplace import LaplaceGuide, Optimiser, Predictive, Subset
from bara_pyro.methods.base import Method, MethodConfig, register_method
from bara_pyro.methods.kfac import Tokens
from bara_pyro.methods.space import RATES, SearchSpace
from bara_pyro.models.gaussian_lora import GaussianLoRA

if TYPE_CHECKING:
    from bara_pyro.runs.system import System


class LaplaceConfig(MethodConfig):
    """Settings of Laplace-LoRA."""

    base: Literal["mle", "map"] = Field(
        "mle",
        description="training: 'mle' (with train.weight_decay=0.01 the decay that papers call MAP) or 'map'",
    )
    prior_scale: PositiveFloat = Field(0.4, description="'map': standard deviation of the prior in training")
    subset: Subset = Field("all", description="'all' adapters, or 'last': that of the output embedding")
    predictive: Predictive = Field(
        "glm", description="'glm': linearised; 'probit': without draws; 'sampled': draws of the weights"
    )
    logit_samples: PositiveInt = Field(
        5000, description="'glm': draws of the logits a row; as published 100000"
    )
    prior_precision: PositiveFloat | None = Field(
        None, description="precision of the prior in the fit; null: that of greatest evidence"
    )
    optimiser: Optimiser = Field(
        "bisection", description="of the evidence; 'adam': 100 steps from precision 1, as published"
    )
    tokens: Tokens = Field(
        "mean", description="input factors: 'mean' over tokens; 'sum', as published, overcounts them"
    )
    max_gigabytes: PositiveFloat = Field(16.0, description="most memory that the factors may take")
    batch_size: PositiveInt = Field(8, description="rows a pass of the fit")


def _build(
    backbone: Backbone, num_data: int, adapter: dict[str, Any], config: LaplaceConfig
) -> tuple[GaussianLoRA, LaplaceGuide]:
    model = GaussianLoRA(
        backbone,
        num_data,
        random="AB",
        prior_scale=config.prior_scale,
        beta=1.0 if config.base == "map" else 0.0,
        **adapter,
    )
    guide = LaplaceGuide(
        model,
        subset=config.subset,
        mode=config.predictive,
        logit_samples=config.logit_samples,
        tokens=config.tokens,
        max_gigabytes=config.max_gigabytes,
    )
    return model, guide


def _check(system: "System") -> None:
    """Refuse factors that are too large before training rather than after it."""
    system.guide.check_size(len(system.answer_ids))


def _finish(system: "System") -> dict[str, float]:
    """Fit the approximation to the training rows."""
    started = time.perf_counter()
    config: Any = system.config.method
    rows = batches(system.split("train"), system.answer_ids, config.batch_size, by_length=True)
    figures = system.guide.fit(
        [batch.to(system.backbone.device) for batch in rows],
        prior_precision=config.prior_precision,
        optimiser=config.optimiser,
    )
    return {**figures, "fit_seconds": round(time.perf_counter() - started, 3)}


register_method(
    Method(
        "laplace",
        "Laplace-LoRA: Kronecker-factored Gaussian around LoRA, linearised (arXiv 2308.13111)",
        LaplaceConfig,
        _build,
        finish=_finish,
        check=_check,
        peft=True,
        display="Laplace",
        order=5,
        tags=frozenset({"paper", "main"}),
        search=SearchSpace(RATES, "method.prior_precision", (100.0, 1000.0)),
    )
)
