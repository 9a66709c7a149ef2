"""Bayesian Adaptive Rank Allocation (BaRA) for language models, as probabilistic programs in Pyro.

The names below are loaded when they are first used, so that `import bara_pyro` and `bara --help` stay quick.
"""

from importlib import import_module
from typing import Any

_HOME = {
    "BaRATrainer": "runs.trainer",
    "Backbone": "core.backbone",
    "BaraError": "errors",
    "Batch": "data",
    "CompletionLikelihood": "core.likelihood",
    "Example": "data",
    "MeanFieldELBO": "core.elbo",
    "MeanWeibull": "core.distributions",
    "SVI": "core.svi",
    "Task": "data",
    "attached": "core.attached",
    "answer_rows": "runs.predict",
    "adamw": "core.svi",
    "answer_token_ids": "data",
    "batches": "data",
    "build_system": "runs.system",
    "encode": "data",
    "encode_replies": "data.conversations",
    "evaluate": "metrics",
    "encode_prompts": "generation.prompts",
    "export_lora": "runs.export",
    "generate": "generation.generate",
    "linear_schedule": "core.svi",
    "load_backbone": "core.loading",
    "load_config": "runs.config",
    "load_conversations": "data.conversations",
    "load_reward_model": "reward",
    "load_system": "runs.folder",
    "load_task": "data",
    "make_prior": "core.priors",
    "posterior_predictive": "metrics",
    "predict": "core.prediction",
    "load_prompts": "generation.prompts",
    "load_replies": "data.reply_tasks",
    "prepare_upload": "hub",
    "push": "hub",
    "replies_from_rows": "data.reply_tasks",
    "reply_uncertainty": "generation.uncertainty",
    "register_prior": "core.priors",
    "register_task": "data",
    "score_replies": "reward",
    "task_from_rows": "data",
    "train_reward": "reward",
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
