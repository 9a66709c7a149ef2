"""The confirmatory benchmark, world by world: read `plan.md` beside this file first.

    bara microworld build --world 101 --seed 101 --out runs/worlds/101
    python -m experiments search --methods temperature --tasks micro-wgs --steps 1500 --lengths 3000 3200
        --seeds 1 --model runs/worlds/101 --set task.world=101 --out runs/worlds/choices/101-micro-wgs.json
    python -m experiments confirmatory --name confirmatory_101 --model runs/worlds/101
        --set task.world=101 --choices 'runs/worlds/choices/101-{task}.json'

BaRA and LoRA have their defaults; all others the settings that were chosen for the task on validation rows.
The verdict over all worlds is that of `python -m experiments verdict`.
"""

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.engine.arguments import preset
from experiments.engine.differences import Contrast
from experiments.engine.run import Arm, Arms
from experiments.engine.search import chosen
from experiments.page.parts import main_table
from experiments.page.spec import arm_study

NAME = "confirmatory"
PRIMARY = Contrast("bara-gate", "temperature", "nll")
METHODS = ("bara-gate", "temperature", "bara", "lora", "blob", "ensemble_temperature")
BY_DEFAULT = ("bara-gate", "bara", "lora")
TASKS = ("micro-wgs", "micro-wgm", "micro-arce", "micro-arcc", "micro-obqa", "micro-boolq")
SHIFTED = {"micro-obqa": ("micro-near", "micro-far", "micro-changed")}


def arms(args: Namespace) -> Arms:
    """Return each method: by default, or as it was chosen for the task."""

    def as_chosen(method: str) -> Arm:
        def settings(task: str) -> Mapping[str, Any]:
            return {"method": method, **preset(chosen(method, Path(args.choices.format(task=task))))}

        return settings

    return {
        method: {"method": method} if method in BY_DEFAULT else as_chosen(method) for method in args.methods
    }


STUDY = arm_study(
    NAME,
    __doc__,
    "One world of the confirmatory benchmark",
    "A world, a language model and tasks that nothing was developed on; the plan was written before.",
    main_table,
    arms,
    methods=METHODS,
    tasks=TASKS,
    steps=None,
    options={
        "--name": {
            "required": True,
            "metavar": "NAME",
            "help": "of the results: confirmatory_101 of world 101",
        },
        "--choices": {
            "required": True,
            "metavar": "FILE",
            "help": "what `experiments search --out FILE` chose for each task, with {task} for its name",
        },
    },
    shifted=SHIFTED,
)
