"""Posterior draws: their export for ArviZ, the predictive check, and Phi by module."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import xarray
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from xarray import DataArray, Dataset

from bara_pyro.diagnostics import Result
from bara_pyro.diagnostics.arviz.compat import Idata, inference_groups, read_netcdf, write_netcdf
from bara_pyro.diagnostics.arviz.inference_data import to_inference_data
from bara_pyro.diagnostics.context import Context
from bara_pyro.errors import DataError
from bara_pyro.report.html import Link, Paragraph, Picture, Section
from bara_pyro.report.style import INK, PALETTE, WIDTH, Look, dress, legend_of, new_figure, save
from bara_pyro.report.table import Column, Table

FILE = "posterior.nc"
EXPORTED_ROWS = 64
INTERVAL = 0.94
"""Probability of the predictive intervals of answers, and of the long intervals in forest plots."""


class AnswerShare(Result):
    """The share of rows with an answer, in percent."""

    answer: str
    observed: float  # share in the data
    # Median and `INTERVAL` over posterior draws, each of which answers all rows.
    low: float
    median: float
    high: float
    # Whether the observed share is in an interval that covers all answers together with probability
    # `INTERVAL`.
    within: bool


class DrawnAnswers(Result):
    """A summary of the exported draws."""

    file: str  # name of the netCDF file
    rows: int  # number of rows
    draws: int  # number of draws
    answers: list[AnswerShare]  # the posterior predictive check
    phi_median: dict[str, float]  # median of Phi by module; empty without a global gate


def export_draws(c: Context) -> DrawnAnswers:
    """Write the draws of up to `EXPORTED_ROWS` rows to the report's folder and return their summary."""
    rows, split = min(EXPORTED_ROWS, len(c.rows)), c.system.config.task.evaluate_on
    data = to_inference_data(
        c.system,
        split=split,
        rows=rows,
        samples=c.options.samples,
        prior=c.options.thorough,
        drawn=None if c.drawn is None else c.drawn.first(rows),
    )
    write_netcdf(data, c.out / FILE)
    groups = inference_groups(data)
    return DrawnAnswers(
        file=FILE,
        rows=rows,
        draws=groups["posterior_predictive"].sizes["draw"],
        answers=_answers(groups),
        phi_median=_phi(groups),
    )


def _answers(groups: dict[str, Dataset]) -> list[AnswerShare]:
    """Return the observed and the predicted share of each answer."""
    shares = answer_shares(groups)
    names = [str(name) for name in groups["posterior_predictive"]["answer"].values]
    low, _, middle, _, high = interval(shares["posterior"]).tolist()
    # Bonferroni: without it one of ten answers would be outside its interval in nearly half of all checks.
    tail = (1 - INTERVAL) / 2 / len(names)
    ends = np.quantile(shares["posterior"].reshape(-1, len(names)), [tail, 1 - tail], axis=0)
    inside = (ends[0] <= shares["observed"]) & (shares["observed"] <= ends[1])
    rows = zip(names, shares["observed"].tolist(), low, middle, high, inside.tolist(), strict=True)
    return [AnswerShare(answer=n, observed=o, low=a, median=m, high=b, within=i) for n, o, a, m, b, i in rows]


def _phi(groups: dict[str, Dataset]) -> dict[str, float]:
    posterior = groups.get("posterior", Dataset())
    if "phi" not in posterior:
        return {}
    median = phi_lines(posterior["phi"])["phi"].median(("chain", "draw"))
    return dict(zip(map(str, median["module"].values), map(float, median.values), strict=True))


def phi_lines(phi: DataArray) -> Dataset:
    """Return `phi` as one variable `chain x draw x module`, with units as further draws, sorted by layer."""
    layers, projections = phi["layer"].values, phi["projection"].values
    order = np.argsort(np.where(layers < 0, np.iinfo(int).max, layers), kind="stable")
    names = [
        str(projection) if layer < 0 else f"{layer} {projection}"
        for layer, projection in zip(layers[order], projections[order], strict=True)
    ]
    if len(set(names)) < len(names):  # equal names in a layer: use the full paths
        names = [str(path) for path in phi["module"].values[order]]
    values = phi.transpose("chain", "draw", "rank", "module").values[..., order]
    pooled = values.reshape(values.shape[0], -1, values.shape[-1])
    return Dataset({"phi": (("chain", "draw", "module"), pooled)}, coords={"module": names})


