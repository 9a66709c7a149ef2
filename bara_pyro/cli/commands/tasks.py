"""`bara tasks`: the list of tasks, and rows of one."""

from typing import Annotated

import typer

from bara_pyro.cli.options import DataDir


def tasks(
    name: Annotated[str | None, typer.Argument(metavar="[TASK]", help="Show some rows of this task.")] = None,
    data_dir: DataDir = None,
    rows: Annotated[int, typer.Option(min=0, help="How many rows to show.")] = 2,
) -> None:
    """List the tasks, or show what the model is asked in one of them."""
    from bara_pyro.cli.catalogue import catalogue
    from bara_pyro.cli.terminal import console, listing, mode, result, say

    if name is None:
        found = catalogue()["tasks"]
        listing(
            ("task", "in papers", "where from"),
            [(task["name"], task["summary"], task["source"]) for task in found],
        )
        result(found)
        say("Or a .csv, .tsv, .jsonl, .json or .parquet file of your own: see docs/data.md.")
        return

    from rich.text import Text

    from bara_pyro.data import load_task

    task = load_task(name, data_dir)
    counts = f"{len(task.train)} train, {len(task.validation)} validation, {len(task.test)} test rows"
    say(f"{task.name}: {counts}; answers {', '.join(task.labels)}")
    for note in task.notes:
        say(f"- {note}")
    shown = (task.train or task.test)[:rows]
    splits = {split: len(getattr(task, split)) for split in ("train", "validation", "test")}
    result(
        {
            "name": task.name,
            **splits,
            "labels": task.labels,
            "notes": task.notes,
            "rows": [vars(row) for row in shown],
        }
    )
    if mode.json:
        return
    for row in shown:
        console.rule(Text(row.id))
        if row.context:
            say(row.context)
        say(f"{row.question} {task.labels[row.label]}")
