"""Learning rates from 3e-4 to 1e-2: does training stay sound? LoRA, both forms of BaRA, before and after.

    python -m experiments lr_sweep --tasks micro-wgs --seeds 2
    python -m experiments lr_sweep --tasks ag_news --model FOLDER --data-dir FOLDER --set task.limit=640

"before" is Algorithm 1 as printed (noise levels start random around ln 2, no cap, one rate for all, the
amortiser sees the input as it is); "after" are the defaults. Scores are those of rows set aside from train,
never of the test split.
"""

import math
from typing import Any

from bara_pyro.errors import ConfigError
from bara_pyro.report import Column, Table
from experiments.engine.arguments import experiment_parser, option, preset, run_settings
from experiments.engine.results import Results, distinct, having
from experiments.engine.run import about_runs, read_off
from experiments.engine.sweep import Job
from experiments.page.parts import Part
from experiments.page.spec import entry_study, shared_facts
from experiments.page.values import over_seeds, score

RATES = (3e-4, 1e-3, 3e-3, 1e-2)
BEFORE = {
    "method.init_kappa": math.log(2),
    "method.random_kappa": True,
    "method.max_kappa": 5.0,
    "method.normalize_input": False,
    "train.local_lr_scale": 1.0,
}
ARMS: dict[str, dict[str, Any]] = {
    "lora": {"method": "lora"},
    "bara before": {"method": "bara", **BEFORE},
    "bara after": {"method": "bara"},
    "gate before": {"method": "bara-gate", **BEFORE},
    "gate after": {"method": "bara-gate"},
}
SHOWN = (("acc", "accuracy", ".1f"), ("ece", "ECE", ".1f"), ("nll", "NLL", ".3f"))


def main() -> None:
    """Run the sweep: a file of results a task."""
    methods = tuple(dict.fromkeys(arm["method"] for arm in ARMS.values()))
    parser = experiment_parser(__doc__, runs="runs/study", methods=methods, tasks=("micro-wgs",))
    parser.add_argument("--rates", **option(RATES, "learning rates"))
    args = parser.parse_args()
    if others := sorted({*args.methods}.difference(methods)):
        raise ConfigError(f"--methods {others[0]}: this study has arms of {', '.join(methods)}.")
    shared = {"task.evaluate_on": "validation", **preset({"task.validation_rows": 500})}
    for task in args.tasks:
        jobs = {
            (arm, rate, seed): Job(
                run_settings(args, {**shared, **settings, "task.name": task, "train.lr": rate, "seed": seed})
            )
            for seed in range(args.seeds)
            for rate in args.rates
            for arm, settings in ARMS.items()
            if settings["method"] in args.methods
        }
        read_off(f"lr_sweep_{task}", jobs, ("arm", "lr", "seed"), None, about_runs(args), args)


def parts(results: Results) -> list[Part]:
    """Return a table a metric: a row an arm, a column a rate."""
    entries = results.entries.values()
    tables: list[Part] = []
    for key, heading, digits in SHOWN:
        rates = [f"{rate:g}" for rate in distinct(entries, "lr")]
        columns = [Column("arm", heading), *(Column(rate, f"lr {rate}", format=digits) for rate in rates)]
        rows = []
        for arm in distinct(entries, "arm"):
            of = {rate: having(entries, arm=arm, lr=float(rate)) for rate in rates}
            cells = {rate: over_seeds(dict(enumerate(found)), score("10", key)) for rate, found in of.items()}
            rows.append({"arm": arm, **cells})
        tables.append(Table(columns, rows))
    return tables


STUDY = entry_study(
    "Are the defaults better than Algorithm 1 as printed?",
    """\
{task}, {steps} steps, scored on rows set aside from the training split, S = 10; {seeds}.

- "before": Algorithm 1 as printed, with noise levels random around ln 2, no cap, one rate for all, and an
  amortiser that sees its raw input.
- "after": the defaults.
""",
    main,
    parts,
    facts=lambda results: {
        **shared_facts(results),
        "task": next(iter(results.entries.values()))["task"],
        "steps": next(iter(results.entries.values()))["settings"]["train.steps"],
    },
)
