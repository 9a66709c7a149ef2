"""The methods by name: each a (model, guide) pair with its settings.

Adding one: write a program in `models/`, a guide in `guides/` (or take one), and a file here that pairs them.
"""

from bara_pyro.methods import (  # imported for what they register
    adalora,
    bara,
    blob,
    clora,
    dropout,
    ensemble,
    fvae,
    ivon,
    laplace,
    lora,
    maximum,
    scalabl,
    temperature,
    tfb,
)
from bara_pyro.methods.base import METHODS, Fit, Method, MethodConfig, build, method_config, register_method

__all__ = [
    "METHODS",
    "Fit",
    "Method",
    "MethodConfig",
    "adalora",
    "bara",
    "blob",
    "build",
    "clora",
    "dropout",
    "ensemble",
    "fvae",
    "ivon",
    "laplace",
    "lora",
    "maximum",
    "method_config",
    "register_method",
    "scalabl",
    "temperature",
    "tfb",
]
