"""The method: a program and a guide under one name, with settings."""

from pydantic import NonNegativeFloat

from bara_pyro.methods import Method, MethodConfig, pair, setting
from bara_pyro_vera.guide import ExponentialGuide
from bara_pyro_vera.model import VeRA


class VeRAConfig(MethodConfig):
    """Settings of VeRA."""

    prior: str = setting(VeRA, "prior", "prior of Phi")
    beta: NonNegativeFloat = setting(VeRA, "beta", "weight of KL(Phi); 1 is the exact ELBO")


VERA = Method(
    "vera", "VeRA with a Bayesian gate (an example plug-in)", VeRAConfig, pair(VeRA, ExponentialGuide)
)
