"""LoRA by maximum a posteriori: with the decay that papers call MAP, and with a prior."""

from pydantic import Field, NonNegativeFloat

from bara_pyro.core.backbone import Backbone
from bara_pyro.core.defaults import default
from bara_pyro.core.program import AdapterOptions
from bara_pyro.guides.point import PointGuide
from bara_pyro.methods.base import Method, MethodConfig, register_method
from bara_pyro.methods.lora import build_lora
from bara_pyro.methods.space import RATES, SearchSpace
from bara_pyro.models.gaussian_lora import GaussianLoRA


class PriorConfig(MethodConfig):
    """Settings of `map_prior`."""

    prior_scale: float = Field(
        0.4, gt=0, description="standard deviation of the weights' prior; 0.4 is decay 0.01 at N = 640"
    )
    beta: NonNegativeFloat = Field(
        default(GaussianLoRA, "beta"), description="weight of the log prior; 1 is MAP"
    )


def _build_prior(
    backbone: Backbone, num_data: int, adapter: AdapterOptions, config: PriorConfig
) -> tuple[GaussianLoRA, PointGuide]:
    model = GaussianLoRA(
        backbone, num_data, random="AB", prior_scale=config.prior_scale, beta=config.beta, **adapter
    )
    return model, PointGuide(model)


register_method(
    Method(
        "map_decoupled",
        "LoRA with AdamW's decoupled weight decay 0.01, which the compared papers call MAP",
        MethodConfig,
        build_lora,
        train={"weight_decay": 0.01},
        peft=True,
        display="MAP (weight decay)",
        order=1,
        tags=frozenset({"paper"}),
        search=SearchSpace(RATES, "train.weight_decay", (0.1, 1.0)),
    )
)
register_method(
    Method(
        "map_prior",
        "LoRA by maximum a posteriori under a Gaussian prior",
        PriorConfig,
        _build_prior,
        peft=True,
        display="MAP (Gaussian prior)",
        order=2,
        tags=frozenset({"paper"}),
        search=SearchSpace(RATES, "method.prior_scale", (0.1, 1.0)),
    )
)
