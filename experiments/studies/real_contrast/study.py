r"""The contrast of the confirmatory benchmark on real tasks: read `plan.md` beside this file first.

    bara backbone get smollm2 --out runs/smollm2
    choices=experiments/studies/real_contrast/choices
    python -m experiments search --methods temperature --tasks ag_news --seeds 1 --steps 400 --lengths 200 800
        --model runs/smollm2 --data-dir FOLDER --validation-rows 160 --out $choices/ag_news.json
        --set task.train_rows=480 --set task.train_rows_seed=0 --set task.max_length=512
        --set backbone.dtype=bfloat16 --set 'adapter.target_modules=model\.layers\.2[789]\..*_proj|lm_head'
        # winogrande_s alike; arc_easy with --set task.labels=texts
    python -m experiments real_contrast --model runs/smollm2 --data-dir FOLDER

`--set backbone.states_folder=runs/states` keeps what the layers below the adapters give a row for all runs.
The gate form and LoRA have their defaults, all others what was chosen for the task on validation rows.
What was run when the contrast had been seen has a name of its own:

    python -m experiments real_contrast --name real_contrast_calibrated --methods bara-gate
        --set adapter.calibrated=true ...

The runs of the tuned LoRA beside it are those of the contrast. With fewer rows, all methods by
default; and each with split-half calibration and without:

    python -m experiments real_contrast --name real_contrast_few --methods bara-gate lora --tasks ag_news
        --rows 80 ...
    python -m experiments real_contrast --name real_contrast_default --methods bara-gate lora
        --rehearsed-or-not ...
"""

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bara_pyro.runs.by_rows import MANY_ROWS
from experiments.engine.arguments import option, preset
from experiments.engine.differences import Comparisons, Contrast
from experiments.engine.methods import rehearsed_or_not
from experiments.engine.results import Study
from experiments.engine.run import SEED, Arm, Arms
from experiments.engine.search import UPPER, chosen
from experiments.page.parts import Folded, Part
from experiments.page.spec import arm_study
from experiments.page.tables import arms_table, task_table

CHOICES = Path(__file__).parent / "choices"
BY_DEFAULT = ("bara-gate", "bara", "lora")
TASKS = ("ag_news", "winogrande_s", "arc_easy")
ROWS, ASIDE = 320, 160
TEXTS = ("arc_easy",)


def arms(args: Namespace) -> Arms:
    """Return each method, by default or as chosen for the task; calibrated or not if both are compared."""
    own = {method: {"method": method} for method in args.methods}
    if args.rehearsed_or_not:
        own = rehearsed_or_not(args.methods, few=args.rows < MANY_ROWS)
    return {label: _arm(arm, args.choices, args.rows) for label, arm in own.items()}


def _arm(own: Mapping[str, Any], choices: Path, rows: int) -> Arm:
    method = own["method"]

    def settings(task: str) -> Mapping[str, Any]:
        return {
            **preset({"backbone.dtype": "bfloat16", "adapter.target_modules": UPPER, "task.max_length": 512}),
            **preset({"predict.samples": [10], **({"task.labels": "texts"} if task in TEXTS else {})}),
            "task.train_rows": rows + ASIDE,
            "task.train_rows_seed": SEED,
            "task.validation_rows": ASIDE,
            **own,
            **({} if method in BY_DEFAULT else preset(chosen(method, choices / f"{task}.json"))),
        }

    return settings


def planned(study: Study) -> list[Part]:
    """Return the scores of the two planned arms; the page itself has those of all arms."""
    tables = [arms_table(study), *(task_table(study, metric) for metric in ("acc", "ece", "nll"))]
    return [Folded("Scores of the planned contrast; BaRA gate is uncalibrated", tables)]


STUDY = arm_study(
    "real_contrast",
    __doc__,
    "Does default BaRA beat a tuned LoRA on a real language model?",
    "SmolLM2-135M with adapters in its upper layers and other training rows for each seed. The plan is "
    "`experiments/studies/real_contrast/plan.md`. The following figures are of the planned contrast.",
    planned,
    arms,
    methods=("bara-gate", "temperature"),
    tasks=TASKS,
    steps=None,
    options={
        "--rows": option(ROWS, "that are trained on, each seed its own", metavar="N"),
        "--rehearsed-or-not": {
            "action": "store_true",
            "help": "the gate form and LoRA each with split-half calibration and without",
        },
        "--choices": {
            "type": Path,
            "default": CHOICES,
            "metavar": "FOLDER",
            "help": "of what `experiments search --out FOLDER/TASK.json` chose for each task; default: here",
        },
    },
    comparisons=Comparisons(Contrast("bara-gate", "temperature", "nll")),
)
