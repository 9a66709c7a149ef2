"""`bara acquire`: choose the rows of a pool to label next."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bara_pyro.cli.options import Moved, Overwrite, Run, RunDevice, Seed, path, takes_columns
from bara_pyro.cli.wrap import DECIDE, listed
from bara_pyro.columns import UNNAMED, ColumnNames
from bara_pyro.runs.sections import MOST_DRAWS
from bara_pyro.types import Acquisition, Json

if TYPE_CHECKING:
    from bara_pyro.data.tables import DataTable


@listed(DECIDE, "pool", "count", "by", "samples", "output", "overwrite", "text_column", "model", "device")
@takes_columns("text", "choices", "context")
def acquire(
    run: Run,
    pool: Annotated[
        Path,
        typer.Option(
            "--input", parser=path, help="The pool: rows like the training rows; answers are ignored."
        ),
    ],
    count: Annotated[int, typer.Option(min=1, help="How many rows to choose.")] = 40,
    by: Annotated[
        Acquisition,
        typer.Option(
            help="entropy: entropy of the prediction. bald: mutual information of each row's answer and the "
            "latents. batch-bald: that of all chosen rows together. random: a baseline."
        ),
    ] = "batch-bald",
    samples: Annotated[
        int,
        typer.Option(
            min=0,
            max=MOST_DRAWS,
            help="Posterior draws S. Joint information is limited to log S nats: use many for batch-bald.",
        ),
    ] = 32,
    seed: Seed = 0,
    output: Annotated[
        Path | None,
        typer.Option(
            parser=path,
            help="File to write the chosen rows to, with rank and scores: .jsonl, .csv, .tsv or .parquet.",
        ),
    ] = None,
    overwrite: Overwrite = False,
    columns: ColumnNames = UNNAMED,
    model: Moved = None,
    device: RunDevice = None,
) -> None:
    """Choose the rows of a pool whose labels would be most informative (docs/active.md).

    Label the rows of --output, add them to the training rows and train again.
    """
    from bara_pyro.cli.checks import check_rows, note_of_draws
    from bara_pyro.runs.answers import ACQUISITION_KEYS

    check_rows(run, [pool], output, overwrite=overwrite, keys=ACQUISITION_KEYS)
    from bara_pyro.cli.terminal import progress, result, say, say_again, say_notes, shell_word
    from bara_pyro.data import load_questions
    from bara_pyro.data.reading import separator_in
    from bara_pyro.data.tables import read_table
    from bara_pyro.extras.active.acquire import acquire as choose_rows
    from bara_pyro.extras.active.acquire import ask_pool, one_a_text
    from bara_pyro.extras.active.acquisition import check_count
    from bara_pyro.runs.decide import write_decisions
    from bara_pyro.runs.folder import load_system
    from bara_pyro.runs.system import require_answers

    system = load_system(run, backbone=model, device=device, with_rows=False)
    require_answers(system.config)
    note_of_draws(system, samples=samples, seed=0 if by == "random" else seed)
    table = read_table(pool)
    if output is not None:
        check_columns(table, (*ACQUISITION_KEYS, "joint"))
        check_cells(table, output)
    examples = load_questions(pool, system.task, given=columns)
    texts = len(one_a_text(examples))
    if texts < len(examples):
        say_notes(
            [f"{len(examples) - texts} rows repeat the text of another row; at most one of each is chosen"]
        )
    check_count(count, texts)
    with progress("ask the pool", len(examples)) as advance:
        pool_rows = ask_pool(system, examples, samples=samples, seed=seed, on_rows=advance)
    say_notes(pool_rows.notes)
    acquired = choose_rows(pool_rows, count, by=by, seed=seed)
    for line in _said(acquired.summary):
        say(line)
    if output is not None:
        # The file will be added to the training rows, so keep the pool's columns and separator.
        columns_of = dict(zip((example.id for example in examples), table.rows, strict=True))
        rows = [columns_of[row["id"]] | {k: v for k, v in row.items() if k != "id"} for row in acquired.rows]
        write_decisions(output, rows, separator_in(pool) if pool.suffix.lower() == ".csv" else ",")
        say(f"{count} rows to label, best first, written to {output}")
    result({**acquired.summary, "chosen": [row["id"] for row in acquired.rows], "output": output})
    if output is not None:
        say(f"Next: label the rows of {shell_word(output)}, add them to the training rows and train again")
    else:
        say_again("--output", "to-label.jsonl", remark="writes the rows to label")


def check_columns(pool: "DataTable", written: Sequence[str]) -> None:
    """Raise a `DataError` if the pool already has one of the columns to be written."""
    from bara_pyro.errors import DataError

    if taken := [name for name in written if name in pool.columns]:
        raise DataError(
            f"{pool.place} has a column {taken[0]!r}, which this command writes: rename the column."
        )


def check_cells(pool: "DataTable", output: Path) -> None:
    """Raise a `ConfigError` if a CSV or TSV file cannot hold the pool's cells unchanged.

    These are mappings, lists of other values than texts, and lists with a bar in a text.
    """
    from bara_pyro.errors import ConfigError

    if output.suffix.lower() not in (".csv", ".tsv"):
        return
    for number, row in enumerate(pool.rows, start=1):
        for name, cell in row.items():
            if isinstance(cell, Mapping) or (
                isinstance(cell, Sequence)
                and not isinstance(cell, str)
                and not all(isinstance(item, str) and "|" not in item for item in cell)
            ):
                raise ConfigError(
                    f"{name!r} of row {number} of {pool.place} cannot be stored in a {output.suffix} file "
                    "without loss: give --output a name that ends in .jsonl."
                )


def _said(report: Json) -> list[str]:
    """Return lines that summarise the chosen rows."""
    lines = [f"{report['count']} of {report['rows']} rows chosen by {report['by']}, {report['draws']} draws."]
    if report["joint"] is not None and report["draws"] > 1:
        lines.append(
            f"Their answers carry {report['joint']:.3g} nats of information about the latents; the limit "
            f"with this many draws is {report['most']:.3g}."
        )
    if report["used_up"] is not None:
        rest = "" if report["by"] != "batch-bald" else ", and their choice is mostly noise"
        lines.append(
            f"Choice {report['used_up']} reaches 90 % of this limit: with these draws, later rows cannot be "
            f"ranked{rest}. Give more --samples or a smaller --count."
        )
    return lines
