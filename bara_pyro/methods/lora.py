"""LoRA by maximum likelihood."""

from bara_pyro.core.backbone import Backbone
from bara_pyro.core.program import AdapterOptions
from bara_pyro.guides.delta import DeltaGuide
from bara_pyro.methods.base import Method, MethodConfig, register_method
from bara_pyro.methods.space import SearchSpace
from bara_pyro.models.lora import LoRA


def build_lora(
    backbone: Backbone, num_data: int, adapter: AdapterOptions, config: MethodConfig
) -> tuple[LoRA, DeltaGuide]:
    """Return the program and its empty guide."""
    model = LoRA(backbone, num_data, **adapter)
    return model, DeltaGuide(model)


register_method(
    Method(
        "lora",
        "LoRA by maximum likelihood (Hu et al., 2022)",
        MethodConfig,
        build_lora,
        peft=True,
        display="MLE (LoRA)",
        order=0,
        tags=frozenset({"reference", "paper", "main", "ranked"}),
        search=SearchSpace(),
    )
)
