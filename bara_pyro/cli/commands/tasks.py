"""`bara methods` and `bara tasks`: list methods and tasks, or show rows of a task."""

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer

from bara_pyro.cli.options import DataDir, takes_columns
from bara_pyro.cli.wrap import TRAIN, listed
from bara_pyro.columns import KINDS, OPTIONS, UNNAMED, ColumnNames, column_options

if TYPE_CHECKING:
    from bara_pyro.data import Example
    from bara_pyro.data.conversations import Conversation


@listed(TRAIN)
def methods() -> None:
    """List the training methods."""
    from bara_pyro.cli.catalogue import catalogue
    from bara_pyro.cli.terminal import listing, result, say_next

    entries = [{"name": entry["name"], "summary": entry["summary"]} for entry in catalogue()["methods"]]
    listing(("method", "what it is"), [tuple(entry.values()) for entry in entries])
    say_next("bara", "train", "FILE", "--method", "NAME")
    result(entries)


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
    from bara_pyro.cli.checks import refuse
    from bara_pyro.cli.terminal import console, listing, mode, result, say, say_next

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
    from bara_pyro.data.reply_tasks import ReplyTask, is_reply_task, load_replies

    # No task of replies has columns that can be named.
    replies = is_reply_task(name) and not columns.named
    task = load_replies(name, data_dir) if replies else load_task(name, data_dir, **column_options(columns))
    labels = () if isinstance(task, ReplyTask) else task.labels
    learnt = "replies (--likelihood completion)" if replies else f"answers {', '.join(labels)}"
    say(f"{task.name}: {task.counts}; {learnt}")
    for note in task.notes:
        say(f"- {note}")
    shown = (task.train or task.test)[:rows]
    result(
        {
            "name": task.name,
            **{split: len(getattr(task, split)) for split in ("train", "validation", "test")},
            **({} if replies else {"labels": labels}),
            "notes": task.notes,
            "rows": [vars(row) for row in shown],
        }
    )
    for row in () if mode.json else shown:
        console.rule(Text(row.id))
        for line in _lines(row, labels):
            say(line)
    named = ((f"--{option.replace('_', '-')}", value) for option, value in column_options(columns).items())
    more = ["--likelihood", "completion"] if replies else chain.from_iterable(named)
    say_next("bara", "train", name, *more)


def _lines(row: "Example | Conversation", labels: Sequence[str]) -> list[str]:
    """Return a row as the model reads it, with the answer or the reply to learn."""
    from bara_pyro.data import Example
    from bara_pyro.data.conversations import shown_message

    if isinstance(row, Example):
        return [*([row.context] if row.context else []), f"{row.question} {labels[row.label]}"]
    prompt = [row.prompt] if isinstance(row.prompt, str) else row.prompt
    return [*map(shown_message, prompt), f"=> {shown_message(row.reply).strip()}"]
