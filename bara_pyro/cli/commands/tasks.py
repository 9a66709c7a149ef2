"""`bara tasks`: list the tasks, or show rows of one."""

from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer

from bara_pyro.cli.options import DataDir, takes_columns
from bara_pyro.cli.wrap import TRAIN, listed
from bara_pyro.columns import KINDS, OPTIONS, UNNAMED, ColumnNames, column_options

if TYPE_CHECKING:
    from bara_pyro.data.reply_tasks import ReplyTask


@listed(TRAIN)
@takes_columns(*KINDS)
def tasks(
    name: Annotated[str | None, typer.Argument(metavar="TASK", help="Task or file to show.")] = None,
    data_dir: DataDir = None,
    columns: ColumnNames = UNNAMED,
    rows: Annotated[int, typer.Option(min=0, help="Number of rows to show.")] = 2,
) -> None:
    """List the tasks, or show the rows of a task or a file as the model reads them."""
    from bara_pyro.cli.catalogue import catalogue
    from bara_pyro.cli.terminal import console, listing, mode, result, say, say_next
    from bara_pyro.cli.typed import refuse

    if name is None:
        refuse(OPTIONS, "names a column of a file: give the file as well")
        refuse(["data_dir", "rows"], "is for the rows of a task: give a TASK as well")
        entries = catalogue()["tasks"]
        listing(
            ("task", "paper", "source"),
            [(task["name"], task["summary"], task["source"]) for task in entries],
        )
        result(entries)
        say("Or use your own file (.csv, .tsv, .jsonl, .json or .parquet): see docs/data.md.")
        say_next("bara", "tasks", "micro-wgs")
        return

    from rich.text import Text

    from bara_pyro.data import load_task
    from bara_pyro.data.reply_tasks import is_reply_task, load_replies

    if is_reply_task(name) and not columns.named:  # no such task has columns that can be named
        _show_replies(load_replies(name, data_dir), rows)
        say_next("bara", "train", name, "--likelihood", "completion")
        return
    task = load_task(name, data_dir, **column_options(columns))
    say(f"{task.name}: {task.counts}; answers {', '.join(task.labels)}")
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
    named = ((f"--{option.replace('_', '-')}", value) for option, value in column_options(columns).items())
    say_next("bara", "train", name, *chain.from_iterable(named))


def _show_replies(task: "ReplyTask", rows: int) -> None:
    """Print the size of a task of replies, and some of its rows."""
    from rich.text import Text

    from bara_pyro.cli.terminal import console, mode, result, say
    from bara_pyro.data.messages import shown_message

    say(f"{task.name}: {task.counts}; replies (--likelihood completion)")
    for note in task.notes:
        say(f"- {note}")
    splits = {split: len(getattr(task, split)) for split in ("train", "validation", "test")}
    result(
        {"name": task.name, **splits, "notes": task.notes, "rows": [vars(row) for row in task.train[:rows]]}
    )
    for row in () if mode.json else task.train[:rows]:
        console.rule(Text(row.id))
        for message in [row.prompt] if isinstance(row.prompt, str) else row.prompt:
            say(shown_message(message))
        say(f"=> {shown_message(row.reply).strip()}")
