"""MC-dropout LoRA: dropout on the input of A, kept on when predicting (Gal and Ghahramani, 2016)."""

from pydantic import Field

from bara_pyro.core.backbone import Backbone
from bara_pyro.core.defaults import default
from bara_pyro.core.program import AdapterOptions
from bara_pyro.guides.prior import PriorGuide
from bara_pyro.methods.base import Method, MethodConfig, register_method
from bara_pyro.methods.space import RATES, SearchSpace
from bara_pyro.models.dropout import DropoutLoRA


class DropoutConfig(MethodConfig):
    """Settings of MC-dropout."""

    p: float = Field(
        default(DropoutLoRA, "p"), ge=0, lt=1, description="probability of dropping an input feature of A"
    )


def _build(
    backbone: Backbone, num_data: int, adapter: AdapterOptions, config: DropoutConfig
) -> tuple[DropoutLoRA, PriorGuide]:
    model = DropoutLoRA(backbone, num_data, p=config.p, **adapter)
    return model, PriorGuide(model)


register_method(
    Method(
        "mc_dropout",
        "LoRA with dropout, also when predicting (arXiv 1506.02142)",
        DropoutConfig,
        _build,
        peft=True,
        display="MC-Dropout",
        order=3,
        tags=frozenset({"paper", "main", "ranked", "spread"}),
        search=SearchSpace(RATES, "method.p", (0.05, 0.2)),
    )
)
