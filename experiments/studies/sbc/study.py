"""Is the variational posterior calibrated? Simulation-based calibration of each guide family, with controls.

    python -m experiments sbc            # about an hour on one core
    python -m experiments sbc --quick    # seconds: shows that it runs, says nothing

The programs are those of the study `reference_posterior`. Each simulation draws gates and answers from
the program, fits the guide to the answers by SVI and ranks the true gates among its draws. Controls: NUTS has
to pass, draws of Weibull that are too sure have to fail, and the prior has to fail for the log-likelihood.
A step of SVI takes 4 to 7 ms, a chain of NUTS some 20 s.

Ranks are kept after every simulation, and none is done twice: an interrupted run goes on, and a larger
--simulations adds to the stored ones.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bara_pyro.cli.terminal import progress, say, show
from bara_pyro.core.noise import noise_seed, seeded
from bara_pyro.data.types import Batch
from bara_pyro.diagnostics.posterior.joint import Values, draw_latents
from bara_pyro.diagnostics.posterior.sbc import (
    LOG_LIKELIHOOD,
    Calibration,
    Sampler,
    fit_guide,
    nuts_sampler,
    sbc,
    svi_sampler,
    too_sure,
)
from bara_pyro.diagnostics.posterior.uniformity import band, ecdf
from bara_pyro.guides.families import FAMILIES as GUIDES
from bara_pyro.guides.prior import PriorGuide
from bara_pyro.models.bara import PHI, BaRA, Latent
from bara_pyro.report import Column, Table
from bara_pyro.report.style import GREY, INK, NORMAL, PALETTE, dress, legend_of, new_figure
from experiments.engine.arguments import given, quick_parser, setting
from experiments.engine.results import OUT, Results, results_option
from experiments.page.figures import PAGE
from experiments.page.parts import Part, Picture
from experiments.page.spec import entry_study
from experiments.studies.reference_posterior import study as reference_posterior
from experiments.studies.reference_posterior.study import (
    CASES,
    COUPLED,
    NUTS_ARM,
    WEIGHED,
    asked_of,
    program,
    programs,
    started,
)

NAME = "sbc"
FAMILIES = ("weibull", COUPLED, "gamma", "lognormal", f"{COUPLED}{WEIGHED}")
TOO_SURE, PRIOR = "weibull, too sure", "prior"
ARMS = (*FAMILIES, NUTS_ARM, TOO_SURE, PRIOR)
FACTOR = 0.3  # of the draws that are too sure: how far from their mean they stay
LEVEL = 0.95
LIMIT = 0.4  # where the panels are cut: the prior's log-likelihood would press all else together
Arms = Mapping[str, Mapping[str, Any]]
NOTHING: dict[str, Any] = {"ranks": [], "seconds": 0.0}


@dataclass(frozen=True)
class Settings:
    """What a simulation's ranks depend on: the arguments of the same names."""

    seed: int = setting(0, 0, "of weights, rows, data sets and draws")
    steps: int = setting(600, 4, "of SVI for each data set")
    start: int = setting(500, 4, "of SVI for the guide that each fit starts from")
    draws: int = setting(63, 7, "among which the truth is ranked")
    thin: int = setting(4, 2, "draws of NUTS of which one is kept")
    warmup: int = setting(200, 10, "warm-up steps of NUTS")


@dataclass(frozen=True)
class Wanted:
    """How many simulations: the arguments of the same names."""

    simulations: int = setting(100, 3, "data sets for each family")
    controls: int = setting(30, 1, "data sets for each control")


def prior_sampler(model: BaRA, draws: int) -> Sampler:
    """Return the control that ignores the answers: draws of all gates from the prior."""
    guide = PriorGuide(model)

    def sample(batch: Batch, seed: int) -> Values:
        return draw_latents(model, guide, batch, draws, noise_seed(seed, "draws")).values

    return sample


def sampler_of(arm: str, model: BaRA, batch: Batch, settings: Settings) -> Sampler:
    """Return what an arm draws with; a guide has been fitted to the given data set, where its fits start."""
    if arm == NUTS_ARM:
        return nuts_sampler(model, draws=settings.draws, thin=settings.thin, warmup=settings.warmup)
    if arm == PRIOR:
        return prior_sampler(model, settings.draws)
    with seeded(model.backbone.device, settings.seed):
        guide = GUIDES[arm.partition(",")[0]](model)
        fit_guide(model, guide, batch, steps=settings.start)
    weighed = arm.endswith(WEIGHED)
    sampler = svi_sampler(model, guide, steps=settings.steps, draws=settings.draws, weighed=weighed)
    return too_sure(sampler, FACTOR) if arm == TOO_SURE else sampler


