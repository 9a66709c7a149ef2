"""The draws of a run exported for ArviZ, and what a first look at them says."""

from xarray import Dataset

from bara_pyro.diagnostics.arviz.compat import groups_of
from bara_pyro.diagnostics.arviz.gate_plots import answer_shares, interval, phi_lines
from bara_pyro.diagnostics.arviz.inference_data import to_inference_data
from bara_pyro.diagnostics.arviz.netcdf import write_netcdf
from bara_pyro.diagnostics.context import Context
from bara_pyro.diagnostics.result import Result

FILE = "posterior.nc"
EXPORTED_ROWS = 64


class AnswerShare(Result):
    """How often an answer is given, percent of the rows.

    Attributes:
        answer: the answer.
        observed: in the data.
        low, median, high: over the draws of the posterior, each of which answers all rows.
    """

    answer: str
    observed: float
    low: float
    median: float
    high: float

    @property
    def as_predicted(self) -> bool:
        """Whether the interval holds what was observed."""
        return self.low <= self.observed <= self.high


class DrawnAnswers(Result):
    """What was exported.

    Attributes:
        file: name of the netCDF file.
        rows, draws: how many it has.
        answers: the posterior predictive check.
        phi_median: median of Phi by module; empty without a global gate.
    """

    file: str
    rows: int
    draws: int
    answers: list[AnswerShare]
    phi_median: dict[str, float]


def export_draws(c: Context) -> DrawnAnswers:
    """Write the draws of some rows into the report's folder, for any method, and return what they say."""
    rows, split = min(EXPORTED_ROWS, len(c.rows)), c.system.config.task.evaluate_on
    data = to_inference_data(c.system, split=split, rows=rows, samples=c.options.samples)
    write_netcdf(data, c.out / FILE)
    groups = groups_of(data)
    return DrawnAnswers(
        file=FILE,
        rows=rows,
        draws=groups["posterior_predictive"].sizes["draw"],
        answers=_answers(groups),
        phi_median=_phi(groups),
    )


def _answers(groups: dict[str, Dataset]) -> list[AnswerShare]:
    """Return whether as many of each answer are predicted as there are."""
    shares = answer_shares(groups)
    names = [str(name) for name in groups["posterior_predictive"]["answer"].values]
    low, _, middle, _, high = interval(shares["posterior"]).tolist()
    rows = zip(names, shares["observed"].tolist(), low, middle, high, strict=True)
    return [AnswerShare(answer=n, observed=o, low=a, median=m, high=b) for n, o, a, m, b in rows]


def _phi(groups: dict[str, Dataset]) -> dict[str, float]:
    posterior = groups.get("posterior", Dataset())
    if "phi" not in posterior:
        return {}
    median = phi_lines(posterior["phi"])["phi"].median(("chain", "draw"))
    return dict(zip(map(str, median["module"].values), map(float, median.values), strict=True))
