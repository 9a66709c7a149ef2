"""What the draws look like: exported for ArviZ, and drawn as Phi by layer and as a check of the answers."""

from typing import Any

from xarray import Dataset

from bara_pyro.diagnostics.arviz.compat import INTERVAL, groups_of
from bara_pyro.diagnostics.arviz.gate_plots import (
    CHECK,
    FOREST,
    RIDGE,
    answer_shares,
    figures,
    interval,
    phi_lines,
)
from bara_pyro.diagnostics.arviz.inference_data import to_inference_data
from bara_pyro.diagnostics.arviz.netcdf import write_netcdf
from bara_pyro.diagnostics.page.context import Context, Part
from bara_pyro.report import Picture, Section

FILE = "posterior.nc"
EXPORTED_ROWS = 64
CAPTIONS = {
    FOREST: (
        "Intervals of the global gate Φ, a line a module.",
        "All units of a module together. Where Φ is small they are nearly closed whatever the input.",
    ),
    RIDGE: (
        "Densities of the global gate Φ, a ridge a module.",
        "The same draws as densities: several humps are units that the data tell apart.",
    ),
    CHECK: (
        "Share of the rows that each answer has: observed, by the posterior and by the prior.",
        "Predictive check: each draw answers all rows, and the crosses should lie within the intervals.",
    ),
}


def draws(c: Context) -> Part:
    """Export draws once, as a file and as pictures; for any method."""
    rows, split = min(EXPORTED_ROWS, len(c.rows)), c.system.config.task.evaluate_on
    exported = to_inference_data(c.system, split=split, rows=rows, samples=c.options.samples)
    write_netcdf(exported, c.out / FILE)
    groups = groups_of(exported)
    pictures = {name: Picture(figure, *CAPTIONS[name]) for name, figure in figures(exported).items()}
    found = [_answers(groups)]
    if FOREST in pictures:
        found.append(_phi(groups))
    text = [
        f"{groups['posterior_predictive'].sizes['draw']} draws of the first {rows} rows; {FILE}, beside this "
        "page, holds them for ArviZ."
    ]
    section = Section("What the draws look like", text, figures=list(pictures.values()))
    data = {"rows": rows} | {key: value for _, numbers in found for key, value in numbers.items()}
    return Part(section, tuple(sentence for sentence, _ in found), data, pictures)


def _answers(groups: dict[str, Dataset]) -> tuple[str, dict[str, Any]]:
    """Return whether as many of each answer are predicted as there are, and by how many draws how many."""
    shares = answer_shares(groups)
    names = [str(name) for name in groups["posterior_predictive"]["answer"].values]
    low, _, middle, _, high = interval(shares["posterior"]).tolist()
    observed = shares["observed"].tolist()
    outside = [
        f"{name!r} has {seen:.0f} % of the rows, {a:.0f} to {b:.0f} % is predicted"
        for name, seen, a, b in zip(names, observed, low, high, strict=True)
        if not a <= seen <= b
    ]
    verdict = f"Not as frequent as predicted: {'; '.join(outside)}"
    if not outside:
        verdict = "Each answer is as frequent among the rows as predicted"
    sentence = f"{verdict} ({100 * INTERVAL:.0f} % intervals)."
    rows = zip(names, observed, low, middle, high, strict=True)
    keys = ("observed", "low", "median", "high")
    return sentence, {"answers": {name: dict(zip(keys, values, strict=True)) for name, *values in rows}}


def _phi(groups: dict[str, Dataset]) -> tuple[str, dict[str, Any]]:
    """Return where Phi is smallest and where it is largest."""
    lines = phi_lines(groups["posterior"]["phi"])["phi"].median(("chain", "draw"))
    median = dict(zip(map(str, lines["module"].values), map(float, lines.values), strict=True))
    least, most = min(median, key=median.__getitem__), max(median, key=median.__getitem__)
    sentence = f"The median of Φ goes from {median[least]:.2f} ({least}) to {median[most]:.2f} ({most})."
    return sentence, {"phi_median": median}
