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
    from bara_pyro.cli.terminal import console, say, show
    from bara_pyro.data import load_task
    from bara_pyro.data.registry import SOURCES
    from bara_pyro.microworld import TASKS
    from bara_pyro.report.table import Column, Table

    if name is None:
        columns = (Column("name", "task"), Column("paper", "in papers"), Column("where", "where from"))
        listed = [{"name": key, "paper": spec.mimics, "where": "microworld"} for key, spec in TASKS.items()]
        listed += [{"name": key, "paper": s.paper, "where": s.hub} for key, s in SOURCES.items()]
        show(Table(columns, listed))
        say("Or a .jsonl, .json or .csv file of your own: rows with question, answer and maybe choices.")
        return
    task = load_task(name, data_dir)
    counts = f"{len(task.train)} train, {len(task.validation)} validation, {len(task.test)} test rows"
    say(f"{task.name}: {counts}; answers {', '.join(task.labels)}")
    for note in task.notes:
        say(f"- {note}")
    for row in (task.train or task.test)[:rows]:
        console.rule(row.id)
        if row.context:
            say(row.context)
        say(f"{row.question} {task.labels[row.label]}")
