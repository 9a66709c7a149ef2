"""Pictures of exported draws: Phi by layer as a forest and as ridges, and the predictive check of answers."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import xarray
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bara_pyro.diagnostics.arviz.compat import INTERVAL, Idata, forest, groups_of, ridge
from bara_pyro.errors import DataError
from bara_pyro.report.style import INK, PALETTE, WIDTH, Look, dress, legend_of, new_figure, save

FOREST, RIDGE, CHECK = "phi_forest", "phi_ridge", "predictive_check"
LEGEND = f"point: median; thick 50 %, thin {100 * INTERVAL:.0f} %"


def figures(data: Idata) -> dict[str, Figure]:
    """Return what the data allow to draw: `phi_forest` and `phi_ridge` of Phi, `predictive_check` of labels.

    Phi is drawn with ArviZ, one line a module, all its units together, ordered by layer; for single units
    there is `arviz.plot_forest(data, var_names=["phi"])`. Answers are categories, over which ArviZ's own
    check (`plot_ppc`, later `plot_ppc_dist`) would draw a density: here each has its share of the rows.

    Args:
        data: of `to_inference_data`.

    Returns:
        Name -> figure: what there is no Phi or no label for is left out, and ridges where all values of a
        module are one, which has no density.
    """
    groups = groups_of(data)
    found: dict[str, Figure] = {}
    if "phi" in groups.get("posterior", {}):
        lines = phi_lines(groups["posterior"]["phi"])
        height = 1.3 + 0.24 * lines.sizes["module"]
        found[FOREST] = forest(lines, height)
        _label(found[FOREST], f"Φ ({LEGEND})")
        if float(lines["phi"].std(("chain", "draw")).min()) > 0:
            found[RIDGE] = ridge(lines, height)
            _label(found[RIDGE], "Φ")
            found[RIDGE].axes[-1].grid(False)  # it would lie over the ridges
    if "observed_data" in groups:
        found[CHECK] = predictive_check(groups)
    return found


def plots(data: Idata, folder: Path) -> list[Path]:
    """Save each of `figures` as a PNG file of its name, and return the files.

    Raises:
        DataError: there is neither a Phi nor a label.
        CheckpointError: the folder cannot be written to.
    """
    found = figures(data)
    if not found:
        raise DataError("There is nothing to draw: the data have neither a Phi nor labels.")
    return [save(figure, Path(folder) / f"{name}.png") for name, figure in found.items()]


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
    figure = new_figure(max(WIDTH, 1.2 + 0.4 * len(answers)), 3.8)
    axes = figure.add_subplot()
    places, shares = np.arange(len(answers)), answer_shares(groups)
    for shift, kind, color, marker in (
        (-0.12, "posterior", PALETTE[0], "o"),
        (0.12, "prior", PALETTE[4], "s"),
    ):
        if kind in shares:
            name = kind.capitalize()
            _intervals(axes, places + shift, interval(shares[kind]), name, color, marker)
    look: Look = {"color": INK, "markersize": 8, "markeredgewidth": 1.8, "clip_on": False}
    axes.plot(places, shares["observed"], "x", label="Observed", **look)
    axes.set_xticks(places, answers)
    axes.set_xlim(-0.5, len(answers) - 0.5)
    axes.set_ylim(bottom=0)
    dress(axes, f"Answer ({LEGEND})", "Share of the rows (%)")
    legend_of(figure, loc="outside upper left", ncols=3)
    return figure


def answer_shares(groups: Mapping[str, xarray.Dataset]) -> dict[str, np.ndarray]:
    """Return the share of the rows that each answer has, percent: in the data and by draw.

    Returns:
        `observed`: float64, `C`; `posterior` and, where it was drawn from, `prior`: `chain x draw x C`.
    """
    kinds = {"observed": "observed_data", "posterior": "posterior_predictive", "prior": "prior_predictive"}
    classes = np.arange(groups["posterior_predictive"].sizes["answer"])
    return {
        kind: 100.0 * (groups[name]["y"].values[..., None] == classes).mean(axis=-2)
        for kind, name in kinds.items()
        if name in groups
    }


def interval(values: np.ndarray) -> np.ndarray:
    """Return the quantiles over all draws of `chain x draw x C` that are shown, `5 x C`, from low to high."""
    tail = (1 - INTERVAL) / 2
    return np.quantile(values, [tail, 0.25, 0.5, 0.75, 1 - tail], axis=(0, 1))


def _intervals(
    axes: Axes, places: np.ndarray, quantiles: np.ndarray, name: str, color: str, marker: str
) -> None:
    low, lower, middle, upper, high = quantiles
    axes.vlines(places, low, high, color=color, linewidth=1.2)
    axes.vlines(places, lower, upper, color=color, linewidth=4)
    look: Look = {"color": color, "markerfacecolor": "white", "markersize": 5, "clip_on": False}
    axes.plot(places, middle, marker, label=name, **look)
