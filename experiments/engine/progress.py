"""What a sweep shows while it runs: a live table in a terminal, a line a run elsewhere."""

import time
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from bara_pyro.cli.terminal import console as terminal
from bara_pyro.cli.terminal import say
from bara_pyro.report.table import Column, Table, rich_table

COLUMNS = (
    Column("run", "last finished"),
    Column("acc", "acc", format=".1f"),
    Column("ece", "ECE", format=".1f"),
    Column("nll", "NLL", format=".3f"),
)
SHOWN = 8


class Board:
    """Counts the runs of a sweep, `left` of them to come, and shows where it stands."""

    def __init__(self, done: int, failed: int, left: int, console: Console = terminal) -> None:
        self.total = done + failed + left
        self.left = left
        self.ok, self.bad = done, failed
        self.running: list[str] = []
        self._finished = 0
        self._last: deque[dict[str, Any]] = deque(maxlen=SHOWN)
        self._started = time.perf_counter()
        self._live = (
            Live(get_renderable=self.render, console=console, refresh_per_second=2, transient=True)
            if console.is_terminal
            else None
        )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
        say(self.counts())

    def started(self, label: str) -> None:
        """Note that a run is being worked on."""
        self.running.append(label)

    def finished(self, label: str, record: dict[str, Any], failures: Sequence[str]) -> None:
        """Note that a run is done, and what failed in it."""
        self.running.remove(label)
        self.left -= 1
        self._finished += 1
        self.ok, self.bad = self.ok + (not failures), self.bad + bool(failures)
        scores = headline(record)
        self._last.append({"run": ("failed: " if failures else "") + label, **scores})
        if self._live is None:
            known = (("acc", "acc", ".1f"), ("ece", "ECE", ".1f"), ("nll", "NLL", ".3f"))
            there = [(said, scores.get(key), form) for key, said, form in known]
            shown = ", ".join(f"{said} {value:{form}}" for said, value, form in there if value is not None)
            outcome = f"failed: {' '.join(failures)}" if failures else f"{label}: {shown}"
            say(f"[{self.total - self.left}/{self.total}] {outcome} ({self.times()})")

    def failed(self, lines: Sequence[str], retried: bool) -> None:
        """List what failed, in this sweep or before it."""
        if lines:
            say(f"Failed{'' if retried else ' (--retry-failed tries them again)'}:")
        for line in lines:
            say(f"- {line}")

    def counts(self) -> str:
        """Return one line that counts the runs."""
        waiting = self.left - len(self.running)
        return (
            f"{self.ok} done, {self.bad} failed, {len(self.running)} running, {waiting} left; {self.times()}"
        )

    def times(self) -> str:
        """Return the time so far and, once a run is done, an estimate of the time left."""
        elapsed, done = time.perf_counter() - self._started, self._finished
        left = f", about {_clock(elapsed / done * self.left)} left" if done and self.left else ""
        return f"{_clock(elapsed)} elapsed{left}"

    def render(self) -> Group:
        """Return the live picture."""
        running = [Text(f"  {label}") for label in self.running]
        return Group(Text(self.counts()), *running, rich_table(Table(COLUMNS, list(self._last))))


def headline(record: dict[str, Any]) -> dict[str, Any]:
    """Return the scores of the most draws; none where the run failed."""
    metrics = record.get("metrics")
    return metrics[max(metrics, key=int)] if metrics else {}


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=int(seconds)))
