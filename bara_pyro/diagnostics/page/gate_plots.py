"""Pictures of exported draws: Phi by layer as a forest and as ridges, and the predictive check of answers."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import xarray
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bara_pyro.diagnostics.arviz.compat import Idata, arviz, container, inference_groups, renewed
from bara_pyro.diagnostics.arviz.export import INTERVAL, answer_shares, interval, phi_lines
from bara_pyro.errors import DataError
from bara_pyro.report.style import INK, PALETTE, WIDTH, Look, dress, legend_of, new_figure, save

FOREST, RIDGE, CHECK = "phi_forest", "phi_ridge", "predictive_check"
SAME = 1e-3  # of their mean: values that differ by less, those of a point, have no density to draw
LEGEND = f"point: median; thick 50 %, thin {100 * INTERVAL:.0f} %"


def gate_figures(data: Idata) -> dict[str, Figure]:
    """Return what the data allow to draw: `phi_forest` and `phi_ridge` of Phi, `predictive_check` of labels.

    Phi is drawn with ArviZ, one line a module, all its units together, ordered by layer; for single units
    there is `arviz.plot_forest(data, var_names=["phi"])`. Answers are categories, over which ArviZ's own
    check (`plot_ppc`, later `plot_ppc_dist`) would draw a density: here each has its share of the rows.
    What there is no Phi or no label for is left out, and ridges where all values of a module are
    next to the same.
    """
    groups = inference_groups(data)
    found: dict[str, Figure] = {}
    if "phi" in groups.get("posterior", {}):
        lines = phi_lines(groups["posterior"]["phi"])
        height = 1.3 + 0.24 * lines.sizes["module"]
        found[FOREST] = forest(lines, height)
        _label(found[FOREST], f"Φ ({LEGEND})")
        values = lines["phi"].astype("float64")
        spread = values.std(("chain", "draw")) / values.mean(("chain", "draw"))
        if float(spread.min()) > SAME:
            found[RIDGE] = ridge(lines, height)
            _label(found[RIDGE], "Φ")
            found[RIDGE].axes[-1].grid(False)  # it would lie over the ridges
    if "observed_data" in groups:
        found[CHECK] = predictive_check(groups)
    return found


def plots(data: Idata, folder: str | Path) -> list[Path]:
    """Save each of `figures` as a PNG file of its name, and return the files.

    Raises:
        DataError: there is neither a Phi nor a label.
        CheckpointError: the folder cannot be written to.
    """
    found = gate_figures(data)
    if not found:
        raise DataError("There is nothing to draw: the data have neither a Phi nor labels.")
    return [save(figure, Path(folder) / f"{name}.png") for name, figure in found.items()]


def forest(lines: xarray.Dataset, height: float) -> Figure:
    """Draw one interval a line: median, the middle half, and `INTERVAL`.

    Args:
        lines: one variable, `chain x draw x module`.
        height: of the figure, inches.
    """
    if renewed():
        probabilities = {"ci_kind": "hdi", "ci_probs": (0.5, INTERVAL)}
        return _new_style("plot_forest", lines, height, point_estimate="median", **probabilities)
    return _old_style(lines, height, hdi_prob=INTERVAL)


def ridge(lines: xarray.Dataset, height: float) -> Figure:
    """Draw one density a line; arguments as in `forest`."""
    if renewed():
        return _new_style("plot_ridge", lines, height)
    # Filled as far as it goes.
    look = {"hdi_prob": 0.999, "ridgeplot_truncate": False, "ridgeplot_alpha": 0.6}
    return _old_style(lines, height, kind="ridgeplot", **look)


def _old_style(lines: xarray.Dataset, height: float, **options: Any) -> Figure:
    """Draw with ArviZ 0.x, into axes of ours."""
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
    """Draw with ArviZ 1.x, whose figure is its own."""
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
    figure.axes[0].set_axis_off()  # it holds the names of the lines, as text
    import_module("matplotlib.pyplot").close(figure)  # which would keep it for ever
    return figure


def _label(figure: Figure, x_label: str) -> None:
    axes = figure.axes[-1]
    axes.set_title("", loc="center")  # ArviZ names the interval there, over ours
    dress(axes, x_label, "Layer and projection", "Global gate Φ of a module's units")


def predictive_check(groups: Mapping[str, xarray.Dataset]) -> Figure:
    """Draw each answer's share of the rows: in the data, and as posterior and prior predict it."""
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
