"""Figures of exported draws and their section of the report.

Phi by layer as forest and ridge plots, and the predictive check of answers.
"""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import xarray
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bara_pyro.diagnostics.arviz.compat import Idata, arviz, container, inference_groups, renewed
from bara_pyro.diagnostics.arviz.export import INTERVAL, DrawnAnswers, answer_shares, interval, phi_lines
from bara_pyro.diagnostics.arviz.netcdf import read_netcdf
from bara_pyro.diagnostics.parts import Shown, shown_section
from bara_pyro.errors import DataError
from bara_pyro.report import Column, Link, Paragraph, Picture, Table
from bara_pyro.report.style import INK, PALETTE, WIDTH, Look, dress, legend_of, new_figure, save

FOREST, RIDGE, CHECK = "phi_forest", "phi_ridge", "predictive_check"
SAME = 1e-3  # relative spread below which values (of a point estimate) have no density to draw
LEGEND = f"point: median; thick 50 %, thin {100 * INTERVAL:.0f} %"


def gate_figures(data: Idata) -> dict[str, Figure]:
    """Return the figures that the data allow, by name.

    - `phi_forest` and `phi_ridge` show Phi with ArviZ: one line for each module, ordered by layer, with all
      units together. For single units use `arviz.plot_forest(data, var_names=["phi"])`. Both need a global
      gate; ridges also need values that vary.
    - `predictive_check` shows the share of rows with each answer and needs labels. ArviZ's check (`plot_ppc`,
      later `plot_ppc_dist`) would draw a density over answers, which are categories.
    """
    groups = inference_groups(data)
    figures: dict[str, Figure] = {}
    if "phi" in groups.get("posterior", {}):
        lines = phi_lines(groups["posterior"]["phi"])
        height = 1.3 + 0.24 * lines.sizes["module"]
        figures[FOREST] = forest(lines, height)
        _label(figures[FOREST], f"Φ ({LEGEND})")
        values = lines["phi"].astype("float64")
        spread = values.std(("chain", "draw")) / values.mean(("chain", "draw"))
        if float(spread.min()) > SAME:
            figures[RIDGE] = ridge(lines, height)
            _label(figures[RIDGE], "Φ")
            figures[RIDGE].axes[-1].grid(False)  # the grid would be drawn over the ridges
    if "observed_data" in groups:
        figures[CHECK] = predictive_check(groups)
    return figures


def plots(data: Idata, folder: str | Path) -> list[Path]:
    """Save each figure of `gate_figures` as a PNG file named after it, and return the paths.

    If the data have neither Phi nor labels, this raises a `DataError`.
    """
    figures = gate_figures(data)
    if not figures:
        raise DataError("There is nothing to draw: the data have neither Phi nor labels.")
    return [save(figure, Path(folder) / f"{name}.png") for name, figure in figures.items()]


def forest(lines: xarray.Dataset, height: float) -> Figure:
    """Plot the median and two intervals (50 % and `INTERVAL`) for each module.

    `lines` has one variable, `chain x draw x module`; the height is in inches.
    """
    if renewed():
        probabilities = {"ci_kind": "hdi", "ci_probs": (0.5, INTERVAL)}
        return _new_style("plot_forest", lines, height, point_estimate="median", **probabilities)
    return _old_style(lines, height, hdi_prob=INTERVAL)


def ridge(lines: xarray.Dataset, height: float) -> Figure:
    """Plot a density for each module; arguments as in `forest`."""
    if renewed():
        return _new_style("plot_ridge", lines, height)
    # Fill (nearly) the whole density.
    look = {"hdi_prob": 0.999, "ridgeplot_truncate": False, "ridgeplot_alpha": 0.6}
    return _old_style(lines, height, kind="ridgeplot", **look)


def _old_style(lines: xarray.Dataset, height: float, **options: Any) -> Figure:
    """Draw with ArviZ 0.x into our axes."""
    figure = new_figure(WIDTH, height)
    arviz().plot_forest(
        lines,
        combined=True,
        colors=PALETTE[0],
        labeller=arviz().labels.NoVarLabeller(),
        textsize=8.5,
        ax=figure.add_subplot(),
        show=False,
        **options,
    )
    return figure


def _new_style(function: str, lines: xarray.Dataset, height: float, **options: Any) -> Figure:
    """Draw with ArviZ 1.x, which makes its own figure."""
    collection = getattr(arviz(), function)(
        container({"posterior": lines}, {}),
        combined=True,
        labels=["module"],
        visuals={"ticklabels": False},
        backend="matplotlib",
        figure_kwargs={"figsize": (WIDTH, height)},
        **options,
    )
    figure: Figure = collection.viz["figure"].item()
    figure.set_layout_engine("constrained")
    figure.axes[0].set_axis_off()  # these axes only hold the names of the lines as text
    import_module("matplotlib.pyplot").close(figure)  # pyplot would keep the figure alive
    return figure


def _label(figure: Figure, x_label: str) -> None:
    axes = figure.axes[-1]
    axes.set_title("", loc="center")  # ArviZ puts the interval's name here
    dress(axes, x_label, "Layer and projection", "Global gate Φ of a module's units")


def predictive_check(groups: Mapping[str, xarray.Dataset]) -> Figure:
    """Plot the share of rows with each answer: observed, and predicted by the posterior and the prior."""
    answers = [str(answer) for answer in groups["posterior_predictive"]["answer"].values]
    figure = new_figure(max(WIDTH, 1.2 + 0.4 * len(answers)), 3.8)
    axes = figure.add_subplot()
    places, shares = np.arange(len(answers)), answer_shares(groups)
    for shift, kind, color, marker in (
        (-0.12, "posterior", PALETTE[0], "o"),
        (0.12, "prior", PALETTE[4], "s"),
    ):
        if kind in shares:
            _intervals(axes, places + shift, interval(shares[kind]), kind.capitalize(), color, marker)
    look: Look = {"color": INK, "markersize": 8, "markeredgewidth": 1.8, "clip_on": False}
    axes.plot(places, shares["observed"], "x", label="Observed", **look)
    axes.set_xticks(places, answers)
    axes.set_xlim(-0.5, len(answers) - 0.5)
    axes.set_ylim(bottom=0)
    dress(axes, f"Answer ({LEGEND})", "Share of the rows (%)")
    legend_of(figure, loc="outside upper left", ncols=3)
    return figure


def _intervals(
    axes: Axes, places: np.ndarray, quantiles: np.ndarray, name: str, color: str, marker: str
) -> None:
    low, lower, middle, upper, high = quantiles
    axes.vlines(places, low, high, color=color, linewidth=1.2)
    axes.vlines(places, lower, upper, color=color, linewidth=4)
    look: Look = {"color": color, "markerfacecolor": "white", "markersize": 5, "clip_on": False}
    axes.plot(places, middle, marker, label=name, **look)


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
    outside = [answer for answer in drawn.answers if not answer.within]
    if not outside:
        return "The model gives each answer about as often as it is right: it does not favour one answer."
    most = max(outside, key=lambda answer: abs(answer.median - answer.observed))
    way = "more" if most.median > most.observed else "less"
    return (
        f"The model gives the answer {most.answer!r} {way} often than it should: for about "
        f"{most.median:.0f} % of the questions, but it is right for {most.observed:.0f} %."
    )


def _technical(drawn: DrawnAnswers) -> list[str]:
    outside = [
        f"{a.answer!r} has {a.observed:.0f} % of the rows, predicted were {a.low:.0f} to {a.high:.0f} %"
        for a in drawn.answers
        if not a.within
    ]
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
