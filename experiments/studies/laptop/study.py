"""The README's second example: a real language model on real rows, on a laptop.

    python -m experiments laptop --runs runs/news-lora runs/news-gate

Keeps the scores of runs of `bara train`.
"""

from pathlib import Path
from typing import Any

from bara_pyro.cli.scores import score_rows, score_table
from bara_pyro.cli.terminal import say
from bara_pyro.report import Column, Table
from bara_pyro.runs.store import read_json
from experiments.engine.arguments import command_line
from experiments.engine.record import portable
from experiments.engine.results import RESULTS, Results
from experiments.page.parts import Part
from experiments.page.spec import entry_study

TIMES = (
    Column("method", "method"),
    Column("train", "training, minutes", format=".1f"),
    Column("evaluate", "test rows, minutes", format=".1f"),
)


def main() -> None:
    """Keep the scores of runs."""
    parser = command_line(__doc__)
    parser.add_argument("--runs", metavar="DIR", type=Path, nargs="+", required=True,
        help="folders that `bara train` wrote")  # fmt: skip
    results = Results(RESULTS / "laptop.json", "laptop", {})
    for folder in parser.parse_args().runs:
        results.add(*entry(folder))
    say(f"Written: {results.path}: python -m experiments report")


def entry(folder: Path) -> tuple[str, dict[str, Any]]:
    """Return the method of a run, and what is kept of it."""
    report, config = read_json(folder / "metrics.json"), read_json(folder / "config.json")["config"]
    for section, key in (("backbone", "name"), ("task", "data_dir")):
        config[section][key] = portable(config[section][key])
    keys = ("method", "task", "metrics", "majority_class", "parameters", "sparsity", "environment", "notes")
    minutes = {key: report[f"wall_clock_{key}_s"] / 60 for key in ("train", "evaluate")}
    return report["method"], {
        **{key: report[key] for key in keys},
        "config": config,
        "minutes": {**minutes, "all": sum(minutes.values())},
    }


def parts(results: Results) -> list[Part]:
    """Return the table that `bara train` printed, and the times."""
    reports = list(results.entries.values())
    rows = [row for report in reports for row in score_rows(report)]
    return [
        score_table(rows),
        Table(TIMES, [{"method": report["method"], **report["minutes"]} for report in reports]),
    ]


def facts(results: Results) -> dict[str, Any]:
    """Return what the question names."""
    return next(iter(results.entries.values()))["config"]


STUDY = entry_study(
    "A real language model on a laptop",
    """\
SmolLM2-135M-Instruct in {backbone[dtype]} on {task[name]}: {task[train_rows]} training rows, {task[limit]} to
test on (of the official test split, divided here), {train[steps]} steps of {train[batch_size]},
rank {adapter[r]}, adapters on `{adapter[target_modules]}`, one seed,
nothing tuned, one process of one thread, beside other work on the machine. The commands stand in the README.
""",
    main,
    parts,
    facts=facts,
    order=31,
)
