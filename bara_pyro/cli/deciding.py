"""Share what `bara abstain`, `conformal` and `detect` have in common: options, predictions and output."""

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bara_pyro.cli.options import DATA, Moved, Overwrite, Run, RunDevice, Seed, path, takes_columns
from bara_pyro.cli.typed import note_of_draws, refuse
from bara_pyro.cli.wrap import DECIDE, Command, listed, with_parameters
from bara_pyro.columns import KINDS, OPTIONS, UNNAMED, ColumnNames
from bara_pyro.runs.sections import MOST_DRAWS
from bara_pyro.types import Json

if TYPE_CHECKING:
    from bara_pyro.data import Example
    from bara_pyro.data.tables import DataTable
    from bara_pyro.runs.asked import ScoredRows
    from bara_pyro.runs.system import System

InputFile = Annotated[
    Path | None,
    typer.Option(
        "--input", parser=path, help="File of rows in the format of training. (default: the run's test rows)"
    ),
]
OutputFile = Annotated[
    Path | None,
    typer.Option(parser=path, help="File to write, a line per row: .jsonl, .csv, .tsv or .parquet."),
]
Calibration = Annotated[
    Path | None,
    typer.Option(
        parser=path,
        metavar="FILE",
        help="Held-out rows that no setting was chosen by. (default: the run's validation rows)",
        rich_help_panel=DATA,
    ),
]
Draws = Annotated[int, typer.Option(min=0, max=MOST_DRAWS, help="Posterior draws S; 0: the posterior mean.")]


@dataclass(frozen=True)
class DecisionCommand:
    """The options of a command, except the numbers that its guarantee states.

    `columns` are named if they differ from the training rows'; only calibration rows have clusters.
    """

    run: Run
    input_file: InputFile = None
    output: OutputFile = None
    overwrite: Overwrite = False
    calibration: Calibration = None
    samples: Draws = 10
    seed: Seed = 0
    columns: ColumnNames = UNNAMED
    model: Moved = None
    device: RunDevice = None

    def check(self, keys: Collection[str]) -> None:
        """Raise a `BaraError` for files that do not exist or must not be written, before anything slow.

        `keys` are the columns that every output of this command has.
        """
        from bara_pyro.cli.outputs import check_rows

        if self.calibration is None:
            refuse(["cluster_column"], "names a column of calibration rows: give --calibration FILE")
            if self.input_file is None:
                refuse(OPTIONS, "names a column of a file: give --input or --calibration")
        read = [file for file in (self.input_file, self.calibration) if file is not None]
        check_rows(self.run, read, self.output, overwrite=self.overwrite, keys=keys)

    def ask(
        self, check: Callable[["System", int], object], *, answers: bool = True
    ) -> "tuple[System, ScoredRows, ScoredRows]":
        """Return the fitted system, its calibration rows and the rows to decide on.

        Args:
            check: takes the system and the number of calibration rows, and raises an error if they are too
                few for the guarantee, before anything is predicted.
            answers: whether each calibration row needs its answer.

        Raises:
            BaraError: rows cannot be read, were trained on, or are too few.
        """
        from bara_pyro.cli.terminal import progress, say_notes
        from bara_pyro.runs.asked import ask, clustered_by, independent, known_rows, rows_to_decide
        from bara_pyro.runs.folder import load_system
        from bara_pyro.runs.system import require_answers

        run_rows = self.input_file is None or self.calibration is None
        system = load_system(self.run, backbone=self.model, device=self.device, with_rows=run_rows)
        require_answers(system.config)
        note_of_draws(system, samples=self.samples, seed=self.seed)
        rows = known_rows(system, self.calibration, given=self.columns, answers=answers)
        known = independent(system, rows, self.calibration, self.columns)
        check(system, len(known))
        columns = replace(self.columns, cluster=None)
        others = rows_to_decide(system, self.input_file, given=columns)

        def asked(rows: "Sequence[Example] | DataTable", name: str) -> "ScoredRows":
            with progress(f"predict {name} rows", len(rows)) as advance:
                return ask(
                    system, rows, name, given=columns, samples=self.samples, seed=self.seed, on_rows=advance
                )

        decided = asked(others, "given" if self.input_file else "test")
        calibrating = asked(known, "calibration")
        notes = [*calibrating.notes, *decided.notes]
        cluster = clustered_by(system.task, self.columns)
        if cluster is not None or len(known) < len(rows):
            one = f"one of each {cluster or 'text'}"
            notes.append(f"{len(known)} rows calibrate, {one}, because others would not be independent")
        say_notes(notes)
        return system, calibrating, decided

    def finish(self, rows: Sequence[Json], said: Sequence[str], found: Json) -> None:
        """Write the rows to --output, if any; print the lines, what to type next, and the result."""
        from bara_pyro.cli.terminal import result, say, say_again, say_next
        from bara_pyro.runs.decide import write_decisions

        for line in said:
            say(line)
        if self.output is not None:
            write_decisions(self.output, rows)
            say(f"Rows written to {self.output}: {len(rows)}")
            say_next("bara", "serve", self.run, remark="answers over HTTP")
        else:
            say_again("--output", "decided.csv", remark="writes the decision on each row")
        result({**found, "output": self.output})


def decides(*kinds: str) -> Callable[[Command], Command]:
    """Return a decorator that gives a command the options of a `DecisionCommand`, its first argument.

    All kinds of columns can be named, unless `kinds` are given.
    """
    kinds = kinds or tuple(KINDS)

    def deciding(command: Command) -> Command:
        shared = inspect.signature(DecisionCommand, eval_str=True).parameters
        _, *own = inspect.signature(command, eval_str=True).parameters.values()

        @wraps(command)
        def wrapped(**arguments: Any) -> None:
            question = DecisionCommand(**{name: arguments.pop(name) for name in shared})
            command(question, **arguments)

        files = ("run", "input_file", "output", "overwrite")
        others = [parameter for name, parameter in shared.items() if name not in files]
        decided = with_parameters(wrapped, [*(shared[name] for name in files), *own, *others])
        columns = [f"{kind}_column" for kind in ("text", "label") if kind in kinds]
        everyday = (*files[1:], *(one.name for one in own), "calibration", "samples", *columns)
        return listed(DECIDE, *everyday, "model", "device")(takes_columns(*kinds)(decided))

    return deciding
