"""A real language model on real rows: SmolLM2-135M, every method with its default settings.

    bara backbone get smollm2 --out runs/smollm2
    python -m experiments real --model runs/smollm2 --data-dir FOLDER
    python -m experiments real --name real_few --train-rows 80 ...
    python -m experiments real --name real_texts --tasks arc_easy --set task.labels=texts ...

Adapters stand in the upper six of 30 layers and at the answer head, so that the 24 layers below are run once
a row: a run then takes minutes of one core. Nothing is tuned; the temperature is fitted on a fifth of the
rows, set aside from training. Trained on ag_news, a run is also asked the questions of openbookqa:
rows from elsewhere.
"""

from argparse import Namespace

from experiments.engine.compare import Comparisons, Contrast
from experiments.engine.run import Arms
from experiments.engine.spaces import tagged
from experiments.engine.study import Study
from experiments.page.parts import Part, main_table, shifts
from experiments.page.spec import arm_study

UPPER = r"model\.layers\.2[4-9]\.self_attn\.[qv]_proj|lm_head"
HELD_OUT = 5  # one in so many rows, for a temperature
# Beside the exact ELBO, whose KL of all weights of A outweighs a few hundred rows: what its authors minimise.
PUBLISHED = {"blob, published scheme": {"method": "blob", "method.recipe": "reproduction"}}


def arms(args: Namespace) -> Arms:
    """Return each method with its defaults, on `--train-rows` rows in all, and BLoB as published."""
    shared = {
        "backbone.dtype": "bfloat16",
        "adapter.target_modules": UPPER,
        "task.train_rows": args.train_rows,
        "task.max_length": 512,
    }
    held_out = {"temperature": {"task.validation_rows": args.train_rows // HELD_OUT}}
    plain = {name: {"method": name, **held_out.get(name, {})} for name in args.methods}
    more = {name: own for name, own in PUBLISHED.items() if own["method"] in args.methods}
    return {name: {**shared, **own} for name, own in (plain | more).items()}


def parts(study: Study) -> list[Part]:
    """Return the scores, and those on the rows from elsewhere where there are any."""
    shifted = any(record["shifted"] for record in study.finished)
    return [*main_table(study), *(shifts(study) if shifted else [])]


STUDY = arm_study(
    "real",
    __doc__,
    "A real language model",
    "SmolLM2-135M in bfloat16, adapters in its upper six layers; nothing was tuned.",
    parts,
    arms,
    methods=tagged("main", "recalibrated"),
    tasks=("ag_news",),
    steps=400,
    options={
        "--name": {"default": "real", "metavar": "NAME", "help": "of the results; default: %(default)s"},
        "--train-rows": {
            "type": int,
            "default": 320,
            "metavar": "N",
            "help": "training rows, those set aside for a temperature included; default: %(default)s",
        },
    },
    shifted={"ag_news": ("openbookqa",)},
    comparisons=Comparisons(Contrast("bara-gate", "lora", "nll")),
    order=2,
)
