"""`bara abstain`, `conformal` and `detect`: decide on rows with a guarantee from calibration rows."""

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bara_pyro.cli.options import (
    DATA,
    Moved,
    Overwrite,
    Run,
    RunDevice,
    SampleCount,
    Seed,
    path,
    takes_columns,
)
from bara_pyro.cli.wrap import DECIDE, Command, in_place_of, listed, with_parameters
from bara_pyro.columns import KINDS, OPTIONS, UNNAMED, ColumnNames
from bara_pyro.types import Json, Measure, SetScore

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
    samples: SampleCount = 10
    seed: Seed = 0
    columns: ColumnNames = UNNAMED
    model: Moved = None
    device: RunDevice = None

    def check(self, keys: Collection[str]) -> None:
        """Raise a `BaraError` for files that do not exist or must not be written, before anything slow.

        `keys` are the columns that every output of this command has.
        """
        from bara_pyro.cli.checks import check_rows, refuse

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
        from bara_pyro.cli.checks import note_of_draws
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
        decided = in_place_of("question", shared, lambda values: DecisionCommand(**values))(command)
        files = ("run", "input_file", "output", "overwrite")
        others = [parameter for name, parameter in shared.items() if name not in files]
        with_parameters(decided, [*(shared[name] for name in files), *own, *others])
        columns = [f"{kind}_column" for kind in ("text", "label") if kind in kinds]
        everyday = (*files[1:], *(one.name for one in own), "calibration", "samples", *columns)
        return listed(DECIDE, *everyday, "model", "device")(takes_columns(*kinds)(decided))

    return deciding


@decides()
def abstain(
    question: DecisionCommand,
    risk: Annotated[
        float, typer.Option(min=0, max=1, help="Largest error rate of the answers to future rows.")
    ] = 0.1,
    delta: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="Probability, over draws of the calibration rows, that it is exceeded."
        ),
    ] = 0.05,
) -> None:
    """Answer only confident rows, so that the error rate stays below a limit.

    With probability 1 - delta or more over the calibration rows, at most a share --risk of the answers to
    future rows is wrong. This holds for rows from the same distribution as the calibration rows
    (docs/decide.md).
    """
    from bara_pyro.runs.answers import ABSTENTION_KEYS

    question.check(ABSTENTION_KEYS)
    from bara_pyro.metrics.abstention import ranks
    from bara_pyro.runs.decide import decide_abstention

    system, known, scored = question.ask(lambda _, rows: ranks(rows, risk, delta))
    decided = decide_abstention(known, scored, system.task, risk=risk, delta=delta)
    summary, rule = decided.summary, decided.rule
    lines = [
        f"Rows with a confidence above {rule.threshold:.4g} are answered: {rule.answered} of {rule.rows} "
        f"calibration rows, {rule.wrong} of them wrongly.",
        f"With probability {1 - delta:g} or more, at most {100 * risk:g} % of the answers to future rows "
        "are wrong.",
        f"{summary['answered']} of {summary['rows']} rows are answered.",
    ]
    if summary["error_rate"] is not None:
        lines.append(f"Of the answers to labelled rows {summary['error_rate']:.1f} % are wrong.")
    if summary["expected_error_rate"] is not None:
        lines.append(f"Under the true distribution {summary['expected_error_rate']:.1f} % are wrong.")
    question.finish(decided.rows, lines, {"calibration": vars(rule), **summary})


@decides()
def conformal(
    question: DecisionCommand,
    alpha: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="Largest share of future rows whose right answer is missing from their set."
        ),
    ] = 0.1,
    score: Annotated[
        SetScore,
        typer.Option(
            help="lac: smallest sets on average, some may be empty. aps: larger sets for harder rows."
        ),
    ] = "lac",
) -> None:
    """Give each row a set of answers that contains the right one with probability 1 - alpha or more.

    This holds on average over calibration rows and future rows of the same distribution (docs/decide.md).
    """
    from bara_pyro.runs.answers import SET_KEYS

    question.check(SET_KEYS)
    from bara_pyro.metrics.conformal import allowed
    from bara_pyro.runs.decide import decide_sets

    system, known, scored = question.ask(lambda _, rows: allowed(rows, alpha))
    decided = decide_sets(known, scored, system.task, alpha=alpha, score=score)
    summary = decided.summary
    sizes = ", ".join(f"{rows} have {size}" for size, rows in summary["sizes"].items())
    reached = 100 * (1 - allowed(decided.rule.rows, alpha) / (decided.rule.rows + 1))
    lines = [
        f"The sets have {summary['mean_size']:.2f} answers on average: of {summary['rows']} rows {sizes}.",
        f"At least {reached:.1f} % of future rows have their right answer in their set, on average over "
        f"draws of {decided.rule.rows} calibration rows.",
    ]
    if summary["coverage"] is not None:
        lines.append(f"Of the labelled rows here {summary['coverage']:.1f} % have it.")
    if summary["expected_coverage"] is not None:
        lines.append(f"Under the true distribution {summary['expected_coverage']:.1f} % have it.")
    about = {"alpha": alpha, "score": score, "calibration_rows": decided.rule.rows}
    question.finish(decided.rows, lines, {**about, "threshold": decided.rule.threshold, **summary})


MEASURES = {
    "total": "entropy",
    "epistemic": "mutual information",
    "distance": "distance from the training rows",
}


@decides("text", "choices", "context", "cluster")
def detect(
    question: DecisionCommand,
    alpha: Annotated[
        float, typer.Option(min=0, max=1, help="Largest share of in-distribution rows that are flagged.")
    ] = 0.05,
    by: Annotated[
        Measure | None,
        typer.Option(
            help="Score to flag rows by: total is the entropy of the prediction, epistemic the mutual "
            "information, distance how far a row is from the training rows. (default: distance if the run "
            "was trained with --distance-aware, else total)"
        ),
    ] = None,
) -> None:
    """Flag out-of-distribution rows: each row gets a p-value of being like the calibration rows.

    On average over calibration rows, at most a share --alpha of in-distribution rows is flagged
    (docs/decide.md).
    """
    from bara_pyro.runs.answers import DETECTION_KEYS

    question.check(DETECTION_KEYS)
    from bara_pyro.metrics.conformal import allowed
    from bara_pyro.runs.asked import fitted_distance
    from bara_pyro.runs.decide import decide_detection

    def check(system: "System", rows: int) -> None:
        allowed(rows, alpha)
        if by == "distance":
            fitted_distance(system)

    system, known, scored = question.ask(check, answers=False)
    decided = decide_detection(system, known, scored, alpha=alpha, by=by)
    summary, rows = decided.summary, len(known.examples)
    lines = [
        f"{summary['foreign']} of {summary['rows']} rows are flagged as out-of-distribution by their "
        f"{MEASURES[summary['by']]}.",
        f"At most {100 * alpha:g} % of in-distribution rows are flagged, on average over draws of {rows} "
        "calibration rows.",
    ]
    question.finish(decided.rows, lines, {"alpha": alpha, "calibration_rows": rows, **summary})
