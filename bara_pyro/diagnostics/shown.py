"""What a renderer returns: a section of the page, and the sentences in it."""

from collections.abc import Sequence
from dataclasses import dataclass

from bara_pyro.report import Column, Paragraph, Picture, Points, Section, Table
from bara_pyro.report.blocks import Block


@dataclass(frozen=True)
class Shown:
    """A result as it is shown."""

    section: Section  # of the page
    plain: str  # what it means for whoever uses the run, in plain words
    technical: tuple[str, ...]  # the same for specialists, a sentence each

    @property
    def pictures(self) -> list[Picture]:
        """The figures of the section that have a file of their own."""
        return [block for block in self.section.blocks if isinstance(block, Picture) and block.name]


def pairs(
    rows: Sequence[tuple[str, object]], headings: tuple[str, str], caption: str, format: str = ".2f"
) -> Table:
    """Return a table of two columns: what something is, and its value."""
    columns = (Column("what", headings[0]), Column("value", headings[1], format=format))
    return Table(columns, [{"what": what, "value": value} for what, value in rows], caption)


def shown_section(title: str, plain: str, technical: Sequence[str], blocks: Sequence[Block]) -> Shown:
    """Return a section that says what it means before it says how that was measured."""
    points = Points([Paragraph(sentence, "technical") for sentence in technical])
    section = Section(title, [Paragraph(plain, "plain"), *([points] if technical else []), *blocks])
    return Shown(section, plain, tuple(technical))
