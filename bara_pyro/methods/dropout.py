"""MC-dropout LoRA: dropout on the input of A, in training and prediction (Gal and Ghahramani, 2016)."""

from bara_pyro.guides.prior import PriorGuide
from bara_pyro.methods.base import Method, MethodConfig, pair, register_method, setting
from bara_pyro.models.dropout import DropoutLoRA


class DropoutConfig(MethodConfig):
    """Settings of MC-dropout."""

    p: float = setting(DropoutLoRA, "p", "probability of dropping an input feature of A", ge=0, lt=1)


register_method(
    Method(
        "mc_dropout",
        "LoRA with dropout, also in prediction (arXiv 1506.02142)",
        DropoutConfig,
        pair(DropoutLoRA, PriorGuide),
        peft=True,
    )
)