def run(latent: Latent, results: Results, settings: Settings, wanted: Mapping[str, int]) -> None:
    """Do the simulations that are not done, `wanted` of each arm, writing the results after each."""
    arms = {arm: results.entries.get(f"{latent} {arm}", NOTHING) for arm in wanted}
    missing = [arm for arm in wanted if len(arms[arm]["ranks"]) < wanted[arm]]
    if not missing:
        return
    model, batch, _ = program(latent, reference_posterior.Settings(seed=settings.seed))
    for arm in missing:
        sampler = sampler_of(arm, model, batch, settings)
        numbers = range(len(arms[arm]["ranks"]), wanted[arm])
        with progress(f"{latent}: {arm}", len(numbers)) as advance:
            for number in numbers:
                begun = time.perf_counter()
                found = sbc(model, batch, sampler, simulations=1, first=number, seed=settings.seed)
                before = arms[arm]
                entry = {
                    "program": latent,
                    "arm": arm,
                    "names": list(found.names),
                    "draws": found.draws,
                    "seconds": round(before["seconds"] + time.perf_counter() - begun, 3),
                    "ranks": [*before["ranks"], *found.ranks.tolist()],
                }
                arms[arm] = results.add(f"{latent} {arm}", entry)
                advance()


def main() -> None:
    """Run what is missing and print the tables."""
    parser, hasty = quick_parser(__doc__, Settings, Wanted)
    results_option(parser, Path("runs") / f"{NAME}-quick" if hasty else OUT)
    args = parser.parse_args()
    settings = given(Settings, args)
    torch.set_num_threads(1)
    results = started(NAME, args.out, settings)
    for latent in CASES:
        wanted = {
            arm: args.simulations if arm in FAMILIES else args.controls for arm in asked_of(latent, ARMS)
        }
        run(latent, results, settings, wanted)
        show(table(latent, programs(results)[latent]))
    say(f"Written: {results.path}; for the page: python -m experiments report --out {args.out}")


# The page --------------------------------------------------------------------------------------------------

SETUP = """\
Each simulation draws gates from the prior and answers from the program, infers the gates from the answers,
and ranks the true gate among {draws} inferred draws. If the posterior is exact, all ranks are equally
likely. An overconfident posterior leaves the truth outside its draws too often. The programs are those of
the [comparison with NUTS](reference_posterior.md) with fixed adapter weights; each guide is fitted anew to
every data set ({steps:,} steps). The log-likelihood at the true gates is ranked as well: a guide that
equals the prior passes for every gate, but not there.

- "N": simulations. "uneven": how many gates' ranks are not uniform (ECDF test), at a joint level of
  {level:g} %.
- "var Φ", "var θ": mean rank variance; 1 if exact, above 1 overconfident. It varies by `0.9/√N` by chance.
- "min p": the smallest p-value of the gates, which is small by chance if there are many.
- "LL": p, mean rank and rank variance of the log-likelihood. The mean is `0.5` if exact, and higher if the
  draws explain the answers less well than the true gates do (by chance `0.29/√N`).
- "weighed": draws kept out of 64 times as many by their importance weights.

Three controls: NUTS has to pass. "too sure" (draws of the Weibull, {factor:g} times as far from their mean)
has to fail. The prior has to pass for the gates and fail for the log-likelihood.
"""

COLUMNS = (
    Column("program", "program"),
    Column("arm", "posterior"),
    Column("simulations", "N", format="d"),
    Column("uneven", "uneven"),
    Column("phi", "var Φ"),
    Column("theta", "var θ"),
    Column("least", "min p", format=".4f"),
    Column("p", "LL p", format=".4f"),
    Column("rank", "LL rank"),
    Column("spread", "LL var"),
)


def in_order(arms: Arms) -> list[str]:
    """Return the arms there are results of."""
    return [arm for arm in ARMS if arm in arms]


def calibration(arm: Mapping[str, Any]) -> Calibration:
    """Return the ranks that were kept of an arm, of the gates and, last, of the log-likelihood."""
    return Calibration(tuple(arm["names"]), torch.tensor(arm["ranks"]), arm["draws"])


def gates_alone(found: Calibration) -> Calibration:
    """Return the ranks of the gates, so that a joint level is theirs."""
    return Calibration(found.names[:-1], found.ranks[:, :-1], found.draws)


def table(latent: str, arms: Arms) -> Table:
    """Return a row an arm of a program."""
    rows = []
    for arm in in_order(arms):
        found = calibration(arms[arm])
        *gates, likelihood = found.uniformity()
        spread: dict[bool, list[float]] = {True: [], False: []}
        for gate in gates:
            spread[is_phi(gate.name)].append(gate.spread)
        rows.append(
            {
                "program": latent,
                "arm": arm,
                "simulations": len(found.ranks),
                "uneven": f"{len(gates_alone(found).uneven(LEVEL))} of {len(gates)}",
                "phi": mean(spread[True]) if spread[True] else None,
                "theta": mean(spread[False]) if spread[False] else None,
                "least": min(gate.p for gate in gates),
                "p": likelihood.p,
                "rank": likelihood.rank,
                "spread": likelihood.spread,
            }
        )
    return Table(COLUMNS[1:], rows, f"Calibration of {latent}")


