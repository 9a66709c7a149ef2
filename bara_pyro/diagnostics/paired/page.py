"""The comparison of two runs as sentences, tables, a figure and a page: `bara compare`."""

import math
from dataclasses import replace
from pathlib import Path

from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bara_pyro.atomic import write_text
from bara_pyro.diagnostics.paired.compare import PairedComparison, PairedDifference, Side
from bara_pyro.diagnostics.parts import pairs
from bara_pyro.metrics.base import METRICS
from bara_pyro.report.html import Paragraph, Picture, Points, Section, document
from bara_pyro.report.style import INK, NORMAL, PALETTE, SMALL, WIDTH, dress, new_figure
from bara_pyro.report.table import Column, Table
from bara_pyro.runs.answers import COMPARISON_PAGE

READ = {"a": "A is better", "b": "B is better", "unclear": "unclear"}


def table(found: PairedComparison) -> Table:
    """Return a table of both sides' scores and their differences, one row for each score."""
    percent = f"{100 * found.level:g}"
    columns = (
        Column("metric", "score"),
        Column("a", "A"),
        Column("b", "B"),
        Column("difference", "A − B"),
        Column("interval", f"{percent} % interval"),
        Column("p", "p"),
        Column("better", "reading"),
    )
    rows = [
        {
            "metric": _with(METRICS[one.metric].title, METRICS[one.metric].unit),
            "a": _told(one.a, one.metric),
            "b": _told(one.b, one.metric),
            "difference": _told(one.difference, one.metric, sign=True),
            "interval": _interval(one),
            "p": "–" if math.isnan(p := one.p_holm) else "<0.001" if p < 0.001 else f"{p:.3f}",
            "better": READ[one.better],
        }
        for one in found.metrics
    ]
    return Table(columns, rows, caption(found))


def caption(found: PairedComparison) -> str:
    """Return one line that says what is compared."""
    groups = "" if found.clusters == found.rows else f" in {found.clusters:,} clusters"
    rows = f"{found.rows:,} {found.split} rows of {found.task}{groups}"
    return f"A: {_side(found.a)}; B: {_side(found.b)}; {rows}, S = {found.samples}"


def comparison_sentences(found: PairedComparison) -> list[str]:
    """Return the findings as plain sentences."""
    sentences = [_sentence(one, found.level) for one in found.metrics if one.better != "unclear"]
    open_ones = [METRICS[one.metric].title for one in found.metrics if one.better == "unclear"]
    if open_ones:
        sentences.append(f"There is no significant difference in {_or(open_ones)}.")
    if any(math.isinf(one.a) or math.isinf(one.b) for one in found.metrics):
        sentences.append("A score is infinite and has no interval: a right answer was given probability 0.")
    if len(found.a.runs) == 1:
        sentences.append(
            "Each side has one run, so the intervals cover other test rows but not training again with "
            "another seed."
        )
    return sentences


def write_comparison(found: PairedComparison, out: Path) -> Path:
    """Write a comparison as one self-contained HTML file, and return its path."""
    points = Points([Paragraph(sentence, "plain") for sentence in comparison_sentences(found)])
    notes = [Points([f"Note: {note}." for note in found.notes])] if found.notes else []
    picture = Picture(
        figure(found),
        "Difference of each score with its interval: " + "; ".join(map(_described, found.metrics)),
        f"Differences with {100 * found.level:g} % intervals. A is better to the right of the line.",
    )
    parts = [
        Section("Scores", [replace(table(found), caption=""), picture, HOW]),
        Section("Answers", [AGREE, _agreement(found)]),
        Section("What was compared", [_facts(found)]),
    ]
    page = document(
        "A against B",
        [caption(found), points, *notes],
        parts,
        body=Markup(f"<div {COMPARISON_PAGE}></div>"),  # noqa: S704 (ours)
    )
    write_text(out, page)
    return out


HOW = Paragraph(
    "The intervals are paired by row. With several seeds or clusters of rows they cover both. Each interval "
    "is for one score. The p-values test for no difference and are corrected for the number of scores "
    "(Holm); the reading is based on them. With few rows the ECE is biased upwards on both sides.",
    "technical",
)
AGREE = "Percentage of rows that each side answers correctly."


