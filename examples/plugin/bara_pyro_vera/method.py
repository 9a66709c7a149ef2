"""The method: program and guide under one name, with settings."""

from pydantic import Field, NonNegativeFloat

from bara_pyro.core.backbone import Backbone
from bara_pyro.core.program import AdapterOptions
from bara_pyro.methods.base import Method, MethodConfig
from bara_pyro_vera.guide import ExponentialGuide
from bara_pyro_vera.model import VeRA


class VeRAConfig(MethodConfig):
    """Settings of VeRA."""

    prior: str = Field("weibull", description="prior of Phi")
    beta: NonNegativeFloat = Field(1.0, description="weight of KL(Phi); 1 is the exact ELBO")


def build(
    backbone: Backbone, num_data: int, adapter: AdapterOptions, config: VeRAConfig
) -> tuple[VeRA, ExponentialGuide]:
    """Return the program and its guide."""
    model = VeRA(backbone, num_data, prior=config.prior, beta=config.beta, **adapter)
    return model, ExponentialGuide(model)


VERA = Method("vera", "VeRA with a Bayesian gate (an example plug-in)", VeRAConfig, build)
