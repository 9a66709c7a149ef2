"""Is the variational posterior calibrated? Simulation-based calibration of each guide family, with controls.

    python -m experiments sbc            # about an hour on one core
    python -m experiments sbc --quick    # seconds: shows that it runs, says nothing

The programs are those of the study `reference_posterior`. Each simulation draws gates and answers from
the program, fits the guide to the answers by SVI and ranks the true gates among its draws. Controls: NUTS has
to pass, draws of Weibull that are too sure have to fail, and the prior has to fail for the log-likelihood.
A step of SVI takes 4 to 7 ms, a chain of NUTS some 20 s.

Ranks are kept after every simulation, and none is done twice: what was interrupted goes on, and a larger
--simulations adds to what there is.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bara_pyro.cli.terminal import progress, say, show
from bara_pyro.core.noise import noise_seed, seeded
from bara_pyro.data.types import Batch
from bara_pyro.diagnostics.posterior.joint import Values, draw
from bara_pyro.diagnostics.posterior.sbc import Sampler, fit_guide, nuts_sampler, sbc, svi_sampler, too_sure
from bara_pyro.guides.families import FAMILIES as GUIDES
from bara_pyro.guides.prior import PriorGuide
from bara_pyro.models.bara import BaRA, Latent
from experiments.engine.arguments import given, quick_parser, setting
from experiments.engine.results import OUT, Results, results_option
from experiments.page.spec import entry_study
from experiments.studies.reference_posterior import study as reference_posterior
from experiments.studies.reference_posterior.section import NUTS_ARM, WEIGHED, asked_of, programs
from experiments.studies.reference_posterior.study import CASES, program, started
from experiments.studies.sbc.section import (
    ARMS,
    FACTOR,
    FAMILIES,
    NAME,
    PRIOR,
    QUESTION,
    TOO_SURE,
    facts,
    parts,
    table,
)

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
        return draw(model, guide, batch, draws, noise_seed(seed, "draws")).values

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


STUDY = entry_study("Simulation-based calibration", QUESTION, main, parts, facts=facts, order=24)
