"""Every interval of the docs again, from the rows that are stored with the studies: no run is needed.

    python -m experiments intervals

writes the comparisons of each study to its results; `python -m experiments report` prints them. A study of
which rows are missing keeps what it has, and says so here and on its page until its next run.
"""

from pathlib import Path

from bara_pyro.cli.terminal import say
from experiments.engine.arguments import command_line, start
from experiments.engine.differences import write_comparisons
from experiments.engine.results import RESULTS, results_option
from experiments.engine.rows import lacking
from experiments.page.spec import stored_studies


def recompute(results: Path = RESULTS) -> list[str]:
    """Compute and write the comparisons of all studies; return a line on each that has any."""
    lines = []
    for name, (_, spec) in stored_studies(results).items():
        if spec.comparisons is None:
            continue
        if missing := lacking(name, results):
            lines.append(
                f"{name}: not recomputed, the rows of {len(missing)} runs are not stored until its next run"
            )
            continue
        entries = write_comparisons(name, spec.comparisons, results)
        lines.append(f"{name}: {len(entries)} comparisons")
    return lines


def main() -> None:
    """Recompute all intervals."""
    parser = command_line(__doc__)
    results_option(parser)
    for line in recompute(parser.parse_args().out):
        say(line)


if __name__ == "__main__":
    start(main)
