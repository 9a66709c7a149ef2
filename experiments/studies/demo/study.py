"""The demonstration: LoRA and both forms of BaRA on a small task, as `bara demo` trains and scores them.

python -m experiments demo --run runs/demo
"""

from pathlib import Path

from bara_pyro.cli.scores import score_table
from bara_pyro.cli.terminal import say
from bara_pyro.runs.store import read_json
from experiments.engine.arguments import command_line
from experiments.engine.results import RESULTS, Results
from experiments.page.parts import Part
from experiments.page.spec import entry_study


def parts(results: Results) -> list[Part]:
    """Return the table that the demonstration printed."""
    return [score_table(list(results.entries.values()))]


def main() -> None:
    """Keep the scores of a demonstration that was run."""
    parser = command_line(__doc__)
    parser.add_argument("--run", metavar="DIR", type=Path, default=Path("runs/demo"),
        help="folder that `bara demo` wrote; default: %(default)s")  # fmt: skip
    stored = read_json(parser.parse_args().run / "results.json")
    results = Results(RESULTS / "demo.json", "demo", {"task": stored["task"]})
    for row in stored["rows"]:
        results.add(f"{row['method']} {row.get('S', '')}".strip(), row)
    say(f"Written: {results.path}: python -m experiments report")


STUDY = entry_study("The demonstration", "`make demo`: {task}, one seed.", main, parts, order=30)
