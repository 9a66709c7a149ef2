"""The methods by name: each a (model, guide) pair with its settings.

Adding one: write a program in `models/`, a guide in `guides/` (or take one), and a file here that pairs them.
"""

from bara_pyro.methods import bara, blob, dropout, lora, maximum  # imported for what they register
from bara_pyro.methods.base import METHODS, Method, MethodConfig, build, method_config, register_method

__all__ = [
    "METHODS",
    "Method",
    "MethodConfig",
    "bara",
    "blob",
    "build",
    "dropout",
    "lora",
    "maximum",
    "method_config",
    "register_method",
]
