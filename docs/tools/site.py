"""Build the documentation site from docs/ with Zensical: `make docs`.

    python -m docs.tools.site [--out site]

Three steps: docs/ is copied together with the generated pages (methods, parts of the API, notebooks), and
what only GitHub reads is changed (links to files outside docs/, tables in `<details>`, `|` of code in a
table). Zensical builds the copy and refuses links, anchors and references that lead nowhere. Then the
figures become part of their pages.
"""

import os
import re
import subprocess
import sys
from pathlib import Path, PurePosixPath
from shutil import copytree, ignore_patterns, rmtree
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from bara_pyro.errors import DataError
from bara_pyro.report.html import PACKAGE, common_style, source
from bara_pyro.report.style import DAY, NIGHT, inlined, properties
from docs.tools.api_pages import api_pages
from docs.tools.method_list import method_list
from docs.tools.notebook_pages import notebook_pages
from docs.tools.reference_pages import reference_pages
from experiments.engine.arguments import command_line, start

ROOT = Path(__file__).parents[2]
SETTINGS = "mkdocs.yml"  # which Zensical reads
CODE = re.compile(r"`[^`]*`")
IN_TABLE = re.compile(r"(?m)^\|.*`.*$")
IMAGE = re.compile(r'<img alt="[^"]*" src="([^":]+)" ?/?>')
CELL = re.compile(r"<td[^>]*>[^<]*</td>")
INTERVAL = re.compile(r"[\[(][+\-−\d., ]+[\])]|[+\-−]?[\d.]+ to [+\-−]?[\d.]+")
LEAST = 0.74  # of its own width: as narrow as a figure becomes before it scrolls, so that letters can be read
COLOURS = f"""\
:root, [data-md-color-scheme="default"] {{ {properties(DAY)} }}
@media screen {{ [data-md-color-scheme="slate"] {{ {properties(NIGHT)} }} }}"""
LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s]+)(#[^)]*)?\)")
NOTEBOOK = re.compile(r"(\]\([^):]*)\.ipynb\b")


def main() -> None:
    """Build the site."""
    parser = command_line(__doc__)
    parser.add_argument("--out", metavar="DIR", type=Path, default=ROOT / "site", help="default: %(default)s")
    build(parser.parse_args().out)


def build(out: Path) -> None:
    """Build the site into a folder, in place of the site that it may hold.

    Raises:
        DataError: the folder holds something else, or a page, a link or a picture is missing.
    """
    if out.exists() and any(out.iterdir()) and not (out / "sitemap.xml").exists():
        raise DataError(f"{out} holds no site: name an empty folder.")
    with TemporaryDirectory() as folder:
        write_sources(Path(folder))
        command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", SETTINGS]
        done = subprocess.run(command, cwd=folder, env={**os.environ, "NO_COLOR": "1"}, check=False)
        if done.returncode:
            raise DataError("The site was not built: mend what Zensical names above.")
        built = Path(folder, "site")
        for page in built.rglob("*.html"):
            page.write_text(finished(page.read_text(encoding="utf-8"), page.parent), encoding="utf-8")
        rmtree(out, ignore_errors=True)
        copytree(built, out)


def write_sources(folder: Path) -> None:
    """Write docs/, the generated pages and the settings as Zensical reads them.

    Raises:
        DataError: a page is missing from the navigation, or links to a file that does not exist.
    """
    docs = folder / "docs"
    copytree(ROOT / "docs", docs, ignore=ignore_patterns("tools", "__pycache__"))
    for name, content in {
        "method_list.md": method_list(),
        **api_pages(),
        **reference_pages(),
        **look(),
        **notebook_pages(),
    }.items():
        path = docs / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    pages = {path.relative_to(docs).as_posix(): path for path in sorted(docs.rglob("*.md"))}
    for name, path in pages.items():
        path.write_text(
            as_read(path.read_text(encoding="utf-8"), PurePosixPath("docs", name)), encoding="utf-8"
        )
    settings = yaml.safe_load((ROOT / SETTINGS).read_text(encoding="utf-8"))
    settings["nav"] = navigation(settings["nav"], pages["results.md"].read_text(encoding="utf-8"))
    if missing := {*pages} - {*listed(settings["nav"])}:
        raise DataError(f"{', '.join(sorted(missing))} is in no navigation: add it to nav in {SETTINGS}.")
    (folder / SETTINGS).write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")


def navigation(nav: list[Any], results: str) -> list[Any]:
    """Return the navigation with the pages that docs/results.md links to behind it, in that order."""
    pages = dict.fromkeys(re.findall(r"\]\((results/[\w-]+\.md)[#)]", results))
    whole = {"Results": [{"Overview": "results.md"}, *pages]}
    return [whole if item == "results.md" else item for item in nav]


def listed(nav: Any) -> list[str]:
    """Return the pages in a navigation."""
    if isinstance(nav, str):
        return [nav]
    return [page for item in (nav.values() if isinstance(nav, dict) else nav) for page in listed(item)]


def look() -> dict[str, str]:
    """Return the files that the package's own pages have within them."""
    return {"report.css": common_style(COLOURS), "sort.js": source(PACKAGE, "sort.js")}


def as_read(text: str, page: PurePosixPath) -> str:
    """Return a page as Python-Markdown reads it."""
    text = text.replace("<details><summary>", '<details markdown="1"><summary>')
    text = IN_TABLE.sub(lambda row: CODE.sub(lambda code: code[0].replace(r"\|", "|"), row[0]), text)
    text = LINK.sub(lambda link: outside(link, page.parent), text)
    return NOTEBOOK.sub(r"\1.md", text)


def finished(html: str, folder: Path) -> str:
    """Return a page with its figures as part of it, in its colours, and intervals in cells on one line.

    Raises:
        DataError: a picture is missing.
    """

    def shown(picture: re.Match[str]) -> str:
        path = folder / picture[1]
        if not path.exists():
            raise DataError(f"A page shows {picture[1]}, which does not exist.")
        return figure(path) if path.suffix == ".svg" else picture[0]

    html = CELL.sub(lambda cell: INTERVAL.sub(lambda found: found[0].replace(" ", "&nbsp;"), cell[0]), html)
    return IMAGE.sub(shown, html)


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


if __name__ == "__main__":
    start(main)
