"""What a page is made of: text, tables, figures and shaded texts, without a word on how they look."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from matplotlib.figure import Figure

from bara_pyro.report.svg import svg_markup
from bara_pyro.report.table import Table


@dataclass(frozen=True)
class Link:
    """Words that lead to a file beside the page (relative path) or to a section (`#` and its identifier)."""

    text: str
    href: str


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of text and links.

    Attributes:
        parts: text, or text and links in turn.
        kind: `plain` is what anybody understands, set larger; `technical` is for specialists, set smaller.
    """

    parts: str | Sequence[str | Link]
    kind: Literal["", "plain", "technical"] = ""


@dataclass(frozen=True)
class Points:
    """A list of points, a paragraph each."""

    items: Sequence[str | Paragraph]


@dataclass(frozen=True)
class Picture:
    """One figure and the words that go with it; figures in a row stand side by side where they fit.

    Attributes:
        figure: what is shown: one panel, 4 inches wide at most, so that it can be read on a phone.
        alt: what it shows, for those who cannot see it.
        caption: the line below it.
        name: of its file beside the page, without the ending; empty where there is none.
    """

    figure: Figure
    alt: str
    caption: str = ""
    name: str = ""

    def svg(self, prefix: str) -> str:
        """Return the figure as markup that takes the page's colours and font; see `svg_markup`."""
        return svg_markup(self.figure, self.alt, prefix)


@dataclass(frozen=True)
class Word:
    """A piece of a shaded text.

    Attributes:
        text: as it is read.
        ground, ink: colours of the background and of the letters, `#rrggbb`.
        note: shown where the pointer rests on it.
    """

    text: str
    ground: str
    ink: str
    note: str = ""


@dataclass(frozen=True)
class Shaded:
    """A text, called `title`, whose words carry a colour each."""

    title: str
    words: Sequence[Word]


@dataclass(frozen=True)
class ColourScale:
    """The key of the colours of shaded texts.

    Attributes:
        colours: from the low end to the high one, `#rrggbb`.
        low, high: what the ends stand for.
        label: what is shown.
    """

    colours: Sequence[str]
    low: str
    high: str
    label: str


@dataclass(frozen=True)
class Details:
    """Blocks that are folded away until they are asked for, below a summary that stays."""

    summary: str
    blocks: Sequence["Block"]


Block = str | Paragraph | Points | Table | Picture | Shaded | ColourScale | Details


@dataclass(frozen=True)
class Section:
    """A part of a page under a heading of its own; a string among its blocks is a paragraph."""

    title: str
    blocks: Sequence[Block] = ()

    @property
    def id(self) -> str:
        """The heading as an identifier to link to."""
        return "-".join("".join(c if c.isalnum() else " " for c in self.title.lower()).split())
