"""The methods by name: each a (model, guide) pair with its settings.

Adding one: write a program in `models/`, a guide in `guides/` (or take one), and a file here that registers
the pair; docs/contributing.md walks through it.
"""

from bara_pyro.methods.base import (
    METHODS,
    Fit,
    Method,
    MethodConfig,
    build,
    method_config,
    pair,
    register_method,
    setting,
)

__all__ = [
    "METHODS",
    "Fit",
    "Method",
    "MethodConfig",
    "build",
    "method_config",
    "pair",
    "register_method",
    "setting",
]
