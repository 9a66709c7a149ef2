"""A report as one HTML file: text, tables and figures, nothing outside it, so that it can be mailed."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from string import Template

from matplotlib.figure import Figure

from bara_pyro.report.style import png_bytes
from bara_pyro.report.table import Cell, Table, cells, numeric_columns
from bara_pyro.runs.store import write_text


@dataclass(frozen=True)
class Picture:
    """A figure and the words that go with it.

    Attributes:
        figure: what is shown.
        alt: what it shows, for those who cannot see it.
        caption: the line below it.
    """

    figure: Figure
    alt: str
    caption: str = ""

    @cached_property
    def png(self) -> bytes:
        """The figure as a PNG file's content, drawn once: the page and a file beside it share it."""
        return png_bytes(self.figure)


@dataclass(frozen=True)
class Section:
    """A part of a page under a heading of its own: text, then tables, then figures.

    Attributes:
        title: the heading.
        text: paragraphs.
        tables: in the order of showing.
        figures: in the order of showing.
    """

    title: str
    text: Sequence[str] = ()
    tables: Sequence[Table] = ()
    figures: Sequence[Picture] = ()


STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --soft: #59636e; --line: #d1d9e0; --page: #ffffff;
  --stripe: #f6f8fa; }
@media screen and (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9aa4af; --line: #3d444d;
  --page: #0d1117; --stripe: #161b22; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 70rem; padding: 2rem 1.25rem 4rem; background: var(--page);
  color: var(--ink); font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
  overflow-wrap: break-word; -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 1rem; }
h2 { font-size: 1.3rem; line-height: 1.3; margin: 2.5rem 0 0.5rem; }
nav { margin: 1.5rem 0; line-height: 2; }
a { color: inherit; text-decoration-color: var(--soft); text-underline-offset: 0.2em; }
p { max-width: 46rem; white-space: pre-line; }
.scroll { overflow-x: auto; margin: 2rem 0; }
:focus-visible { outline: 2px solid #0072b2; outline-offset: 2px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption, figcaption { text-align: left; color: var(--soft); padding: 0.4rem 0; }
/* No wider than the screen, where the table is: the caption is read without scrolling. */
caption { max-width: calc(100vw - 2.5rem); }
th, td { padding: 0.4rem 0.9rem; border-bottom: 1px solid var(--line); text-align: left;
  vertical-align: baseline; white-space: nowrap; }
thead th { border-bottom: 2px solid var(--soft); vertical-align: bottom; white-space: normal; }
tbody th { font-weight: normal; }
tbody tr:nth-child(even) { background: var(--stripe); }
.number { text-align: right; }
.long { min-width: 14rem; white-space: normal; overflow-wrap: anywhere; }
figure { margin: 2rem 0; }
img { max-width: 100%; height: auto; background: #ffffff; border: 1px solid var(--line); border-radius: 6px;
  padding: 0.5rem; }
@media (max-width: 40rem) { body { padding-top: 1.25rem; } h1 { font-size: 1.4rem; }
  th, td { padding: 0.4rem 0.5rem; } img { padding: 0; } }
@media print { body { max-width: none; padding: 0; } nav { display: none; } h2 { break-after: avoid; }
  figure, tr { break-inside: avoid; } .scroll { overflow: visible; } th, td { white-space: normal; }
  img { max-height: 90vh; } }
"""

PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
  content="$policy">
<title>$title</title>
<style>$style</style>
</head>
<body>
<main>
<h1>$title</h1>
$body
</main>
$script</body>
</html>
""")
LONG = 32  # letters that a cell of a table has on one line
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def document(title: str, body: str, *, style: str = "", script: str = "") -> str:
    """Return a page that loads nothing; it may run a script only if it is given one.

    Args:
        title: the heading and the name of the page; text, which is escaped.
        body: markup below the heading.
        style: CSS after the common one.
        script: JavaScript at the end of the page.
    """
    return PAGE.substitute(
        policy=f"{POLICY}; script-src 'unsafe-inline'" if script else POLICY,
        title=escape(title),
        style=STYLE + style,
        body=body,
        script=f"<script>{script}</script>\n" if script else "",
    )


def _class(numeric: bool, text: str = "") -> str:
    """Return the attribute that aligns a number to the right, or lets a long text run over several lines."""
    name = "number" if numeric else "long" if len(text) > LONG else ""
    return f' class="{name}"' if name else ""


def _cell(cell: Cell, row_name: bool) -> str:
    mark = "strong" if cell.best else "em" if cell.second else ""
    text = f"<{mark}>{escape(cell.text)}</{mark}>" if mark else escape(cell.text)
    kind = _class(cell.numeric, cell.text)
    return f'<th scope="row"{kind}>{text}</th>' if row_name else f"<td{kind}>{text}</td>"


def _table(table: Table) -> str:
    """Return a table whose first column names the row; it can be scrolled sideways by keyboard too."""
    shown = cells(table)
    head = "".join(
        f'<th scope="col"{_class(number)}>{escape(column.title)}</th>'
        for column, number in zip(table.columns, numeric_columns(table, shown), strict=True)
    )
    body = "\n".join(
        "<tr>" + "".join(_cell(cell, index == 0) for index, cell in enumerate(row)) + "</tr>" for row in shown
    )
    label = escape(table.caption or "Table")
    caption = f"<caption>{escape(table.caption)}</caption>\n" if table.caption else ""
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{label}">\n<table>\n{caption}'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n</div>"
    )


def _picture(picture: Picture) -> str:
    data = base64.b64encode(picture.png).decode("ascii")
    caption = f"\n<figcaption>{escape(picture.caption)}</figcaption>" if picture.caption else ""
    return (
        f'<figure>\n<img alt="{escape(picture.alt)}" src="data:image/png;base64,{data}">{caption}\n</figure>'
    )


def write_index(
    folder: Path | str,
    title: str,
    tables: Sequence[Table] = (),
    figures: Sequence[Picture] = (),
    text: str | Sequence[str] = (),
    sections: Sequence[Section] = (),
) -> Path:
    """Write `index.html` into `folder`, whole or not at all: text, tables, figures, then the sections.

    Everything given is text, never markup, and is escaped. The figures are embedded.

    Args:
        folder: where the file goes; made if it is not there.
        title: the heading and the name of the page.
        tables: in the order of showing.
        figures: in the order of showing.
        text: one paragraph, or several.
        sections: parts under headings of their own, with a list of links to them before the first.

    Returns:
        The path of the file.

    Raises:
        CheckpointError: the folder cannot be written to.
    """
    paragraphs = [text] if isinstance(text, str) else text
    parts = _blocks(paragraphs, tables, figures)
    if sections:
        links = [f'<a href="#part-{i}">{escape(part.title)}</a>' for i, part in enumerate(sections, 1)]
        parts.append(f"<nav>{' · '.join(links)}</nav>")
    for i, part in enumerate(sections, 1):
        inside = _blocks(part.text, part.tables, part.figures)
        parts.append("\n".join([f'<h2 id="part-{i}">{escape(part.title)}</h2>', *inside]))
    path = Path(folder) / "index.html"
    write_text(path, document(title, "\n".join(parts)))
    return path


def _blocks(text: Sequence[str], tables: Sequence[Table], figures: Sequence[Picture]) -> list[str]:
    parts = [f"<p>{escape(paragraph)}</p>" for paragraph in text if paragraph]
    parts += [_table(table) for table in tables]
    return parts + [_picture(picture) for picture in figures]
