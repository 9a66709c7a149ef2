"""Export the draws of a run for ArviZ, and summarize them: predictive check and Phi by module."""

from collections.abc import Mapping

import numpy as np
from xarray import DataArray, Dataset

from bara_pyro.diagnostics.arviz.compat import inference_groups
from bara_pyro.diagnostics.arviz.inference_data import to_inference_data
from bara_pyro.diagnostics.arviz.netcdf import write_netcdf
from bara_pyro.diagnostics.context import Context
from bara_pyro.diagnostics.result import Result

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
