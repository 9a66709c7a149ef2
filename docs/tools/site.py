"""What the documentation site has beyond docs/: read by mkdocs as its hook (`make docs`).

Pages that are generated (methods, parts of the API), the list of results in the navigation, the look of the
package's own pages, figures as part of their page, and what GitHub reads differently: links to files outside
docs/, tables in `<details>`, `|` of code in a table.
"""

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from bara_pyro.errors import DataError
from bara_pyro.report.colours import DAY, NIGHT, properties
from bara_pyro.report.html import PACKAGE, common_style, source
from bara_pyro.report.svg import inlined
from docs.tools.api_pages import api_pages
from docs.tools.method_list import method_list

ROOT = Path(__file__).parents[2]
CODE = re.compile(r"`[^`]*`")
IN_TABLE = re.compile(r"(?m)^\|.*`.*$")
FIGURE = re.compile(r'<img alt="[^"]*" src="([^":]+\.svg)" ?/?>')
CELL = re.compile(r"<td[^>]*>[^<]*</td>")
INTERVAL = re.compile(r"[\[(][+\-−\d., ]+[\])]|[+\-−]?[\d.]+ to [+\-−]?[\d.]+")
LEAST = 0.74  # of its own width: as narrow as a figure becomes before it scrolls, so that letters can be read
COLOURS = f"""\
:root, [data-md-color-scheme="default"] {{ {properties(DAY)} }}
@media screen {{ [data-md-color-scheme="slate"] {{ {properties(NIGHT)} }} }}"""
LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s]+)(#[^)]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages that docs/results.md links to behind it in the navigation, in that order."""
    index = Path(config.docs_dir, "results.md").read_text(encoding="utf-8")
    pages = dict.fromkeys(re.findall(r"\]\((results/[\w-]+\.md)[#)]", index))
    config.nav = [
        {"Results": [{"In one sentence each": "results.md"}, *pages]} if item == "results.md" else item
        for item in config.nav or []
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are generated, and what makes the site look as the pages of the package do."""
    for path, text in {"method_list.md": method_list(), **api_pages(), **look()}.items():
        files.append(File.generated(config, path, content=text))
    return files


def look() -> dict[str, str]:
    """Return the files that the package's own pages have within them."""
    return {"report.css": common_style(COLOURS), "sort.js": source(PACKAGE, "sort.js")}


def on_page_markdown(text: str, page: Page, **_: Any) -> str:
    """Return a page as Python-Markdown reads it."""
    folder = PurePosixPath("docs", page.file.src_uri).parent
    text = text.replace("<details><summary>", '<details markdown="1"><summary>')
    text = IN_TABLE.sub(lambda row: CODE.sub(lambda code: code[0].replace(r"\|", "|"), row[0]), text)
    return LINK.sub(lambda link: outside(link, folder), text)


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Return a page with its figures as part of it, in its colours, and intervals in cells on one line."""
    folder = ROOT / "docs" / PurePosixPath(page.file.src_uri).parent

    def shown(picture: re.Match[str]) -> str:
        path = folder / picture[1]
        return figure(path) if path.exists() else picture[0]  # of which mkdocs says that it is missing

    html = CELL.sub(lambda cell: INTERVAL.sub(lambda found: found[0].replace(" ", "&nbsp;"), cell[0]), html)
    return FIGURE.sub(shown, html)


def figure(path: Path) -> str:
    """Return an SVG file as part of a page; what is too wide for a phone scrolls in itself."""
    file = path.read_text(encoding="utf-8")
    width = float(re.findall(r' width="([\d.]+)"', file)[0])
    shown = inlined(file, f"{path.stem}-").replace(
        "<svg ", f'<svg style="min-width: {LEAST * width:.0f}px" ', 1
    )
    return f'<span class="figure">{shown}</span>'


def outside(link: re.Match[str], folder: PurePosixPath) -> str:
    """Return a link as it is, or what it is to where it leads out of docs/: the path in the repository.

    Raises:
        DataError: there is no such file.
    """
    path = os.path.normpath(folder / link[2])
    if ":" in link[2] or path.startswith("docs/"):
        return link[0]
    if not (ROOT / path).exists():
        raise DataError(f"A page in {folder} links to {link[2]}, which is not there.")
    return f"`{path}`" if link[1].strip("`") == path else f"{link[1]} (`{path}`)"
