"""Evaluate runs with EleutherAI's lm-evaluation-harness; importing this module registers the model "bara".

import lm_eval
from bara_pyro.extras.lmeval.harness import BaraLM

lm_eval.simple_evaluate(model=BaraLM(RUN, predictive="joint", samples=10), tasks=["arc_easy"])
lm_eval.simple_evaluate(model="bara", model_args={"run": RUN, "predictive": "mean"}, tasks=["arc_easy"])
"""

from bara_pyro.errors import ConfigError

try:
    import lm_eval as _lm_eval  # noqa: F401
    from lm_eval.models import huggingface as _huggingface  # noqa: F401
except ImportError as error:
    raise ConfigError(f"lm-eval is missing ({error}): pip install 'bara-pyro[lm-eval]'.") from error

from bara_pyro.extras.lmeval.harness.lm import BaraLM
from bara_pyro.extras.lmeval.harness.running import evaluate_tasks

__all__ = ["BaraLM", "evaluate_tasks"]
