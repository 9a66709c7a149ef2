"""The notebooks of docs/notebooks as pages of the site: text, code, and what it printed and drew.

Markdown like every other page, so that links are checked, the search finds it and the dark is dark.
"""

import json
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path

from bara_pyro.errors import DataError
from bara_pyro.types import Json

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
DOWNLOAD = '<a href="{name}.ipynb" download>Download this page as a notebook</a>, to run it and to change it.'


def notebook_pages(folder: Path = FOLDER) -> dict[str, str | bytes]:
    """Return pages in Markdown and the pictures on them, by their paths in docs/.

    Raises:
        DataError: a picture has no description (`alt` in the metadata of its cell).
    """
    found: dict[str, str | bytes] = {}
    for path in sorted(folder.glob("*.ipynb")):
        first, *cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        parts = ["".join(first["source"]), DOWNLOAD.format(name=path.stem)]
        for cell in cells:
            source = "".join(cell["source"])
            if cell["cell_type"] == "markdown":
                parts.append(source)
                continue
            parts.append(fenced("python", source))
            for number, output in enumerate(cell["outputs"]):
                picture = f"{path.stem}/{cell['id']}-{number}.png"
                if "image/png" in output.get("data", {}):
                    found[f"notebooks/{picture}"] = b64decode(output["data"]["image/png"])
                    parts.append(f"![{description(path, cell)}]({picture})")
                else:
                    parts += [fenced("{ .text .output .no-copy }", text) for text in said(output)]
        found[f"notebooks/{path.stem}.md"] = "\n\n".join(parts) + "\n"
    return found


def fenced(kind: str, text: str) -> str:
    """Return a block of code."""
    return f"````{kind}\n{text.rstrip()}\n````"


def said(output: Json) -> Iterator[str]:
    """Yield what an output says in words."""
    text = output["text"] if output["output_type"] == "stream" else output["data"].get("text/plain", "")
    if joined := "".join(text):
        yield joined


def description(path: Path, cell: Json) -> str:
    """Return what the picture of a cell shows, for those who cannot see it."""
    try:
        return str(cell["metadata"]["alt"])
    except KeyError as error:
        raise DataError(
            f"{path.name}: the picture of the cell {cell['id']!r} has no description: put one into the "
            "metadata of the cell, as alt."
        ) from error