def _agreement(comparison: PairedComparison) -> Table:
    named = {"both": "both", "only_a": "only A", "only_b": "only B", "neither": "neither"}
    rows = [(title, getattr(comparison.agreement, key)) for key, title in named.items()]
    return pairs(rows, ("correct", "rows (%)"), "", ".1f")


def _facts(comparison: PairedComparison) -> Table:
    rows: list[tuple[str, object]] = []
    for name, side in (("A", comparison.a), ("B", comparison.b)):
        rows += [
            (name, side.name),
            (f"method of {name}", side.method),
            (f"runs of {name}", ", ".join(side.runs)),
            (f"seeds of {name}", ", ".join(map(str, side.seeds))),
        ]
    rows += [
        ("task", f"{comparison.task}, {comparison.split} rows"),
        ("rows and clusters", f"{comparison.rows:,} and {comparison.clusters:,}"),
        ("posterior draws S", str(comparison.samples)),
        ("bootstrap draws", f"{comparison.resamples:,}"),
    ]
    return pairs(rows, ("property", "value"), "")


def figure(found: PairedComparison) -> Figure:
    """Plot the difference of each score with its interval; A is better to the right of 0."""
    drawn = new_figure(WIDTH, 0.85 * len(found.metrics) + 0.4)
    panels = drawn.subplots(len(found.metrics), 1, squeeze=False)[:, 0]
    for panel, one in zip(panels, found.metrics, strict=True):
        dress(panel, title=_with(f"{METRICS[one.metric].title}, A − B", METRICS[one.metric].difference_unit))
        panel.title.set_fontsize(NORMAL)
        panel.axvline(0, color=INK, linewidth=0.9)
        colour = {"a": PALETTE[0], "b": PALETTE[1], "unclear": INK}[one.better]
        if math.isfinite(one.low):
            panel.plot([one.low, one.high], [0, 0], color=colour, linewidth=2.2, solid_capstyle="butt")
            panel.plot([one.difference], [0], "o", color=colour, markersize=6, label=_described(one))
            widest = 1.15 * max(abs(one.low), abs(one.high)) or 1.0
            panel.set_xlim(-widest, widest)
        else:
            panel.text(0.5, 0.5, "infinite", transform=panel.transAxes, fontsize=SMALL, color=INK)
        if METRICS[one.metric].best == "min":
            panel.invert_xaxis()  # A is better on the right in every panel
        panel.set(ylim=(-1, 1), yticks=[])
        panel.xaxis.set_major_locator(MaxNLocator(5, steps=(1, 2, 5, 10)))
        panel.spines["left"].set_visible(False)
    panels[-1].set_xlabel("B is better   ←   →   A is better", fontsize=NORMAL, color=INK)
    return drawn


def _side(side: Side) -> str:
    count = len(side.runs)
    return f"{side.method} ({side.name}{f', {count} seeds' if count > 1 else ''})"


def _sentence(one: PairedDifference, level: float) -> str:
    name = "A" if one.better == "a" else "B"
    low, high = sorted((abs(one.low), abs(one.high)))
    metric = METRICS[one.metric]
    digits, unit = metric.digits, metric.difference_unit
    return (
        f"{name} is better in {metric.title}, by {abs(one.difference):.{digits}f}{unit and ' '}{unit} "
        f"({100 * level:g} % interval {low:.{digits}f} to {high:.{digits}f})."
    )


def _described(one: PairedDifference) -> str:
    return f"{METRICS[one.metric].title} {_told(one.difference, one.metric, sign=True)}, {_interval(one)}"


def _interval(one: PairedDifference) -> str:
    if math.isnan(one.low):
        return "–"
    return " to ".join(_told(end, one.metric, sign=True) for end in (one.low, one.high))


def _told(value: float, metric: str, *, sign: bool = False) -> str:
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    text = f"{value:{'+' if sign else ''}.{METRICS[metric].digits}f}"
    return text.replace("-", "−")


def _with(name: str, unit: str) -> str:
    return f"{name} ({unit})" if unit else name


def _or(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
