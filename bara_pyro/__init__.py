"""Bayesian Adaptive Rank Allocation (BaRA) for language models, as probabilistic programs in Pyro.

The names below are loaded when they are first used, so that `import bara_pyro` and `bara --help` are fast.
"""

from bara_pyro.lazy import lazy
from bara_pyro.moved import find_moved

_HOME = {
    # Whole runs, like the commands of the same names.
    "train": "api",
    "from_peft": "api",
    "evaluate": "api",
    "predict": "runs.predict",
    "generate": "extras.replies.api",
    "load_system": "runs.folder",
    "to_inference_data": "diagnostics.arviz.inference_data",
    "attached": "core.attached",
    "BaRATrainer": "extras.hub.trainer",
    # Building blocks: language model, rows, model and guide, inference.
    "models": "",
    "guides": "",
    "metrics": "",
    "load_backbone": "lm.loading",
    "Backbone": "lm.backbone",
    "load_task": "data",
    "task_from_rows": "data",
    "load_replies": "data.reply_tasks",
    "replies_from_rows": "data.reply_tasks",
    "load_conversations": "data.conversations",
    "encode": "data",
    "encode_replies": "data.chat",
    "answer_token_ids": "data",
    "batches": "data",
    "training_batches": "data",
    "AnswerLikelihood": "core.likelihood",
    "TextLikelihood": "core.likelihood",
    "CompletionLikelihood": "core.likelihood",
    "make_prior": "core.priors",
    "register_prior": "core.priors",
    "MeanFieldELBO": "core.elbo",
    "SVI": "core.svi",
    "adamw": "core.optimizers",
    "linear_schedule": "core.optimizers",
    "BaraError": "errors",
}

__all__ = sorted(_HOME)
__version__ = "0.1.0"
__getattr__, __dir__ = lazy(__name__, _HOME)
find_moved()
