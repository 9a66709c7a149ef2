"""Figures, tables and self-contained HTML reports."""

from bara_pyro.report.figures import reliability_diagram, risk_coverage_figure, save, training_curves
from bara_pyro.report.html import (
    ColourScale,
    Details,
    Link,
    Paragraph,
    Picture,
    Points,
    Section,
    Shaded,
    Word,
    write_index,
)
from bara_pyro.report.table import Column, Table, markdown, rich_table

__all__ = [
    "ColourScale",
    "Column",
    "Details",
    "Link",
    "Paragraph",
    "Picture",
    "Points",
    "Section",
    "Shaded",
    "Table",
    "Word",
    "markdown",
    "reliability_diagram",
    "rich_table",
    "risk_coverage_figure",
    "save",
    "training_curves",
    "write_index",
]
