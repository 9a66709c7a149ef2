"""Compute every interval of the docs again, from the rows that are stored with the studies: no run is needed.

    python -m experiments intervals

writes the comparisons of each study, retired ones included, to its results where they differ; `python -m
experiments report` prints them. A study of which rows are missing keeps what it has.
"""

import json
from pathlib import Path

from bara_pyro.cli.terminal import say
from experiments.engine.arguments import command_line, start
from experiments.engine.differences import compared_again
from experiments.engine.results import RESULTS, read_results, results_option, stored_names
from experiments.engine.rows import lacking


def recompute(results: Path = RESULTS) -> list[str]:
    """Compute the comparisons of all studies again and write what differs; return a line on each study."""
    lines = []
    for stored in (read_results(name, results) for name in stored_names(results)):
        if not stored.comparisons:
            continue
        if missing := lacking(stored.name, results):
            lines.append(
                f"{stored.name}: not recomputed, the rows of {len(missing)} runs are not stored until its "
                "next run"
            )
            continue
        entries = json.loads(json.dumps(compared_again(stored)))  # as they are stored
        same = entries == stored.comparisons
        lines.append(f"{stored.name}: {len(entries)} comparisons, {'as stored' if same else 'changed'}")
        if not same:
            stored.comparisons = entries
            stored.write()
    return lines


def main() -> None:
    """Recompute all intervals."""
    parser = command_line(__doc__)
    results_option(parser)
    for line in recompute(parser.parse_args().out):
        say(line)


if __name__ == "__main__":
    start(main)
