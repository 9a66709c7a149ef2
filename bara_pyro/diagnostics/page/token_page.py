"""Token maps to look at: one HTML file with a choice of layers, light where few gates are in use."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from bara_pyro.diagnostics.gates.tokens import TokenUse
from bara_pyro.diagnostics.page.render_tokens import as_read
from bara_pyro.diagnostics.page.shades import COLOURS, EQUAL, parts
from bara_pyro.errors import DataError
from bara_pyro.report.html import document, environment, source
from bara_pyro.runs.store import write_text

PACKAGE = "bara_pyro.diagnostics.page"


def token_page(found: TokenUse, path: Path, title: str) -> Path:
    """Write token maps as one HTML file that needs nothing else: layers to choose, values to point at.

    Args:
        found: of `bara_pyro.diagnostics.gates.tokens.token_use`.
        path: of the file.
        title: the heading.

    Raises:
        DataError: there are no texts.
        CheckpointError: the file cannot be written.
    """
    if not found.texts:
        raise DataError("There are no token maps to draw: give at least one text.")
    texts = [{"title": t.title, "tokens": [as_read(token) for token in t.tokens]} for t in found.texts]
    body = environment(PACKAGE).get_template("tokens.html").render(
        tau=f"{found.tau:g}", draws=max(found.draws, 1), colours=COLOURS, texts=texts
    )  # fmt: skip
    script = f"const data = {_data(found)};\n{source(PACKAGE, 'tokens.js')}"
    page = document(title, body=Markup(body), style=source(PACKAGE, "tokens.css"), script=script)  # noqa: S704
    write_text(path, page)
    return path


def _data(found: TokenUse) -> str:
    """Return what the script needs, as JSON: layer 0 is the mean; one decimal, which is what is shown."""
    data = {
        "modules": found.modules,
        "texts": [[_rounded(t.mean), *map(_rounded, t.percent)] for t in found.texts],
        "scale": [parts(colour) for colour in COLOURS],
        "equal": EQUAL,
    }
    # A module's name may hold anything: "</script>" must not end the script.
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _rounded(values: Sequence[float]) -> list[float]:
    return [0.0 if math.isnan(value) else round(value, 1) for value in values]
