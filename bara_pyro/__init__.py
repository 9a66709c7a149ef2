"""Bayesian Adaptive Rank Allocation (BaRA) for language models, as probabilistic programs in Pyro.

The names below are loaded when they are first used, so that `import bara_pyro` and `bara --help` stay quick.
"""

from importlib import import_module
from typing import Any

_HOME = {
    "Backbone": "backbone",
    "Batch": "data",
    "Example": "data",
    "MeanFieldELBO": "elbo",
    "MeanWeibull": "distributions",
    "SVI": "svi",
    "Task": "data",
    "adamw": "svi",
    "answer_token_ids": "data",
    "batches": "data",
    "build_system": "system",
    "encode": "data",
    "linear_schedule": "svi",
    "load_backbone": "backbone",
    "load_config": "config",
    "load_system": "folder",
    "load_task": "data",
    "make_prior": "priors",
    "posterior_predictive": "metrics",
    "predict": "prediction",
    "register_prior": "priors",
    "training_batches": "data",
}

__all__ = sorted(_HOME)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'bara_pyro' has no attribute {name!r}")
    value = getattr(import_module(f"bara_pyro.{_HOME[name]}"), name)
    globals()[name] = value
    return value
