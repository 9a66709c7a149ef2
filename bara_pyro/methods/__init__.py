"""Registry of methods: each is a (model, guide) pair with its settings.

To add a method, write a program in `models/`, write or choose a guide in `guides/`, and register the pair in
a file of this package; docs/contributing.md explains the steps.
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
