"""Learning curves: scores against the number of training rows. Where do gates pay, and by how much?

    python -m experiments learning_curves
    python -m experiments learning_curves --tasks micro-wgm --rows 20 80 320 1280 --name learning_curves_wgm

Every method has its default settings; the temperature, besides, all validation rows of the task. Where rows
are few, split-half calibration (docs/calibrated.md) is the gate form's default and an option of LoRA and
BLoB, which the names of arms say.
"""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from bara_pyro.metrics import holm
from bara_pyro.report import Column, Table
from bara_pyro.report.style import dress, legend_of, line_style, new_figure
from bara_pyro.runs.by_rows import MANY_ROWS
from experiments.engine.arguments import option
from experiments.engine.differences import LEVEL, averaged
from experiments.engine.methods import BLOB_REHEARSED, LORA_REHEARSED, rehearsed_or_not
from experiments.engine.results import Study
from experiments.engine.rows import RunRows, read_rows
from experiments.engine.run import SEED, Arm, Arms
from experiments.page.parts import Part, Picture
from experiments.page.spec import arm_study
from experiments.page.tables import arms_table, interval_cell
from experiments.page.values import display, largest_draws, over_seeds, score

ROWS = (20, 80, 320, 1280, 4800)
METHODS = ("bara-gate", "lora", "temperature", "blob", "ensemble")
OURS = "bara-gate"
RIVALS = (
    *("BaRA gate without rehearsal", "lora", LORA_REHEARSED, "temperature"),
    *("blob", BLOB_REHEARSED, "ensemble"),
)


def arms(args: Namespace) -> Arms:
    """Return each method by default, after each number of rows."""
    found: dict[str, Arm] = {}
    for rows in args.rows:
        few = rows < MANY_ROWS
        for label, arm in rehearsed_or_not(args.methods, few=few).items():
            if few or label in args.methods:  # with many rows no default has a rehearsal
                own = {"task.train_rows": rows, "task.train_rows_seed": SEED}
                found[f"{label}, {rows} rows"] = {**arm, **own}
    return found


def parts(study: Study) -> list[Part]:
    """Return the curves, and the differences of the gate form from the other methods."""
    task = study.tasks[0]
    curves = Picture(
        lambda: curve_figure(study, task),
        f"{study.name}-nll",
        f"NLL on {task} against training rows, with ten draws; bars: one standard deviation over seeds.",
    )
    return [curves, *(gains(study) or [arms_table(study)])]


def split(arm: str) -> tuple[str, int]:
    """Return method and number of rows of an arm."""
    method, _, rows = arm.partition(", ")
    return method, int(rows.removesuffix(" rows"))


def curve_figure(study: Study, task: str) -> Figure:
    """Draw NLL against the number of rows, a line a method."""
    figure = new_figure(4.8, 3.4)
    axes = figure.subplots()
    lines: dict[str, dict[int, tuple[float, float]]] = {}
    for arm, tasks in study.arms.items():
        method, rows = split(arm)
        value = over_seeds(tasks[task], score(largest_draws(tasks), "nll"))
        if not isinstance(value, str | None):
            lines.setdefault(method, {})[rows] = value if isinstance(value, tuple) else (value, 0.0)
    for index, (method, found) in enumerate(lines.items()):
        places = sorted(found)
        means, spreads = zip(*(found[rows] for rows in places), strict=True)
        axes.errorbar(places, means, spreads, label=display(method), capsize=2,
                      marker="osDv^"[index % 5], markersize=4.0, **line_style(index))  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    dress(axes, "training rows", "NLL (nats)")
    legend_of(axes, loc="best")
    return figure


def gains(study: Study) -> list[Part]:
    """Return what the gate form gains on each other method; nothing where rows are not stored."""
    stored = read_rows(study.name, study.folder)
    if not stored:
        return []
    found = {split(arm) for arm in study.arms}
    rivals = [method for method in RIVALS if any(method == name for name, _ in found)]
    numbers = sorted({number for method, number in found if method == OURS})
    places = [(number, method) for number in numbers for method in rivals if (method, number) in found]
    entries = [_gain(stored, method, number) for number, method in places]
    corrected = iter(holm([entry["p"] for entry in entries if entry["difference"] is not None]))
    rows: dict[int, dict[str, Any]] = {number: {"rows": number} for number in numbers}
    for (number, method), entry in zip(places, entries, strict=True):
        rows[number][method] = "–" if entry["difference"] is None else _cell(entry, next(corrected))
    columns = [Column("rows", "training rows", format=",d"), *(Column(m, display(m)) for m in rivals)]
    caption = (
        f"NLL in nats of {display(OURS)} minus that of each other method [95 % interval]; better or worse: "
        "significant after Holm's correction for all of this table"
    )
    return [Table(columns, list(rows.values()), caption)] if places else []


def _gain(stored: Sequence[RunRows], rival: str, number: int) -> dict[str, Any]:
    found: dict[str, Any] = averaged(stored, f"{OURS}, {number} rows", f"{rival}, {number} rows")["nll"]
    return found


def _cell(entry: Mapping[str, Any], p: float) -> str:
    shown = interval_cell(entry, 3)
    told = "better" if entry["difference"] < 0 else "worse"
    return f"{shown} {told}" if p < 1 - LEVEL else shown


STUDY = arm_study(
    "learning_curves",
    __doc__,
    "After how many training rows is BaRA ahead of LoRA?",
    "One task learnt from more and more rows, drawn anew for each seed. Every method has its default "
    "settings and length at one rate. Temperature is fitted on all validation rows of the task.",
    parts,
    arms,
    methods=METHODS,
    tasks=("micro-obqa",),
    steps=None,
    options={"--rows": option(ROWS, "numbers of training rows", metavar="N")},
)
