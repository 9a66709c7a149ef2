"""The section on the posterior predictive check and the draws of Phi."""

from pathlib import Path

from bara_pyro.diagnostics.arviz.export import INTERVAL, AnswerShare, DrawnAnswers
from bara_pyro.diagnostics.arviz.netcdf import read_netcdf
from bara_pyro.diagnostics.page.gate_plots import CHECK, FOREST, RIDGE, gate_figures
from bara_pyro.diagnostics.parts import Shown, shown_section
from bara_pyro.report import Column, Link, Paragraph, Picture, Table

CAPTIONS = {
    CHECK: (
        "Share of rows with each answer: observed, predicted by the posterior and by the prior.",
        "Predictive check: each draw answers all rows. The crosses should lie within the intervals.",
    ),
    FOREST: (
        "Intervals of the global gate Φ, one line for each module.",
        "All units of a module together. Units with a small Φ are nearly off for every input.",
    ),
    RIDGE: (
        "Densities of the global gate Φ, one ridge for each module.",
        "The same draws as densities. Several peaks in a ridge are groups of units with different Φ.",
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
    """Return the section with the predictive check and Phi by layer, from the draws stored in `folder`."""
    drawn = gate_figures(read_netcdf(folder / found.file))
    pictures = [Picture(drawn[name], *words, name) for name, words in CAPTIONS.items() if name in drawn]
    file = Link(found.file, found.file)
    about = Paragraph(
        [f"{found.draws} draws of the first {found.rows} rows. Open ", file, " with ArviZ to use them."]
    )
    caption = f"Share of rows with each answer: observed, and {100 * INTERVAL:.0f} % interval of the draws"
    table = Table(COLUMNS, [answer.model_dump() for answer in found.answers], caption)
    return shown_section(
        "Predictive check and draws", _plain(found), _technical(found), [*pictures, table, about]
    )


def _plain(drawn: DrawnAnswers) -> str:
    outside = [answer for answer in drawn.answers if not answer.as_predicted]
    if not outside:
        return "The model gives each answer about as often as it is right: it does not favour one answer."
    most = max(outside, key=lambda answer: abs(answer.median - answer.observed))
    way = "more" if most.median > most.observed else "less"
    return (
        f"The model gives the answer {most.answer!r} {way} often than it should: for about "
        f"{most.median:.0f} % of the questions, but it is right for {most.observed:.0f} %."
    )


def _technical(drawn: DrawnAnswers) -> list[str]:
    outside = [_outside(answer) for answer in drawn.answers if not answer.as_predicted]
    verdict = "The share of rows with each answer is as predicted"
    if outside:
        verdict = f"Not as frequent as predicted: {'; '.join(outside)}"
    sentences = [f"{verdict} ({100 * INTERVAL:.0f} % intervals, {drawn.rows} rows)."]
    if drawn.phi_median:
        median = drawn.phi_median
        least, most = min(median, key=median.__getitem__), max(median, key=median.__getitem__)
        sentences.append(
            f"The median of Φ ranges from {median[least]:.2f} ({least}) to {median[most]:.2f} ({most})."
        )
    return sentences


def _outside(a: AnswerShare) -> str:
    return f"{a.answer!r} has {a.observed:.0f} % of the rows, predicted were {a.low:.0f} to {a.high:.0f} %"
