"""Real benchmark rows and a real language model: LoRA and both forms of BaRA, on the official splits.

    python -m experiments real_rows --model FOLDER --data-dir FOLDER [--seeds 3]

Settings are the defaults for every method; nothing is tuned on these sets.
"""

from typing import Any

from bara_pyro.report import Column, Table
from bara_pyro.runs.config import load_config
from experiments.engine.methods import tagged
from experiments.engine.results import Results, having
from experiments.page.parts import Part
from experiments.page.spec import jobs_of, look_study
from experiments.page.values import over_seeds, score

COLUMNS = (
    Column("task", "task"),
    Column("method", "method"),
    Column("lr", "lr", format="g"),
    Column("S", "S", format="d"),
    Column("seeds", "seeds", format="d"),
    Column("acc", "acc", format=".1f"),
    Column("ece", "ECE", format=".1f"),
    Column("nll", "NLL", format=".3f"),
    Column("brier", "Brier", format=".3f"),
)


def parts(results: Results) -> list[Part]:
    """Return a row a task, method and number of draws: mean and spread over the seeds there are."""
    entries = results.entries.values()
    rows: list[dict[str, Any]] = []
    for task, method in dict.fromkeys((entry["task"], entry["method"]) for entry in entries):
        found = having(entries, task=task, method=method)
        rate = found[0]["settings"].get("train.lr", load_config().train.lr)
        run = {"task": task, "method": method, "lr": rate, "seeds": len(found)}
        for samples in ("0",) if method == "lora" else ("0", "10"):
            reports = dict(enumerate(found))
            scores = {column.key: over_seeds(reports, score(samples, column.key)) for column in COLUMNS[5:]}
            rows.append({**run, "S": int(samples), **scores})
    return [Table(COLUMNS, rows)]


STUDY = look_study(
    "real_rows",
    __doc__,
    "Does BaRA learn real rows with a tiny language model?",
    """\
A Llama of 260 thousand parameters trained on children's stories (5 layers, width 64), {steps} steps of 4 rows
at rate 1e-3, r = 8, official splits, letters as answers. It knows nothing of science or current affairs: on
the paper's sets the fair answer is "I do not know", and a good method says so (NLL near log C, small ECE).
ag_news it can learn in part, and there BaRA learns more slowly than LoRA: noise of the order of the gates
themselves has to be averaged out. Nothing was tuned here.
""",
    None,
    parts,
    jobs=lambda args: jobs_of(args, own=lambda method: {"task.max_length": 512}),
    runs="runs/real_rows",
    methods=tagged("reference", "ours"),
    tasks=("ag_news", "winogrande_s", "openbookqa", "arc_easy"),
    facts=lambda results: {"steps": next(iter(results.entries.values()))["settings"]["train.steps"]},
)
