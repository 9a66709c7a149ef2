"""Print what the commands show: lines, tables and progress, or only the result as JSON.

A command keeps running if its terminal or the reader of its output goes away, and other libraries are silent.
"""

import errno
import io
import json
import logging
import math
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table as RichTable
from rich.text import Text

from bara_pyro.durations import spoken

if TYPE_CHECKING:  # tables of results come with pictures, and those with matplotlib
    from _typeshed import ReadableBuffer

    from bara_pyro.report.table import Table

console = Console()
errors = Console(stderr=True)
EVERY = 30.0  # seconds between lines of progress, if there is no terminal to draw a bar on
ARROWS = {"max": ("↑", "^"), "min": ("↓", "v")}
"""Which scores are better, the highest or the lowest -> the mark, and the mark in ASCII."""


@dataclass
class Mode:
    """How much is shown."""

    json: bool = False  # one JSON value on stdout and nothing else
    quiet: bool = False  # results without progress and remarks
    debug: bool = False  # tracebacks
    verbose: bool = False  # every column of the table of scores
    typed: frozenset[str] = frozenset()  # names of the command's parameters that were typed


mode = Mode()


class Advance:
    """Moves a progress bar; without one it prints a line every `EVERY` seconds. See `progress`."""

    def __init__(
        self, description: str, total: int | None, even: bool, seconds: float | None, bar: Progress | None
    ) -> None:
        self.description, self.total, self.done = description, total, 0
        self._even, self._seconds, self._bar = even, seconds, bar
        self._task = None if bar is None else bar.add_task(description, total=total, note="")
        self._began = self._said = time.monotonic()
        self._first: tuple[float, int] | None = None  # time and steps of the first call

    def __call__(
        self, count: int = 1, note: str = "", completed: int | None = None, total: int | None = None
    ) -> None:
        """Add `count` or go to `completed`, out of `total`, and show a note beside the bar."""
        self.total = self.total if total is None else total
        self.done = self.done + count if completed is None else completed
        now = time.monotonic()
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self.done, total=self.total, note=note)
        elif now - self._said >= EVERY:
            self._said = now
            of = "" if self.total is None else f" of {self.total}"
            parts = [f"{self.done}{of}", f"{now - self._began:.0f} s", *self._left(now)]
            remark(f"{self.description}: {', '.join([*parts, *([note] if note else [])])}")
        self._first = self._first or (now, self.done)

    def _left(self, now: float) -> list[str]:
        """Return the remaining time, if it can be estimated; a resumed run begins at its first step here."""
        began, before = self._first or (now, self.done)
        if not self._even:
            return [] if self._seconds is None else _to_go(self._seconds - (now - self._began))
        if self.total is None or self.done <= before:
            return []
        return _to_go((self.total - self.done) * (now - began) / (self.done - before))


@contextmanager
def progress(
    description: str, total: int | None, *, even: bool = True, seconds: float | None = None
) -> Iterator[Advance]:
    """Show progress on stderr: a bar on a terminal, otherwise a line every `EVERY` seconds.

    Args:
        description: the work.
        total: its steps; None if they are not known yet.
        even: whether all steps take about as long. If so, the remaining time is shown.
        seconds: with uneven steps, an estimate of the whole time, from which the remaining time is counted
            down; None if there is no estimate.
    """
    uneven = TimeElapsedColumn() if seconds is None else _Countdown(seconds)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeRemainingColumn() if even else uneven,
        TextColumn("{task.fields[note]}", markup=False),
    )
    drawn = errors.is_terminal and not mode.quiet
    with Progress(*columns, console=errors) if drawn else nullcontext() as bar:
        yield Advance(description, total, even, seconds, bar)


class _Countdown(ProgressColumn):
    """Shows the remaining time by an estimate in seconds, or the elapsed time once it has passed."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def render(self, task: Task) -> Text:
        """Return the time to show."""
        elapsed = task.elapsed or 0.0
        left = _to_go(self.seconds - elapsed)
        return Text(left[0] if left else spoken(elapsed))


def _to_go(seconds: float) -> list[str]:
    """Return the remaining time in words; nothing once an estimate has passed."""
    return [f"about {spoken(seconds)} to go"] if seconds > 0 else []


def remark(text: str) -> None:
    """Print a line on stderr, without markup."""
    if not mode.quiet:
        errors.print(text, markup=False, highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """Print a line on stdout, without markup and not cut at the terminal's width."""
    if not mode.json and not mode.quiet:
        console.print(text, markup=False, highlight=False, soft_wrap=True)


