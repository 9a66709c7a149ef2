"""`bara acquire`: the rows of a pool that are worth labelling."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bara_pyro.cli.options import (
    Moved,
    Overwrite,
    Run,
    RunDevice,
    Seed,
    path,
    takes_columns,
)
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
            "--input", parser=path, help="The pool: rows like those trained on; answers are not looked at."
        ),
    ],
    count: Annotated[int, typer.Option(min=1, help="How many rows to choose.")] = 40,
    by: Annotated[
        Acquisition,
        typer.Option(
            help="entropy: of the prediction; bald: mutual information of answer and latents, row by row; "
            "batch-bald: of the answers of all chosen rows together; random: as a baseline."
        ),
    ] = "batch-bald",
    samples: Annotated[
        int,
        typer.Option(
            min=0,
            max=MOST_DRAWS,
            help="Posterior draws S. A batch tells at most log S nats of them: take many for batch-bald.",
        ),
    ] = 32,
    seed: Seed = 0,
    output: Annotated[
        Path | None,
        typer.Option(
            parser=path,
            help="File for the chosen rows, as they are in the pool, with place and scores: .jsonl, .csv, "
            ".tsv or .parquet.",
        ),
    ] = None,
    overwrite: Overwrite = False,
    columns: ColumnNames = UNNAMED,
    model: Moved = None,
    device: RunDevice = None,
) -> None:
    """Choose which rows of a pool to label next, by what their answers would tell (docs/active.md).

    Label the rows of --output, add them to the training rows and train again.
    """
    from bara_pyro.cli.outputs import check_rows
    from bara_pyro.cli.typed import note_of_draws
    from bara_pyro.runs.answers_file import ACQUISITION_KEYS

    check_rows(run, [pool], output, overwrite=overwrite, keys=ACQUISITION_KEYS)
    from bara_pyro.cli.terminal import progress, result, say, say_again, say_notes, shell_word
    from bara_pyro.data import load_questions
    from bara_pyro.data.csv_rows import separator_in
    from bara_pyro.data.tables import read_table
    from bara_pyro.extras.active.acquire import acquire as choose_rows
    from bara_pyro.extras.active.acquire import ask_pool, one_a_text
    from bara_pyro.metrics.acquisition import check_count
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
            [f"{len(examples) - texts} rows repeat the text of another, and one of each text is chosen"]
        )
    check_count(count, texts)
    with progress("ask the pool", len(examples)) as advance:
        asked = ask_pool(system, examples, samples=samples, seed=seed, on_rows=advance)
    say_notes(asked.notes)
    acquired = choose_rows(asked, count, by=by, seed=seed)
    for line in _said(acquired.summary):
        say(line)
    if output is not None:
        # What is written goes into the training rows: with the pool's columns and its separator.
        own = dict(zip((example.id for example in examples), table.rows, strict=True))
        rows = [own[row["id"]] | {k: v for k, v in row.items() if k != "id"} for row in acquired.rows]
        write_decisions(output, rows, separator_in(pool) if pool.suffix.lower() == ".csv" else ",")
        say(f"Rows to label, the first choice first, written to {output}: {count}")
    result({**acquired.summary, "chosen": [row["id"] for row in acquired.rows], "output": output})
    if output is not None:
        say(f"Next: label the rows of {shell_word(output)}, add them to the training rows and train again")
    else:
        say_again("--output", "to-label.jsonl", remark="writes the rows to label")


def check_columns(pool: "DataTable", written: Sequence[str]) -> None:
    """Refuse a pool with a column that is to be written beside its own.

    Raises:
        DataError: it has one.
    """
    from bara_pyro.errors import DataError

    if taken := [name for name in written if name in pool.columns]:
        raise DataError(
            f"{pool.place} has a column {taken[0]!r}, which is written beside its own: rename it."
        )


def check_cells(pool: "DataTable", output: Path) -> None:
    """Refuse a file of texts for a pool whose cells would not be read from it as they are.

    Raises:
        ConfigError: a cell holds more than one text, or a list in which a bar stands.
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
                    f"{name!r} of row {number} of {pool.place} cannot be written as one text that is read "
                    f"back the same: give --output a name that ends in .jsonl, not {output.suffix}."
                )


def _said(found: Json) -> list[str]:
    """Return what is said of the rows that were chosen."""
    lines = [f"{found['count']} of {found['rows']} rows chosen by {found['by']}, {found['draws']} draws."]
    if found["joint"] is not None and found["draws"] > 1:
        lines.append(
            f"Together their answers tell {found['joint']:.3g} nats of the latents; so many draws have "
            f"{found['most']:.3g} to tell."
        )
    if found["used_up"] is not None:
        rest = "" if found["by"] != "batch-bald" else ", and these are chosen by little more than noise"
        lines.append(
            f"From choice {found['used_up']} on nine tenths of that are told: the draws cannot say what "
            f"further rows are worth{rest}. Give more --samples or a smaller --count."
        )
    return lines
