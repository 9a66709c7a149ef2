"""The confirmatory benchmark, world by world: read `plan.md` beside this file first; it is not frozen yet.

    bara microworld build --world 101 --seed 101 --out runs/worlds/101
    python -m experiments search --methods temperature --tasks micro-wgs --steps default --lengths 1000 2500
        --seeds 1 --model runs/worlds/101 --set task.world=101 --out runs/worlds/choices/101-micro-wgs.json
    python -m experiments confirmatory --name confirmatory_101 --model runs/worlds/101
        --set task.world=101 --choices 'runs/worlds/choices/101-{task}.json'

BaRA and LoRA have their defaults; all others the settings that were chosen for the task on validation rows.
"""

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bara_pyro.errors import DataError
from bara_pyro.report import Column, Table
from experiments.engine.compare import Comparisons, Contrast
from experiments.engine.results import RESULTS
from experiments.engine.rows import read_rows, rows_path
from experiments.engine.run import Arm, Arms
from experiments.engine.search import chosen
from experiments.engine.study import Study
from experiments.engine.worlds import Range, over_worlds
from experiments.page.parts import Part, main_table
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
            return {"method": method, **chosen(method, Path(args.choices.format(task=task)))}

        return settings

    return {
        method: {"method": method} if method in BY_DEFAULT else as_chosen(method) for method in args.methods
    }


def parts(study: Study) -> list[Part]:
    """Return the scores of a world, and the primary contrast over all worlds that there are."""
    return [*main_table(study), *over_all(RESULTS)]


def over_all(results: Path) -> list[Part]:
    """Return a table of the primary contrast, of two worlds or more, or what they lack."""
    stored = sorted(rows_path(NAME, results).parent.glob(f"{NAME}_*.parquet"))
    found = {path.stem: read_rows(path) for path in stored}
    if len(found) < 2:
        return []
    try:
        seen = over_worlds(found, PRIMARY.arm, PRIMARY.reference, PRIMARY.metric)
    except DataError as error:  # worlds are run one after the other
        return [f"No primary contrast yet. {error}\n"]
    rows: list[Mapping[str, object]] = [
        {"of": world, "difference": f"{x:+.4f}"} for world, x in seen.by_world.items()
    ]
    for words, one in (
        ("these worlds", seen.these),
        ("worlds as such", seen.as_such),
        ("the wider", seen.decides),
    ):
        rows.append({"of": words, "difference": f"{one.difference:+.4f}", "interval": _ends(one)})
    columns = (Column("of", ""), Column("difference", "NLL, nats"), Column("interval", "95 %"))
    return [
        Table(columns, rows, f"{PRIMARY.arm} minus {PRIMARY.reference}, average over the tasks of each world")
    ]


def _ends(one: Range) -> str:
    return f"[{one.low:+.4f}, {one.high:+.4f}]"


STUDY = arm_study(
    NAME,
    __doc__,
    "Confirmatory benchmark",
    "A world, a language model and tasks that nothing was developed on; the plan was written before.",
    parts,
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
    comparisons=Comparisons(PRIMARY),
    order=1,
)
