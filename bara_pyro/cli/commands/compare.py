"""`bara compare`: two runs, or two groups of runs, on the same rows."""

from pathlib import Path
from typing import Annotated

import typer

from bara_pyro.cli.options import DATA, Overwrite, path
from bara_pyro.cli.wrap import TRAIN, listed
from bara_pyro.runs.sections import MOST_DRAWS

GROUP = "Folder of a finished run, of one of its evaluations, or of several runs that differ by their seed."


@listed(TRAIN)
def compare(
    a: Annotated[Path, typer.Argument(metavar="A", parser=path, help=GROUP)],
    b: Annotated[
        Path, typer.Argument(metavar="B", parser=path, help="The same of what it is compared with.")
    ],
    on: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="An evaluation of each run, a folder in RUN/evaluation; by default the run's own.",
            rich_help_panel=DATA,
        ),
    ] = None,
    clusters: Annotated[
        Path | None,
        typer.Option(
            parser=path,
            metavar="FILE",
            help="Table with the columns 'id' and 'cluster': rows that err together, of one author say.",
            rich_help_panel=DATA,
        ),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(min=0, max=MOST_DRAWS, help="Posterior draws S to compare with. (default: the most)"),
    ] = None,
    page: Annotated[
        Path | None, typer.Option(parser=path, metavar="FILE", help="Page to write, .html.")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Compare two runs on the same rows: accuracy, ECE, NLL and Brier score with paired intervals.

    Each of A and B may be several runs of one training with other seeds, right below a folder; they are
    paired by seed, and the intervals then hold for training again, too.
    """
    from bara_pyro.cli.outputs import check_file
    from bara_pyro.cli.typed import check_overwrite
    from bara_pyro.errors import ConfigError
    from bara_pyro.runs.answers_file import comparison_page_in

    check_overwrite(page)
    if page is not None:
        if page.suffix.lower() != ".html":
            raise ConfigError(f"--page {page}: end the name in .html.")
        check_file(page, overwrite=overwrite, inputs=[a, b], option="--page", ours=comparison_page_in)

    from bara_pyro.cli.terminal import result, say, say_notes, show
    from bara_pyro.diagnostics.page.render_paired import comparison_sentences, table, write_comparison
    from bara_pyro.diagnostics.paired.compare import compare_runs

    named = None if clusters is None else read_clusters(clusters)
    found = compare_runs(a, b, on=on, samples=samples, clusters=named)
    show(table(found))
    say_notes(found.notes)
    for sentence in comparison_sentences(found):
        say(f"- {sentence}")
    if page is not None:
        say(f"Open {write_comparison(found, page)}")
    result(found.model_dump() | ({} if page is None else {"page": page}))


def read_clusters(file: Path) -> dict[str, str]:
    """Return the cluster of each row of a table, by its id; an empty text where a row stands for itself.

    Raises:
        DataError: it cannot be read, or lacks one of the two.
    """
    from bara_pyro.data.cells import label_text
    from bara_pyro.data.rows import own_id
    from bara_pyro.data.schemas import missing
    from bara_pyro.data.tables import read_table
    from bara_pyro.errors import DataError

    found: dict[str, str] = {}
    for number, row in enumerate(read_table(file).rows, start=1):
        if missing(row.get("id")) or "cluster" not in row:
            raise DataError(f"{file}, row {number} lacks an 'id' or a 'cluster': give each row both.")
        row_id = own_id(row)
        cluster = "" if missing(row["cluster"]) else label_text(row["cluster"])
        if found.setdefault(row_id, cluster) != cluster:
            raise DataError(
                f"{file}, row {number}: {row_id!r} has the clusters {found[row_id]!r} and {cluster!r}: give "
                "each row one."
            )
    return found
