"""`bara compare`: compare two runs, or two groups of runs, on the same rows."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from bara_pyro.cli.options import DATA, Overwrite, path
from bara_pyro.cli.wrap import TRAIN, listed
from bara_pyro.runs.sections import MOST_DRAWS

GROUP = "Folder of a run, of one of its evaluations, or of several runs that differ only by their seed."


@listed(TRAIN)
def compare(
    a: Annotated[Path, typer.Argument(metavar="A", parser=path, help=GROUP)],
    b: Annotated[Path, typer.Argument(metavar="B", parser=path, help="Folder to compare it with.")],
    on: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Evaluation to compare, a folder in RUN/evaluation. (default: the run's own)",
            rich_help_panel=DATA,
        ),
    ] = None,
    clusters: Annotated[
        Path | None,
        typer.Option(
            parser=path,
            metavar="FILE",
            help="Table with the columns 'id' and 'cluster'. Rows of one cluster, for example of one author, "
            "are not independent.",
            rich_help_panel=DATA,
        ),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(min=0, max=MOST_DRAWS, help="Posterior draws S of both sides. (default: the most)"),
    ] = None,
    page: Annotated[
        Path | None, typer.Option(parser=path, metavar="FILE", help="Page to write (.html).")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Compare two runs on the same rows by accuracy, ECE, NLL and Brier score.

    Each difference comes with a paired 95 % interval. A and B may also be folders of several runs that differ
    only by their seed. These are paired by seed, and the intervals then also cover training with other seeds.
    """
    from bara_pyro.cli.checks import check_file, check_overwrite
    from bara_pyro.errors import ConfigError
    from bara_pyro.runs.answers import comparison_page_in

    check_overwrite(page)
    if page is not None:
        if page.suffix.lower() != ".html":
            raise ConfigError(f"--page {page}: end the name in .html.")
        check_file(page, overwrite=overwrite, inputs=[a, b], option="--page", ours=comparison_page_in)

    if a.resolve() == b.resolve():
        raise ConfigError(f"{b} is on both sides: give two different runs.")

    from bara_pyro.cli.terminal import arrow, result, say, say_again, say_notes, shell_word, show
    from bara_pyro.diagnostics.paired.compare import compare_runs
    from bara_pyro.diagnostics.paired.page import comparison_sentences, table, write_comparison
    from bara_pyro.metrics.base import METRICS

    named = None if clusters is None else read_clusters(clusters)
    comparison = compare_runs(a, b, on=on, samples=samples, clusters=named)
    scores = table(comparison)
    rows = [
        {**row, "metric": f"{row['metric']}{arrow(METRICS[one.metric].best)}"}
        for row, one in zip(scores.rows, comparison.metrics, strict=True)
    ]
    show(replace(scores, rows=rows), marked=True)
    say_notes(comparison.notes)
    for sentence in comparison_sentences(comparison):
        say(f"- {sentence}")
    if page is not None:
        say(f"Written to {write_comparison(comparison, page)}")
        say(f"Next: open {shell_word(page)} in a browser")
    else:
        say_again("--page", "compared.html", remark="writes a page with a figure")
    result(comparison.model_dump() | ({} if page is None else {"page": page}))


def read_clusters(file: Path) -> dict[str, str]:
    """Return the cluster of each row of a table, by its id; "" for a row of no cluster.

    Raises:
        DataError: the file cannot be read, or a row lacks its id or its cluster.
    """
    from bara_pyro.data.rows import own_id
    from bara_pyro.data.tables import label_text, missing, read_table
    from bara_pyro.errors import DataError

    cluster_of: dict[str, str] = {}
    for number, row in enumerate(read_table(file).rows, start=1):
        if missing(row.get("id")) or "cluster" not in row:
            raise DataError(f"{file}, row {number} has no 'id' or no 'cluster': give each row both.")
        row_id = own_id(row)
        cluster = "" if missing(row["cluster"]) else label_text(row["cluster"])
        if cluster_of.setdefault(row_id, cluster) != cluster:
            raise DataError(
                f"{file}, row {number}: {row_id!r} has two clusters, {cluster_of[row_id]!r} and {cluster!r}: "
                "give each id one cluster."
            )
    return cluster_of