def say_notes(notes: Sequence[str]) -> None:
    """Print notes on the rows."""
    for note in notes:
        say(f"Note: {note}")


def show(table: "Table", *, marked: bool = False) -> None:
    """Print a table: its caption above it, and behind a column's heading an arrow to the better values.

    Set `marked` if the rows already have arrows; see `arrow`.
    """
    from bara_pyro.report.table import rich_table

    if mode.json:
        return
    columns = [
        replace(one, heading=one.heading.removesuffix(arrow(one.best)) + arrow(one.best))
        for one in table.columns  # the headings of tables for Markdown have their arrow already
    ]
    marked = marked or any(column.best for column in table.columns)
    legend = f"{arrow('max').strip()} higher is better, {arrow('min').strip()} lower is better"
    for line in (table.caption, legend if marked else ""):
        if line:
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    drawn = rich_table(replace(table, columns=columns, caption=""))
    # A terminal breaks lines that are too long; rich would leave out whole columns.
    least = Measurement.get(console, console.options.update(max_width=10_000), drawn).minimum
    drawn.width = least if least > console.width else None
    console.print(drawn, crop=False)


def arrow(best: str | None) -> str:
    """Return a space and the arrow to the better values, `max` or `min`; "" if neither is better."""
    return f" {ARROWS[best][console.options.ascii_only]}" if best else ""


def say_next(*words: object, remark: str = "") -> None:
    """Print what to type next, and its purpose, with paths as a shell reads them.

    A word in capitals or quotation marks is a placeholder.
    """
    say(f"Next: {' '.join(map(shell_word, words))}{remark and f' ({remark})'}")


def say_again(*more: object, remark: str) -> None:
    """Print, as what to type next, the same command with more options."""
    say_next("bara", *sys.argv[1:], *more, remark=remark)


def shell_word(word: object) -> str:
    """Return a word as a shell reads it; one in quotation marks is left as it is."""
    text = str(word)
    return text if text.startswith('"') else shlex.quote(text)


def listing(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print lines of text under headings."""
    if mode.json:
        return
    table = RichTable(*headings, box=SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    console.print(table, markup=False, highlight=False)


def print_rows(rows: Sequence[object]) -> None:
    """Print rows as JSON Lines; with --json print nothing, because `result` prints them."""
    if mode.json:
        return
    encoding = sys.stdout.encoding or "utf-8"
    for row in rows:
        line = json.dumps(_plain(row), allow_nan=False, ensure_ascii=False)
        sys.stdout.write(line.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    sys.stdout.flush()  # raises if the reader of a pipe is gone


def result(value: object) -> None:
    """Print the result of a command if --json was typed; infinite numbers and NaN become null."""
    if mode.json:
        print(json.dumps(_plain(value), indent=2, allow_nan=False))  # noqa: T201 - a result, not a remark


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)


class Outlet(io.FileIO):
    """A terminal or pipe that drops what is written once nobody reads it."""

    def write(self, data: "ReadableBuffer", /) -> int:
        """Write bytes; return their number."""
        try:
            return super().write(data)
        except OSError as error:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())  # so that buffered text is not written again
            os.close(null)
            if error.errno not in (errno.EIO, errno.EPIPE):  # a closed terminal, a pipe without a reader
                raise
        return memoryview(data).nbytes


def outlast_readers() -> None:
    """Let the command continue, and end with its own exit code, if nobody reads its output."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed before the command began
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif stream is getattr(sys, f"__{name}__"):  # not replaced by a caller or a test
            stream.flush()
            raw = io.BufferedWriter(Outlet(stream.fileno(), "w", closefd=False))
            text = io.TextIOWrapper(
                raw,
                encoding=stream.encoding,
                errors=stream.errors,
                line_buffering=stream.line_buffering,
                write_through=stream.write_through,
            )
            setattr(sys, name, text)


def hush_libraries() -> None:
    """Let other libraries log only errors. Commands call this; importing the package does not."""
    # transformers imports the first three if they are installed, and they log what they lack. lm-eval warns
    # of settings that were chosen on purpose.
    for library in ("torchao", "bitsandbytes", "torch.utils._pytree", "lm_eval"):
        logging.getLogger(library).setLevel(logging.ERROR)
