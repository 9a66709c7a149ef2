r"""A real language model on real rows: SmolLM2-135M, every method with its default settings.

    bara backbone get smollm2 --out runs/smollm2
    python -m experiments real --model runs/smollm2 --data-dir FOLDER
    python -m experiments real --name real_few --train-rows 80 ...
    python -m experiments real --name real_winogrande --tasks winogrande_s ...
    python -m experiments real --name real_texts --tasks arc_easy --set task.labels=texts
        --methods lora mc_dropout ensemble blob bara bara-gate ...

`--set backbone.states_folder=runs/states` keeps what the layers below the adapters give a row (some 100 KB of
ag_news) for all runs: without it every process runs them again.

With settings that were chosen on a quarter of the training rows, as many trials for each method (choices are
written when the command ends, those of other methods stay: one method at a time loses least):

    python -m experiments search --model runs/smollm2 --data-dir FOLDER --tasks ag_news --steps 400
        --methods lora ... --validation-rows 80 --out experiments/hyperparameters_smollm2.json
        --set backbone.dtype=bfloat16 --set task.train_rows=320 --set task.max_length=512
        --set 'adapter.target_modules=model\.layers\.2[789]\..*_proj|lm_head'
    python -m experiments real --name real_tuned --choices experiments/hyperparameters_smollm2.json
        --rows-by-seed ...

With `--rows-by-seed` each seed has training rows of its own, the same for every method: intervals then speak
of other training rows as well.

Adapters stand at every linear layer of the upper three of 30 blocks and at the answer head, so that the 27
blocks below are run once a row: a run then takes minutes of one core. Where they stand was chosen by LoRA's
scores on validation rows (answer.md). The temperature is fitted on a fifth of the rows, which are set
aside. Runs trained on ag_news are also tested on openbookqa, as out-of-distribution rows.

What is stored as real_attention is one seed with adapters at query and value of the upper six blocks.
"""

from argparse import Namespace
from pathlib import Path

from experiments.engine.arguments import option, preset
from experiments.engine.differences import Comparisons, Contrast
from experiments.engine.results import Study
from experiments.engine.run import SEED, Arms
from experiments.engine.search import CHOICES_SMOLLM2, UPPER, chosen
from experiments.page.parts import Folded, Part, main_table
from experiments.page.spec import arm_study
from experiments.page.tables import shift_tables

METHODS = ("lora", "temperature", "mc_dropout", "ensemble", "laplace", "blob", "bara", "bara-gate")
HELD_OUT = 5  # one in so many rows, for a temperature


def arms(args: Namespace) -> Arms:
    """Return each method with its defaults, or those chosen for it, on `--train-rows` rows in all."""
    shared = {
        **preset({"backbone.dtype": "bfloat16", "adapter.target_modules": UPPER, "task.max_length": 512}),
        "task.train_rows": args.train_rows,
        **({"task.train_rows_seed": SEED} if args.rows_by_seed else {}),
    }
    held_out = {"temperature": {"task.validation_rows": args.train_rows // HELD_OUT}}
    own = {
        name: preset(held_out.get(name, {}) | (chosen(name, args.choices) if args.choices else {}))
        for name in args.methods
    }
    return {name: {**shared, "method": name, **own[name]} for name in args.methods}


def parts(study: Study) -> list[Part]:
    """Return the scores, and those on out-of-distribution rows."""
    shifted = any(record["shifted"] for record in study.finished)
    return [
        *main_table(study),
        *([Folded("Out-of-distribution rows", shift_tables(study))] if shifted else []),
    ]


STUDY = arm_study(
    "real",
    __doc__,
    "Is BaRA better than LoRA on a real language model?",
    "SmolLM2-135M in bfloat16, with adapters at every linear layer of the upper three of 30 blocks. The "
    "table of all methods is of 320 rows of ag_news, the same for all seeds, and 400 steps; the other "
    "settings are the defaults. The temperature is fitted on a fifth of the rows, which LoRA then lacks. "
    "1,000 test rows.",
    parts,
    arms,
    methods=METHODS,
    tasks=("ag_news",),
    steps=400,
    options={
        "--train-rows": option(320, "training rows, those set aside for a temperature included", metavar="N"),
        "--rows-by-seed": {
            "action": "store_true",
            "help": "draw the training rows by the seed; by default all seeds have the first ones",
        },
        "--choices": {
            "type": Path,
            "metavar": "FILE",
            "help": "settings that `experiments search --out FILE` chose; default: each method's own",
        },
    },
    shifted={"ag_news": ("openbookqa",)},
    comparisons=Comparisons(Contrast("bara-gate", "lora", "nll"), choices=CHOICES_SMOLLM2),
)
