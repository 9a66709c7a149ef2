"""The figures of the page on diagnostics, of a run that was looked into.

    bara train --task micro-wgs --method bara-gate --steps 300 --out runs/inspected
    bara inspect runs/inspected
    python -m experiments inspected --run runs/inspected

Which figures, and what is said of each to those who cannot see it, stands on docs/diagnostics.md itself.
"""

import re
from pathlib import Path

from matplotlib.figure import Figure

from bara_pyro.cli.terminal import say
from bara_pyro.diagnostics.arviz.netcdf import read_netcdf
from bara_pyro.diagnostics.context import FOLDER
from bara_pyro.diagnostics.inspection import Inspection
from bara_pyro.diagnostics.page.gate_plots import figures
from bara_pyro.diagnostics.page.page import NUMBERS, sections
from bara_pyro.diagnostics.page.render_tokens import token_figure
from bara_pyro.runs.store import read_json
from experiments.engine.arguments import command_line
from experiments.page.figures import save

DOCS = Path(__file__).parents[2] / "docs"
SHOWN = re.compile(r"!\[(?P<alt>[^\]]+)\]\((?P<file>inspect/(?P<name>\w+)\.svg)\)")


def drawn(report: Path) -> dict[str, Figure]:
    """Return all figures of a report, by the names of their files."""
    found = Inspection.model_validate(read_json(report / NUMBERS))
    shown = {picture.name: picture.figure for part in sections(found, report) for picture in part.pictures}
    tokens = {} if found.tokens is None else {"tokens": token_figure(found.tokens)}
    return {**shown, **tokens, **figures(read_netcdf(report / found.draws.file))}


def main() -> None:
    """Draw what the page shows."""
    parser = command_line(__doc__)
    parser.add_argument("--run", metavar="DIR", type=Path, default=Path("runs/inspected"),
        help="folder of a run that `bara inspect` looked into; default: %(default)s")  # fmt: skip
    found = drawn(parser.parse_args().run / FOLDER)
    for match in SHOWN.finditer((DOCS / "diagnostics.md").read_text(encoding="utf-8")):
        say(f"Written: {save(found[match['name']], DOCS / match['file'], match['alt'])}")
