"""The section on the reference posterior: a table a program, and the distribution functions of some gates."""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bara_pyro.report import Column, Table
from bara_pyro.report.style import GREY, INK, dress, legend_of, line_style, new_figure
from experiments.engine.results import Results
from experiments.page.figures import PAGE
from experiments.page.parts import Part, Picture

NAME = "reference_posterior"
NUTS_ARM = "NUTS"
COUPLED = "weibull-coupled"
WEIGHED = ", weighed"  # behind the name of a family whose draws are weighed
PANELS, BESIDE = 4, 2  # gates drawn of each program, side by side

COLUMNS = (
    Column("family", "family"),
    Column("sd", "sd ratio"),
    Column("lowest", "least"),
    Column("wasserstein", "W1"),
    Column("worst", "most"),
    Column("beyond", "KS", format="s"),
    Column("difference", "points", format=".1f"),
    Column("evidence", "evidence"),
    Column("gap", "gap"),
    Column("k_hat", "k"),
)


def asked_of(latent: str, families: Iterable[str]) -> list[str]:
    """Return the families that a program is asked of: without theta there is nothing to couple with Phi."""
    return [name for name in families if latent == "phi*theta" or not name.startswith(COUPLED)]


def families(arms: Mapping[str, Any]) -> list[str]:
    """Return the guide families there are results of."""
    return [name for name in arms if name != NUTS_ARM]


def table(latent: str, arms: Mapping[str, Any]) -> Table:
    """Return a row a family: mean and worst over the gates, predictions, bound and evidence."""
    rows = []
    for family in families(arms):
        arm = arms[family]
        gates = pd.DataFrame(arm["gates"])
        shift = (gates["guide_mean"] - gates["mean"]).abs() / arms[NUTS_ARM]["sd"]
        rows.append(
            {
                "family": family,
                "sd": gates["sd_ratio"].mean(),
                "lowest": gates["sd_ratio"].min(),
                "highest": gates["sd_ratio"].max(),
                "shift": shift.max(),  # standard deviations of NUTS
                "wasserstein": gates["wasserstein"].mean(),
                "worst": gates["wasserstein"].max(),
                "beyond": f"{(gates['ks'] > gates['ks_noise']).sum()} of {len(gates)}",
                "difference": arm["largest_difference"],
                **{key: (arm["importance"] or {}).get(key) for key in ("evidence", "gap", "k_hat")},
            }
        )
    return Table(COLUMNS, rows, f"Posterior of {latent}: each family beside NUTS")


QUESTION = """\
Gates of a tiny random language model, adapter weights fixed, answers drawn from the program itself
(`experiments/studies/reference_posterior`). "sd ratio": standard deviation of the family over that of NUTS,
mean and least over the gates. "W1": 1-Wasserstein distance in standard deviations of NUTS, mean and most.
"KS": how many gates differ by more than two samples of one distribution do in 19 of 20 cases. "points":
largest difference of two predicted probabilities, percentage points. "evidence": log p(y) by {draws:,}
importance weights, nats; "gap": evidence minus ELBO, KL(q || posterior), nats; both can be relied on where k,
Pareto's, is at most `0.7`. A point (delta) has no density, hence no bound. "weighed": as many draws, kept of
five times as many by Pareto-smoothed importance weights (`bara_pyro.diagnostics.posterior.weighing`); its gap
is what the bound of five weights leaves (Burda et al., ICLR 2016).
"""


def programs(results: Results) -> dict[str, dict[str, Any]]:
    """Return the entries by program and arm."""
    found: dict[str, dict[str, Any]] = {}
    for entry in results.entries.values():
        found.setdefault(entry["program"], {})[entry["arm"]] = entry
    return found


def parts(results: Results) -> list[Part]:
    """Return the tables, each with what it is of, and the figure."""
    found: list[Part] = []
    stored, about = programs(results), results.about
    for latent, arms in stored.items():
        reference = arms[NUTS_ARM]
        tokens = reference["tokens"]
        found.append(
            f"**{latent}**: {len(reference['gates'])} gates, {reference['rows']} rows of {tokens} "
            f"token{'s' if tokens > 1 else ''}. NUTS: {about['chains']} chains of "
            f"{about['samples']:,} draws, {reference['divergences']} divergences, largest R-hat "
            f"{max(reference['r_hat']):.3f}, smallest effective sample size {min(reference['ess']):.0f}.\n"
        )
        found.append(table(latent, arms))
    above = [
        f"{latent}, {family}"
        for latent, arms in stored.items()
        for family in families(arms)
        if arms[family]["importance"] and not arms[family]["importance"]["bounded"]
    ]
    if above:
        found.append(f"The ELBO is above the evidence, which is a mistake somewhere: {'; '.join(above)}.\n")
    caption = "Marginals of the first gates of each program: NUTS (black), each family, and the true gate."
    return [*found, Picture(lambda: figure(stored), NAME, caption)]


def figure(programs: Mapping[str, Any]) -> Figure:
    """Draw the distribution functions of some gates: NUTS, each family, and the gate behind the answers."""
    rows = PANELS // BESIDE
    result = new_figure(PAGE, 2.2 * rows * len(programs) + 0.6)
    grid = result.subplots(rows * len(programs), BESIDE, squeeze=False, sharey=True)
    for panels, (latent, arms) in zip(grid.reshape(-1, PANELS), programs.items(), strict=True):
        for i, axes in enumerate(panels):
            if i < len(arms[NUTS_ARM]["gates"]):
                _draw_gate(axes, arms, i)
                axes.set_ylabel("" if i % BESIDE else f"Posterior of {latent}\nCumulative probability")
            else:
                axes.remove()
    handles, labels = grid[0][0].get_legend_handles_labels()
    legend_of(result, handles=handles, labels=labels, loc="outside lower center", ncols=3)
    return result


def _draw_gate(axes: Axes, arms: Mapping[str, Any], i: int) -> None:
    exact = arms[NUTS_ARM]
    levels = torch.linspace(0, 1, len(exact["quantiles"][i]))
    axes.plot(exact["quantiles"][i], levels, color=INK, linewidth=2.6, label=NUTS_ARM)
    for index, family in enumerate(families(arms)):
        axes.plot(arms[family]["quantiles"][i], levels, linewidth=1.4, label=family, **line_style(index))
    axes.axvline(exact["truth"][i], color=GREY, linewidth=0.8, label="true gate")
    site, _, where = exact["gates"][i].partition("[")
    kind = "Φ" if site == "phi" else "θ"
    # Of Phi's name module and unit; of theta's the row, token and unit, its module being in the site's name.
    parts = where.rstrip("]").split(", ")
    module = (parts[0] if kind == "Φ" else site).rsplit(".", 1)[-1].removeprefix("theta/")
    place = f"unit {parts[-1]}" if kind == "Φ" else f"row {parts[0]}"
    dress(axes, "Value of the gate (no unit)", "", f"{kind} {module}, {place}")
    axes.set_xlim(0, 1.3 * exact["quantiles"][i][round(0.99 * (len(levels) - 1))])
