"""LoRA by maximum likelihood, with the weight decay that papers call MAP, and with a Gaussian prior."""

from functools import partial

from pydantic import Field, NonNegativeFloat

from bara_pyro.guides.delta import DeltaGuide
from bara_pyro.guides.point import PointGuide
from bara_pyro.methods.base import AS_IT_IS, Method, MethodConfig, pair, register_method, setting
from bara_pyro.models.gaussian_lora import GaussianLoRA
from bara_pyro.models.lora import LoRA

register_method(
    Method(
        "lora",
        "LoRA by maximum likelihood (Hu et al., 2022)",
        MethodConfig,
        pair(LoRA, DeltaGuide),
        peft=True,
        start=AS_IT_IS,
    )
)


class PriorConfig(MethodConfig):
    """Settings of `map_prior`."""

    prior_scale: float = Field(
        0.4,
        gt=0,
        description="standard deviation of the weights' prior; 0.4 equals a decay of 0.01 with 640 rows",
    )
    beta: NonNegativeFloat = setting(GaussianLoRA, "beta", "weight of the log prior; 1 is MAP")


register_method(
    Method(
        "map_decoupled",
        "LoRA with AdamW's decoupled weight decay 0.01, which the compared papers call MAP",
        MethodConfig,
        pair(LoRA, DeltaGuide),
        train={"weight_decay": 0.01},
        peft=True,
    )
)
register_method(
    Method(
        "map_prior",
        "LoRA by maximum a posteriori under a Gaussian prior",
        PriorConfig,
        pair(partial(GaussianLoRA, random="AB"), PointGuide),
        peft=True,
    )
)
