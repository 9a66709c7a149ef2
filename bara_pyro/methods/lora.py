"""LoRA by maximum likelihood."""

from bara_pyro.guides.delta import DeltaGuide
from bara_pyro.methods.base import AS_IT_IS, Method, MethodConfig, pair, register_method
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