def is_phi(gate: str) -> bool:
    """Whether a gate is one of Phi, by its name."""
    return gate.startswith(f"{PHI}[")


def surprises(latent: str, arms: Arms) -> list[str]:
    """Return what controls of a program did that they should not."""
    said = []
    for arm in in_order(arms):
        if arm in FAMILIES:
            continue
        found = calibration(arms[arm])
        gates, likelihood = gates_alone(found).uneven(LEVEL), found.uniformity()[-1].p < 1 - LEVEL
        if bool(gates) != (arm == TOO_SURE):
            said.append(f"{latent}, {arm}: {len(gates)} uneven gates")
        if arm != TOO_SURE and likelihood != (arm == PRIOR):
            said.append(f"{latent}, {arm}: log-likelihood {'uneven' if likelihood else 'even'}")
    return said


def facts(results: Results) -> dict[str, Any]:
    """Return what the question names."""
    return {**results.about, "level": 100 * LEVEL, "factor": FACTOR}


def parts(results: Results) -> list[Part]:
    """Return the table, what controls did that they should not, and the figure."""
    stored = programs(results)
    rows = [row for latent, arms in stored.items() for row in table(latent, arms).rows]
    found: list[Part] = [Table(COLUMNS, rows)]
    odd = [words for latent, arms in stored.items() for words in surprises(latent, arms)]
    if odd:
        found.append(
            f"Controls that did something else than they have to: {'; '.join(odd)}. Of tests that have to be "
            "passed one in twenty fails by chance; with few simulations some that have to fail pass.\n"
        )
    caption = (
        f"Distribution of the ranks minus the uniform one, cut at ±{LIMIT:g}. A quantity whose posterior is "
        f"exact stays in the band with a probability of {100 * LEVEL:g} %; lines high at the left and low at "
        "the right are of overconfident posteriors."
    )
    return [*found, Picture(lambda: figure(stored), NAME, caption)]


def figure(programs: Mapping[str, Arms]) -> Figure:
    """Draw the ranks' distribution functions minus the uniform one: a row an arm, a column a program."""
    shown = [arm for arm in ARMS if any(arm in arms for arms in programs.values())]
    result = new_figure(PAGE, 1.4 * len(shown) + 0.9)
    grid = result.subplots(len(shown), len(programs), squeeze=False, sharex=True, sharey=True)
    known: dict[str, Any] = {}  # what stands in the legend
    for panels, (latent, arms) in zip(grid.T, programs.items(), strict=True):
        for axes, arm in zip(panels, shown, strict=True):
            label = arm.replace(", ", ",\n") if axes in grid[:, 0] else ""
            dress(axes, "", label, latent if axes is panels[0] else "")
            axes.set_ylim(-LIMIT, LIMIT)
            if arm in arms:
                _draw_ranks(axes, calibration(arms[arm]))
                handles, labels = axes.get_legend_handles_labels()
                known = dict(zip(labels, handles, strict=True)) | known
            else:
                axes.text(0.5, 0, "not run", ha="center", va="center", color=GREY, backgroundcolor="white")
    result.supxlabel("Rank of the true value (share of the draws below it)", fontsize=NORMAL, color=INK)
    result.supylabel("ECDF minus uniform", fontsize=NORMAL, color=INK)
    legend_of(result, handles=[*known.values()], labels=[*known], loc="outside upper center", ncols=4)
    return result


def _draw_ranks(axes: Axes, found: Calibration) -> None:
    share = torch.arange(1, found.draws + 1).double() / (found.draws + 1)
    low, high = band(len(found.ranks), found.draws, LEVEL)
    axes.fill_between(
        share, low - share, high - share, color=GREY, alpha=0.25, linewidth=0, label=f"{100 * LEVEL:g} % band"
    )
    styles: dict[str, dict[str, Any]] = {
        "gates Φ": {"color": PALETTE[0], "linewidth": 1.1, "zorder": 3},
        "gates θ": {"color": PALETTE[1], "linewidth": 0.8, "linestyle": "--", "zorder": 2},
        LOG_LIKELIHOOD: {"color": INK, "linewidth": 2.4, "zorder": 4},
    }
    for name, line in zip(found.names, ecdf(found.ranks, found.draws), strict=True):
        label = name if name == LOG_LIKELIHOOD else "gates Φ" if is_phi(name) else "gates θ"
        axes.plot(share, line - share, label=label, **styles[label])


STUDY = entry_study("Is the posterior calibrated over simulated data?", SETUP, main, parts, facts=facts)
