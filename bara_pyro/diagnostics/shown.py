"""The return type of renderers: a section of the report and its sentences."""

from collections.abc import Sequence
from dataclasses import dataclass

from bara_pyro.report import Column, Paragraph, Picture, Points, Section, Table
from bara_pyro.report.blocks import Block


@dataclass(frozen=True)
class Shown:
    """A section of the report and its findings as sentences."""

    section: Section
    plain: str  # the finding for users of the run
    technical: tuple[str, ...]  # the findings for specialists, one sentence each

    @property
    def pictures(self) -> list[Picture]:
        """The figures of the section that are also saved as files."""
        return [block for block in self.section.blocks if isinstance(block, Picture) and block.name]


def pairs(
    rows: Sequence[tuple[str, object]], headings: tuple[str, str], caption: str, format: str = ".2f"
) -> Table:
    """Return a table with two columns, a name and a value."""
    columns = (Column("what", headings[0]), Column("value", headings[1], format=format))
    return Table(columns, [{"what": what, "value": value} for what, value in rows], caption)


def shown_section(title: str, plain: str, technical: Sequence[str], blocks: Sequence[Block]) -> Shown:
    """Return a section that starts with the plain finding, then the technical ones, then the blocks."""
    points = Points([Paragraph(sentence, "technical") for sentence in technical])
    section = Section(title, [Paragraph(plain, "plain"), *([points] if technical else []), *blocks])
    return Shown(section, plain, tuple(technical))
