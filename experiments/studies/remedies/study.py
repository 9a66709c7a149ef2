"""What brings BaRA ahead where it is not: rate, length, noise, beta, scale, capacity; on validation rows.

    python -m experiments remedies

Each arm changes one thing of the settings that the search chose. LoRA gets the changes that it can have, so
that a remedy which helps both is distinguished from one which helps BaRA.
"""

from argparse import Namespace
from typing import Any

from bara_pyro.errors import ConfigError
from experiments.engine.arguments import preset
from experiments.engine.methods import halfway, space, tagged
from experiments.engine.run import Arms
from experiments.engine.search import chosen
from experiments.page.parts import by_method
from experiments.page.spec import arm_study


def common(settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the changes that every method can have: of rate, length and capacity."""
    rate = settings["train.lr"]
    variants: dict[str, dict[str, Any]] = {"as chosen": {}}
    if rate in space(settings["method"]).lr:
        # The search looked half a step to either side only where there was nothing else to choose.
        between = halfway(space(settings["method"]).lr, rate)
        variants |= {f"learning rate {other:g}": {"train.lr": other} for other in between}
    return variants | {
        "twice the steps": {"train.steps": lambda steps: 2 * steps},
        # The scaling alpha / r stays at 2: more units, each as strong as before.
        "r = 16": {"adapter.r": 16, "adapter.lora_alpha": 32.0},
        "twice the scaling": {"adapter.lora_alpha": 32.0},
    }


OURS: dict[str, dict[str, Any]] = {
    "noise level from 0.1": {"method.init_kappa": 0.1},
    "no noise (point)": {"method.guide": "delta", "method.init_kappa": None},
    "no KL": {"method.beta_phi": 0.0, "method.beta_theta": 0.0},
    "KL(theta) times 100": {"method.beta_theta": 1e-3},
}


def arms(args: Namespace) -> Arms:
    """Return each method with each change, all asked validation rows."""
    if args.steps is None:
        raise ConfigError("--steps default: one arm has twice as many, give a number.")
    found = {}
    for method in args.methods:
        settings = {"method": method, **chosen(method)}
        own = OURS if method in tagged("ours") else {}
        for name, change in (common(settings) | own).items():
            arm = {"method": method, **preset(chosen(method)), "task.evaluate_on": "validation", **change}
            found[f"{method}, {name}"] = arm
    return found


STUDY = arm_study(
    "remedies",
    __doc__,
    "What would improve BaRA?",
    "Each variant changes one of the settings that the search chose. Scores are of validation rows; the "
    "column of test NLL scores the same runs on test rows.",
    by_method,
    arms,
    methods=tagged("reference", "ours"),
)
