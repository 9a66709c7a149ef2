"""Pictures of exported draws: Phi by layer as a forest and as ridges, and the predictive check of answers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray
from matplotlib.figure import Figure

from bara_pyro.diagnostics.arviz_compat import INTERVAL, forest, groups_of, ridge
from bara_pyro.errors import DataError
from bara_pyro.report.style import INK, PALETTE, dress, legend_of, new_figure, save

FOREST, RIDGE, CHECK = "phi_forest.png", "phi_ridge.png", "predictive_check.png"
LEGEND = f"point: median; thick: half, thin: {INTERVAL:.0%} of the draws"


def plots(data: Any, folder: Path) -> list[Path]:
    """Draw what the data allow, and return the files written.

    Phi is drawn with ArviZ, one line a module, all its units together, ordered by layer; for single units
    there is `arviz.plot_forest(data, var_names=["phi"])`. Answers are categories, over which ArviZ's own
    check (`plot_ppc`, later `plot_ppc_dist`) would draw a density: here each has its share of the rows.

    Args:
        data: of `to_inference_data`.
        folder: where `phi_forest.png`, `phi_ridge.png` (where there is a Phi) and `predictive_check.png`
            (where there are labels) go.

    Raises:
        DataError: there is neither a Phi nor a label.
        CheckpointError: the folder cannot be written to.
    """
    groups, folder = groups_of(data), Path(folder)
    figures: dict[str, Figure] = {}
    if "phi" in groups.get("posterior", {}):
        lines = phi_lines(groups["posterior"]["phi"])
        height = 1.3 + 0.24 * lines.sizes["module"]
        figures[FOREST] = forest(lines, height)
        _label(figures[FOREST], f"Φ, no unit ({LEGEND})")
        figures[RIDGE] = ridge(lines, height)
        _label(figures[RIDGE], "Φ, no unit")
        figures[RIDGE].axes[-1].grid(False)  # it would lie over the ridges
    if "observed_data" in groups:
        figures[CHECK] = predictive_check(groups)
    if not figures:
        raise DataError("There is nothing to draw: the data have neither a Phi nor labels.")
    return [save(figure, folder / name) for name, figure in figures.items()]


def phi_lines(phi: xarray.DataArray) -> xarray.Dataset:
    """Return `phi` as one variable, `chain x draw x module`: units as further draws, modules by layer."""
    layers, projections = phi["layer"].values, phi["projection"].values
    order = np.argsort(np.where(layers < 0, np.iinfo(int).max, layers), kind="stable")
    names = [
        str(projection) if layer < 0 else f"{layer} {projection}"
        for layer, projection in zip(layers[order], projections[order], strict=True)
    ]
    if len(set(names)) < len(names):  # two of one name in a layer: only the path tells them apart
        names = [str(path) for path in phi["module"].values[order]]
    values = phi.transpose("chain", "draw", "rank", "module").values[..., order]
    pooled = values.reshape(values.shape[0], -1, values.shape[-1])
    return xarray.Dataset({"phi": (("chain", "draw", "module"), pooled)}, coords={"module": names})


def _label(figure: Figure, x_label: str) -> None:
    axes = figure.axes[-1]
    axes.set_title("", loc="center")  # ArviZ names the interval there, over ours
    dress(axes, x_label, "Layer and projection", "Global gate Φ of a module's units")


def predictive_check(groups: Mapping[str, xarray.Dataset]) -> Figure:
    """Draw each answer's share of the rows: in the data, and as posterior and prior predict it."""
    answers = [str(answer) for answer in groups["posterior_predictive"]["answer"].values]
    figure = new_figure(max(5.6, 1.6 + 0.7 * len(answers)), 3.8)
    axes = figure.add_subplot()
    places = np.arange(len(answers))
    for shift, kind in ((-0.12, "posterior"), (0.12, "prior")):
        if f"{kind}_predictive" in groups:
            drawn = _shares(groups[f"{kind}_predictive"]["y"].values, len(answers))
            _intervals(figure, places + shift, drawn, f"{kind.capitalize()} predictive", kind == "posterior")
    seen = _shares(groups["observed_data"]["y"].values, len(answers))
    look: dict[str, Any] = {"color": INK, "markersize": 8, "markeredgewidth": 1.8, "clip_on": False}
    axes.plot(places, seen, "x", label="Observed", **look)
    axes.set_xticks(places, answers)
    axes.set_xlim(-0.5, len(answers) - 0.5)
    axes.set_ylim(bottom=0)
    dress(axes, f"Answer ({LEGEND})", "Share of the rows (%)")
    legend_of(figure, loc="outside upper left", ncols=3)
    return figure


def _shares(answers: np.ndarray, classes: int) -> np.ndarray:
    """Return the share of rows (percent) of each answer, `... x C`, of `... x n`."""
    return 100.0 * (answers[..., None] == np.arange(classes)).mean(axis=-2)


def _intervals(figure: Figure, places: np.ndarray, drawn: np.ndarray, name: str, first: bool) -> None:
    axes, color = figure.axes[-1], PALETTE[0 if first else 4]
    tail = (1 - INTERVAL) / 2
    quantiles = [tail, 0.25, 0.5, 0.75, 1 - tail]
    low, lower, middle, upper, high = np.quantile(drawn.reshape(-1, drawn.shape[-1]), quantiles, axis=0)
    axes.vlines(places, low, high, color=color, linewidth=1.2)
    axes.vlines(places, lower, upper, color=color, linewidth=4)
    look: dict[str, Any] = {"color": color, "markerfacecolor": "white", "markersize": 5, "clip_on": False}
    axes.plot(places, middle, "o", label=name, **look)
