"""Reports as self-contained HTML files, and their blocks: text, tables, figures and shaded texts."""

import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import sha256
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Literal

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from bara_pyro.atomic import write_text
from bara_pyro.report.style import as_the_system, inlined, svg_file
from bara_pyro.report.table import Cell, Table, cells, numeric_columns


@dataclass(frozen=True)
class Link:
    """A link to a file (relative path) or to a section of the page (`#` and its identifier)."""

    text: str
    href: str


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of text and links."""

    parts: str | Sequence[str | Link]
    # `plain` for all readers (larger type), `technical` for specialists (smaller type).
    kind: Literal["", "plain", "technical"] = ""


@dataclass(frozen=True)
class Points:
    """A bulleted list with a paragraph for each item."""

    items: Sequence[str | Paragraph]


@dataclass(frozen=True)
class Picture:
    """A figure with its texts; successive figures are placed side by side if they fit."""

    figure: Figure  # with one panel, at most 4 inches wide so that it can be read on a phone
    alt: str  # text alternative for screen readers
    caption: str = ""  # below the figure
    name: str = ""  # name of its SVG file without the extension; if empty, no file is written

    @cached_property
    def file(self) -> str:
        """The text of an SVG file of the figure, which is drawn once."""
        return svg_file(self.figure, self.alt)

    def svg(self, prefix: str) -> str:
        """Return the figure as SVG markup with the colours and font of the page."""
        return inlined(self.file, prefix)


@dataclass(frozen=True)
class Word:
    """A word of a shaded text."""

    text: str
    ground: str  # colour of the background, `#rrggbb`
    ink: str  # colour of the letters
    note: str = ""  # the hover text


@dataclass(frozen=True)
class Shaded:
    """A text with a title and a colour for each word."""

    title: str
    words: Sequence[Word]


@dataclass(frozen=True)
class ColourScale:
    """The colour scale of shaded texts."""

    colours: Sequence[str]  # from low to high, `#rrggbb`
    low: str  # labels of the ends
    high: str
    label: str  # name of the displayed quantity


@dataclass(frozen=True)
class Details:
    """Blocks that are hidden until the reader opens their summary."""

    summary: str
    blocks: Sequence["Block"]


Block = str | Paragraph | Points | Table | Picture | Shaded | ColourScale | Details


@dataclass(frozen=True)
class Section:
    """A section of a page with a heading; strings among its blocks are paragraphs."""

    title: str
    blocks: Sequence[Block] = ()
    plain: str = ""  # the finding for all readers, before the blocks
    technical: Sequence[str] = ()  # the findings for specialists, one sentence each

    @property
    def content(self) -> list[Block]:
        """The findings, then the blocks."""
        plain = [Paragraph(self.plain, "plain")] if self.plain else []
        points = [Paragraph(sentence, "technical") for sentence in self.technical]
        return [*plain, *([Points(points)] if points else []), *self.blocks]

    @property
    def pictures(self) -> list[Picture]:
        """The figures of the section that are also saved as files."""
        return [block for block in self.blocks if isinstance(block, Picture) and block.name]

    @property
    def id(self) -> str:
        """The identifier of the section in links, made from its title."""
        return "-".join("".join(c if c.isalnum() else " " for c in self.title.lower()).split())


PACKAGE = "bara_pyro.report"
STYLES = ("figure.css", "common.css")  # style sheets of pages and the site
LONG = 32  # cells of a table with more characters may wrap
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


@lru_cache
def template_environment(package: str) -> Environment:
    """Return the template environment of a package, with automatic escaping."""
    environment = Environment(
        loader=PackageLoader(package, "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["css"] = lambda name: Markup(' class="{}"').format(name) if name else ""
    return environment


def source(package: str, name: str) -> Markup:
    """Return a file from a package's templates unchanged, such as a style sheet or a script."""
    return Markup(files(package).joinpath("templates", name).read_text(encoding="utf-8"))  # noqa: S704 (ours)


def common_style(colours: str = "") -> Markup:
    """Return the CSS that pages and the site share: colours, figures and sortable tables.

    Args:
        colours: rules for the properties of `report.style`; by default light or dark as the system.
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
    """Return an HTML page that loads no other files.

    It runs only the script that sorts tables and the given script. All text in blocks is escaped. A click on
    a header sorts a table.

    Args:
        title: title and main heading of the page.
        blocks: blocks below the heading.
        sections: sections, with a table of contents if there are several.
        body: markup below the sections; a plain string is escaped.
        style: additional CSS.
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
            {"id": part.id, "title": part.title, "blocks": _views(part.content, numbers)} for part in sections
        ],
        body=body,
        scripts=[Markup(one) for one in scripts],  # noqa: S704 (ours; foreign data in them are JSON)
    )  # fmt: skip


def write_index(
    folder: Path | str, title: str, blocks: Sequence[Block] = (), sections: Sequence[Section] = ()
) -> Path:
    """Write `index.html` into `folder` and return its path; arguments as for `document`."""
    path = Path(folder) / "index.html"
    write_text(path, document(title, blocks, sections))
    return path


def _policy(scripts: Sequence[str]) -> str:
    """Return a content security policy that allows only these scripts."""
    hashes = [f"'sha256-{b64encode(sha256(one.encode()).digest()).decode()}'" for one in scripts]
    return f"{POLICY}; script-src {' '.join(hashes)}" if hashes else POLICY


def _has_table(block: Block) -> bool:
    return isinstance(block, Table) or (isinstance(block, Details) and any(map(_has_table, block.blocks)))


def _views(blocks: Sequence[Block], numbers: Iterable[int]) -> list[dict[str, object]]:
    """Return the template variables of each block, with successive figures grouped."""
    views: list[dict[str, object]] = []
    for _, group in groupby(blocks, lambda block: isinstance(block, Picture)):
        run = [block for block in group if block != ""]
        pictures = [_picture(block, numbers) for block in run if isinstance(block, Picture)]
        shown = [_view(block, numbers) for block in run if not isinstance(block, Picture)]
        views += [{"what": "Figures", "pictures": pictures}] if pictures else shown
    return views


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
    paragraph = Paragraph(block) if isinstance(block, str) else block
    pieces = [paragraph.parts] if isinstance(paragraph.parts, str) else paragraph.parts
    shown = [_together(piece) if isinstance(piece, str) else vars(piece) for piece in pieces]
    return {"what": "Paragraph", "kind": paragraph.kind, "pieces": shown}


def _together(text: str) -> str:
    """Return a text without line breaks between a number and its unit."""
    return re.sub(r"(?<=\d) (?=%|nats)|(?<==) | (?==)", "\N{NO-BREAK SPACE}", text)


def _picture(picture: Picture, numbers: Iterable[int]) -> dict[str, object]:
    prefix = f"f{next(iter(numbers))}-"
    return {"svg": Markup(picture.svg(prefix)), "caption": _together(picture.caption)}  # noqa: S704 (of svg_file)


def _table(table: Table) -> dict[str, object]:
    """Return the template variables of a table."""
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
    """Return the CSS class for right-aligned numbers or for long text that may wrap."""
    return "number" if numeric else "long" if len(text) > LONG else ""
