"""The building blocks of a page: text, tables, figures and shaded texts, independent of their style."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from matplotlib.figure import Figure

from bara_pyro.report.style import inlined, svg_file
from bara_pyro.report.table import Table


@dataclass(frozen=True)
class Link:
    """A link to a file (relative path) or to a section of the page (`#` and its identifier)."""

    text: str
    href: str


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of text and links.

    Attributes:
        parts: text, or a sequence of texts and links.
        kind: `plain` for all readers (larger type) or `technical` for specialists (smaller type).
    """

    parts: str | Sequence[str | Link]
    kind: Literal["", "plain", "technical"] = ""


@dataclass(frozen=True)
class Points:
    """A bulleted list with a paragraph for each item."""

    items: Sequence[str | Paragraph]


@dataclass(frozen=True)
class Picture:
    """A figure with its texts; successive figures are placed side by side if they fit.

    Attributes:
        figure: a figure with one panel, at most 4 inches wide so that it can be read on a phone.
        alt: text alternative for screen readers.
        caption: the caption below the figure.
        name: name of its SVG file without the extension; if empty, no file is written.
    """

    figure: Figure
    alt: str
    caption: str = ""
    name: str = ""

    @cached_property
    def file(self) -> str:
        """The text of an SVG file of the figure, which is drawn once."""
        return svg_file(self.figure, self.alt)

    def svg(self, prefix: str) -> str:
        """Return the figure as SVG markup with the colours and font of the page."""
        return inlined(self.file, prefix)


@dataclass(frozen=True)
class Word:
    """A word of a shaded text.

    Attributes:
        text: the text.
        ground, ink: colours of background and letters, `#rrggbb`.
        note: the hover text.
    """

    text: str
    ground: str
    ink: str
    note: str = ""


@dataclass(frozen=True)
class Shaded:
    """A text with a title and a colour for each word."""

    title: str
    words: Sequence[Word]


@dataclass(frozen=True)
class ColourScale:
    """The colour scale of shaded texts.

    Attributes:
        colours: colours from low to high, `#rrggbb`.
        low, high: labels of the ends.
        label: name of the displayed quantity.
    """

    colours: Sequence[str]
    low: str
    high: str
    label: str


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

    @property
    def id(self) -> str:
        """The identifier of the section in links, made from its title."""
        return "-".join("".join(c if c.isalnum() else " " for c in self.title.lower()).split())