def answer_shares(groups: Mapping[str, Dataset]) -> dict[str, np.ndarray]:
    """Return the share of rows with each answer in percent, in the data and in each draw.

    It is `observed` (float64, `C`), `posterior` and, if it was drawn from, `prior` (`chain x draw x C`).
    """
    kinds = {"observed": "observed_data", "posterior": "posterior_predictive", "prior": "prior_predictive"}
    classes = np.arange(groups["posterior_predictive"].sizes["answer"])
    return {
        kind: 100.0 * (groups[name]["y"].values[..., None] == classes).mean(axis=-2)
        for kind, name in kinds.items()
        if name in groups
    }


def interval(values: np.ndarray) -> np.ndarray:
    """Return the plotted quantiles over all draws of `chain x draw x C`: `5 x C`, from low to high."""
    tail = (1 - INTERVAL) / 2
    return np.quantile(values, [tail, 0.25, 0.5, 0.75, 1 - tail], axis=(0, 1))


FOREST, CHECK = "phi_forest", "predictive_check"
LEGEND = f"point: median; thick 50 %, thin {100 * INTERVAL:.0f} %"


def gate_figures(data: Idata) -> dict[str, Figure]:
    """Return the figures that the data allow, by name.

    - `phi_forest` shows Phi, if there is a global gate: one line for each module, ordered by layer, with all
      units together. For single units use `arviz.plot_forest(data, var_names=["phi"])`.
    - `predictive_check` shows the share of rows with each answer and needs labels. ArviZ's check (`plot_ppc`,
      later `plot_ppc_dist`) would draw a density over answers, which are categories.
    """
    groups = inference_groups(data)
    figures: dict[str, Figure] = {}
    if "phi" in groups.get("posterior", {}):
        figures[FOREST] = forest(phi_lines(groups["posterior"]["phi"]))
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


def forest(lines: xarray.Dataset) -> Figure:
    """Plot the median and two intervals (50 % and `INTERVAL`) of Phi for each module, from the top down.

    `lines` has the variable `phi`, `chain x draw x module`.
    """
    names = [str(name) for name in lines["module"].values]
    figure = new_figure(WIDTH, 1.3 + 0.24 * len(names))
    axes, places = figure.add_subplot(), np.arange(len(names))
    low, lower, middle, upper, high = interval(lines["phi"].values)
    axes.hlines(places, low, high, color=PALETTE[0], linewidth=1.2)
    axes.hlines(places, lower, upper, color=PALETTE[0], linewidth=4)
    axes.plot(middle, places, "o", color=PALETTE[0], markerfacecolor="white", markersize=5)
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    dress(axes, f"Φ ({LEGEND})", "Layer and projection", "Global gate Φ of a module's units")
    return figure


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
}
COLUMNS = (
    Column("answer", "answer"),
    Column("observed", "observed", "%", ".0f"),
    Column("low", "from", "%", ".0f"),
    Column("median", "median", "%", ".0f"),
    Column("high", "to", "%", ".0f"),
)


def render_draws(found: DrawnAnswers, folder: Path) -> Section:
    """Return the section with the predictive check and Phi by layer, from the draws stored in `folder`."""
    drawn = gate_figures(read_netcdf(folder / found.file))
    pictures = [Picture(drawn[name], *words, name) for name, words in CAPTIONS.items() if name in drawn]
    file = Link(found.file, found.file)
    about = Paragraph(
        [f"{found.draws} draws of the first {found.rows} rows. Open ", file, " with ArviZ to use them."]
    )
    caption = f"Share of rows with each answer: observed, and {100 * INTERVAL:.0f} % interval of the draws"
    table = Table(COLUMNS, [answer.model_dump() for answer in found.answers], caption)
    return Section("Predictive check and draws", [*pictures, table, about], _plain(found), _technical(found))


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
