"""A report as one HTML file: text, tables and figures, nothing outside it, so that it can be mailed."""

import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import sha256
from importlib.resources import files
from itertools import groupby
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from bara_pyro.report.blocks import Block, Details, Paragraph, Picture, Points, Section
from bara_pyro.report.colours import as_the_system
from bara_pyro.report.table import Cell, Table, cells, numeric_columns
from bara_pyro.runs.atomic import write_text

PACKAGE = "bara_pyro.report"
STYLES = ("figure.css", "common.css")  # of pages and of the site
LONG = 32  # letters that a cell of a table has on one line
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


@lru_cache
def template_environment(package: str) -> Environment:
    """Return the templates of a package, which escape whatever they are given."""
    found = Environment(
        loader=PackageLoader(package, "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["css"] = lambda name: Markup(' class="{}"').format(name) if name else ""
    return found


def source(package: str, name: str) -> Markup:
    """Return a file of a package's templates as it stands: a style sheet, a script."""
    return Markup(files(package).joinpath("templates", name).read_text(encoding="utf-8"))  # noqa: S704 (ours)


def common_style(colours: str = "") -> Markup:
    """Return the CSS that pages and the site share: colours, figures, tables that sort.

    Args:
        colours: rules for the properties of `report.colours`; light or dark as the system by default.
    """
    parts = (source(PACKAGE, name) for name in STYLES)
    return Markup("\n").join([Markup(colours or as_the_system()), *parts])  # noqa: S704 (ours)


def document(
    title: str,
    blocks: Sequence[Block] = (),
    sections: Sequence[Section] = (),
    *,
    body: Markup | str = "",
    style: str = "",
    script: str = "",
) -> str:
    """Return a page that loads nothing and runs no script but that of its tables and the one it is given.

    Everything given as blocks is text, never markup, and is escaped. Tables sort by the header that is
    clicked on.

    Args:
        title: the heading and the name of the page.
        blocks: below the heading.
        sections: parts under headings of their own, with links to them before the first.
        body: markup below all of it; a plain string is escaped.
        style: CSS after the common one.
        script: JavaScript at the end of the page.
    """
    numbers = iter(range(10**6))
    tables = any(map(_has_table, [*blocks, *(block for part in sections for block in part.blocks)]))
    scripts = [*([source(PACKAGE, "sort.js")] if tables else []), *([script] if script else [])]
    return template_environment(PACKAGE).get_template("page.html").render(
        policy=Markup(_policy(scripts)),  # noqa: S704 (ours)
        title=title,
        style=common_style() + source(PACKAGE, "style.css") + Markup(style),  # noqa: S704 (ours)
        blocks=_views(blocks, numbers),
        sections=[
            {"id": part.id, "title": part.title, "blocks": _views(part.blocks, numbers)} for part in sections
        ],
        body=body,
        scripts=[Markup(one) for one in scripts],  # noqa: S704 (ours; what they hold of others is JSON)
    )  # fmt: skip


def write_index(
    folder: Path | str, title: str, blocks: Sequence[Block] = (), sections: Sequence[Section] = ()
) -> Path:
    """Write `index.html` into `folder`, whole or not at all, and return its path; see `document`."""
    path = Path(folder) / "index.html"
    write_text(path, document(title, blocks, sections))
    return path


def _policy(scripts: Sequence[str]) -> str:
    """Return what a page may do: run these scripts and no other."""
    hashes = [f"'sha256-{b64encode(sha256(one.encode()).digest()).decode()}'" for one in scripts]
    return f"{POLICY}; script-src {' '.join(hashes)}" if hashes else POLICY


def _has_table(block: Block) -> bool:
    return isinstance(block, Table) or (isinstance(block, Details) and any(map(_has_table, block.blocks)))


def _views(blocks: Sequence[Block], numbers: Iterable[int]) -> list[dict[str, object]]:
    """Return what the template shows of each block; figures that follow one another stand together."""
    found: list[dict[str, object]] = []
    for _, group in groupby(blocks, lambda block: isinstance(block, Picture)):
        run = [block for block in group if block != ""]
        pictures = [_picture(block, numbers) for block in run if isinstance(block, Picture)]
        shown = [_view(block, numbers) for block in run if not isinstance(block, Picture)]
        found += [{"what": "Figures", "pictures": pictures}] if pictures else shown
    return found


def _view(block: Block, numbers: Iterable[int]) -> dict[str, object]:
    if isinstance(block, str | Paragraph):
        return _paragraph(block)
    if isinstance(block, Points):
        return {"what": "Points", "items": [_paragraph(item) for item in block.items]}
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Details):
        return {"what": "Details", "summary": block.summary, "blocks": _views(block.blocks, numbers)}
    return {"what": type(block).__name__, **vars(block)}


def _paragraph(block: str | Paragraph) -> dict[str, object]:
    given = Paragraph(block) if isinstance(block, str) else block
    pieces = [given.parts] if isinstance(given.parts, str) else given.parts
    shown = [_together(piece) if isinstance(piece, str) else vars(piece) for piece in pieces]
    return {"what": "Paragraph", "kind": given.kind, "pieces": shown}


def _together(text: str) -> str:
    """Return a text in which no line ends between a number and its unit."""
    return re.sub(r"(?<=\d) (?=%|nats)|(?<==) | (?==)", "\N{NO-BREAK SPACE}", text)


def _picture(picture: Picture, numbers: Iterable[int]) -> dict[str, object]:
    prefix = f"f{next(iter(numbers))}-"
    return {"svg": Markup(picture.svg(prefix)), "caption": _together(picture.caption)}  # noqa: S704 (of svg_markup)


def _table(table: Table) -> dict[str, object]:
    """Return a table whose first column names the row."""
    shown = cells(table)
    return {
        "what": "Table",
        "caption": table.caption,
        "label": table.caption or "Table",
        "head": [
            (column.title, _class(number))
            for column, number in zip(table.columns, numeric_columns(table, shown), strict=True)
        ],
        "rows": [
            [(cell.text, _mark(cell), _class(cell.numeric, cell.text)) for cell in row] for row in shown
        ],
    }


def _mark(cell: Cell) -> str:
    return "strong" if cell.best else "em" if cell.second else ""


def _class(numeric: bool, text: str = "") -> str:
    """Return the class that aligns a number to the right, or lets a long text run over several lines."""
    return "number" if numeric else "long" if len(text) > LONG else ""
