"""The section on what the draws look like."""

from pathlib import Path

from bara_pyro.diagnostics.arviz.export import INTERVAL, AnswerShare, DrawnAnswers
from bara_pyro.diagnostics.arviz.netcdf import read_netcdf
from bara_pyro.diagnostics.page.gate_plots import CHECK, FOREST, RIDGE, gate_figures
from bara_pyro.diagnostics.shown import Shown, shown_section
from bara_pyro.report import Column, Link, Paragraph, Picture, Table

CAPTIONS = {
    CHECK: (
        "Share of the rows that each answer has: observed, by the posterior and by the prior.",
        "Predictive check: each draw answers all rows, and the crosses should lie within the intervals.",
    ),
    FOREST: (
        "Intervals of the global gate Φ, a line a module.",
        "All units of a module together. Where Φ is small they are nearly closed whatever the input.",
    ),
    RIDGE: (
        "Densities of the global gate Φ, a ridge a module.",
        "The same draws as densities: several humps are units that the data tell apart.",
    ),
}
COLUMNS = (
    Column("answer", "answer"),
    Column("observed", "observed", "%", ".0f"),
    Column("low", "from", "%", ".0f"),
    Column("median", "median", "%", ".0f"),
    Column("high", "to", "%", ".0f"),
)


def render_draws(found: DrawnAnswers, folder: Path) -> Shown:
    """Show the predictive check and Phi by layer; the figures are of the draws that the folder holds."""
    drawn = gate_figures(read_netcdf(folder / found.file))
    pictures = [Picture(drawn[name], *words, name) for name, words in CAPTIONS.items() if name in drawn]
    file = Link(found.file, found.file)
    about = Paragraph(
        [f"{found.draws} draws of the first {found.rows} rows; ", file, " holds them for ArviZ."]
    )
    caption = f"How often each answer is given: in the data, and in {100 * INTERVAL:.0f} % of the draws"
    table = Table(COLUMNS, [answer.model_dump() for answer in found.answers], caption)
    return shown_section(
        "Predictive check and draws", _plain(found), _technical(found), [*pictures, table, about]
    )


def _plain(found: DrawnAnswers) -> str:
    outside = [answer for answer in found.answers if not answer.as_predicted]
    if not outside:
        return (
            "Answers drawn from the model are as frequent as in the data: it favours none of them beyond "
            "what the questions ask for."
        )
    most = max(outside, key=lambda answer: abs(answer.median - answer.observed))
    way = "more" if most.median > most.observed else "less"
    return (
        f"The model gives the answer {most.answer!r} {way} often than it should: in about {most.median:.0f} "
        f"% of the questions, where it is right in {most.observed:.0f} %."
    )


def _technical(found: DrawnAnswers) -> list[str]:
    outside = [_outside(answer) for answer in found.answers if not answer.as_predicted]
    verdict = "Each answer is as frequent among the rows as predicted"
    if outside:
        verdict = f"Not as frequent as predicted: {'; '.join(outside)}"
    sentences = [f"{verdict} ({100 * INTERVAL:.0f} % intervals, {found.rows} rows)."]
    if found.phi_median:
        median = found.phi_median
        least, most = min(median, key=median.__getitem__), max(median, key=median.__getitem__)
        sentences.append(
            f"The median of Φ goes from {median[least]:.2f} ({least}) to {median[most]:.2f} ({most})."
        )
    return sentences


def _outside(a: AnswerShare) -> str:
    return f"{a.answer!r} has {a.observed:.0f} % of the rows, {a.low:.0f} to {a.high:.0f} % is predicted"
