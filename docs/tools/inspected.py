"""The figures of a run that `bara inspect` looked into, for the pages on posterior and Pyro.

    bara train micro-wgs --steps 300 --out runs/first
    bara inspect runs/first --deep
    python -m docs.tools.inspected --run runs/first

The pages name the figures and describe each for readers who cannot see it.
"""

import re
from pathlib import Path

from bara_pyro.cli.terminal import say
from bara_pyro.diagnostics.context import FOLDER
from bara_pyro.diagnostics.inspection import Inspection
from bara_pyro.diagnostics.page.page import NUMBERS, sections
from bara_pyro.diagnostics.page.render_tokens import token_figure
from bara_pyro.untrusted.files import read_json
from experiments.engine.arguments import command_line, start
from experiments.engine.figures import save

DOCS = Path(__file__).parents[2] / "docs"
SHOWN = re.compile(r"!\[(?P<alt>[^\]]+)\]\((?P<file>inspect/(?P<name>\w+)\.svg)\)")


def main() -> None:
    """Draw what the pages show."""
    parser = command_line(__doc__)
    parser.add_argument("--run", metavar="DIR", type=Path, default=Path("runs/first"),
        help="folder of a run that `bara inspect` looked into; default: %(default)s")  # fmt: skip
    report = parser.parse_args().run / FOLDER
    found = Inspection.model_validate(read_json(report / NUMBERS))
    drawn = {picture.name: picture.figure for part in sections(found, report) for picture in part.pictures}
    if found.tokens is not None:
        drawn["tokens"] = token_figure(found.tokens)
    text = "".join((DOCS / page).read_text(encoding="utf-8") for page in ("posterior.md", "swap.md"))
    for match in SHOWN.finditer(text):
        say(f"Written: {save(drawn[match['name']], DOCS / match['file'], match['alt'])}")


if __name__ == "__main__":
    start(main)
