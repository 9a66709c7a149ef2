"""ArviZ before and after its version 1: everything that differs between the two, and nothing else.

Up to 0.23 results are an `arviz.InferenceData` and plots draw into matplotlib axes; from 1.0 on results are
an `xarray.DataTree` and plots are a `PlotCollection` with a figure of its own. Groups are xarray datasets in
both.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch
import xarray
from matplotlib.figure import Figure
from torch import Tensor

from bara_pyro.report.style import PALETTE, new_figure

# What ArviZ warns of and `Loo.unreliable` says row by row; the second concerns a single row.
PSIS_WARNINGS = ("Estimated shape parameter of Pareto", "The point-wise LOO is the same")
INTERVAL = 0.94
"""Probability of the long interval of a forest plot; the short one holds half."""


def arviz() -> Any:
    """Return the module; imported when needed, because it takes a second and brings pyplot."""
    return import_module("arviz")


def renewed() -> bool:
    """Return whether the ArviZ that is installed is 1.0 or later."""
    return int(arviz().__version__.split(".")[0]) >= 1


def container(groups: Mapping[str, xarray.Dataset], attributes: Mapping[str, Any]) -> Any:
    """Return groups and attributes as the installed ArviZ holds them."""
    if renewed():
        root = xarray.Dataset(attrs=dict(attributes))
        return xarray.DataTree.from_dict({"/": root, **groups})
    return arviz().InferenceData(attrs=dict(attributes), **groups)


def groups_of(data: Any) -> dict[str, xarray.Dataset]:
    """Return the groups of an `InferenceData` or a `DataTree`, whichever ArviZ made it."""
    if hasattr(data, "children"):
        return {name: child.to_dataset() for name, child in data.children.items()}
    return dict(data.items())


@dataclass(frozen=True)
class Loo:
    """Pareto-smoothed importance-sampling leave-one-out (Vehtari et al. 2017), of n rows.

    Attributes:
        elpd: expected log predictive probability, the sum over the rows, nats.
        se: its standard error over rows, nats.
        p: effective number of parameters.
        good_k: the Pareto k up to which a row's estimate can be relied on; `min(1 - 1/log10 S, 0.7)`.
        pointwise: float64, `n`, nats.
        pareto_k: float64, `n`; infinite where there are too few draws to fit the tail (below some 25).
        ids: of the rows.
        raw: ArviZ's own result.
    """

    elpd: float
    se: float
    p: float
    good_k: float
    pointwise: Tensor
    pareto_k: Tensor
    ids: tuple[str, ...]
    raw: Any = field(repr=False, compare=False)

    @property
    def unreliable(self) -> tuple[str, ...]:
        """The rows whose Pareto k is above `good_k`."""
        return tuple(row for row, k in zip(self.ids, self.pareto_k.tolist(), strict=True) if k > self.good_k)


def psis_loo(log_likelihood: xarray.Dataset) -> Loo:
    """Run ArviZ's PSIS-LOO on the variable `y`, `chain x draw x obs`, of independent draws."""
    data = container({"log_likelihood": log_likelihood}, {})
    scale = {} if renewed() else {"scale": "log"}  # later the only one
    with _without_warnings():
        # Independent draws are all effective; without `reff` ArviZ would ask for a posterior group.
        raw = arviz().loo(data, pointwise=True, reff=1.0, **scale)
    names = ("elpd", "p", "elpd_i") if renewed() else ("elpd_loo", "p_loo", "loo_i")
    elpd, p, pointwise = (raw[name] for name in names)
    return Loo(
        float(elpd),
        float(raw["se"]),
        float(p),
        float(raw["good_k"]),
        torch.as_tensor(pointwise.values.copy()),
        torch.as_tensor(raw["pareto_k"].values.copy()),
        tuple(map(str, log_likelihood["obs"].values)),
        raw,
    )


def stacking_weights(results: Mapping[str, Loo]) -> dict[str, float]:
    """Return the weights of the mixture that predicts the left-out rows best (Yao et al. 2018)."""
    # The one column that all versions call the same; newer ones round the others.
    table = arviz().compare({name: result.raw for name, result in results.items()}, method="stacking")
    return {name: float(table["weight"][name]) for name in results}


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
    look = {
        "hdi_prob": 0.999,
        "ridgeplot_truncate": False,
        "ridgeplot_alpha": 0.6,
    }  # filled as far as it goes
    return _old_style(lines, height, kind="ridgeplot", **look)


def _old_style(lines: xarray.Dataset, height: float, **options: Any) -> Figure:
    figure = new_figure(6.4, height)
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
    collection = getattr(arviz(), function)(
        container({"posterior": lines}, {}),
        combined=True,
        labels=["module"],
        visuals={"ticklabels": False},
        backend="matplotlib",
        figure_kwargs={"figsize": (6.4, height)},
        **options,
    )
    figure: Figure = collection.viz["figure"].item()
    pyplot = import_module("matplotlib.pyplot")
    pyplot.close(figure)  # which would keep it for ever
    return figure


@contextmanager
def _without_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        for message in PSIS_WARNINGS:
            warnings.filterwarnings("ignore", message=message, category=UserWarning)
        yield
