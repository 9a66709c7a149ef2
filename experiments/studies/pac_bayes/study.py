"""A bound that can say something: PAC-Bayes-kl from the KL of the global gates, beside the true risk.

    python -m experiments pac_bayes

The training rows of the large four-way task are split once. The first part fixes all that a bound may not see
its own rows for: B, A, the amortiser of theta, a first posterior of Phi. Of the second part, n rows may fit
Phi, and give the bound; others of it, which nothing else looks at, give the true risk, the microworld knowing
the true answer probabilities. What is done is not repeated.
"""

import random
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bara_pyro.cli.terminal import say
from bara_pyro.core.loading import load_backbone
from bara_pyro.data import EncodedSplit, Example
from bara_pyro.diagnostics.posterior.gibbs_draws import gibbs_draws
from bara_pyro.errors import ConfigError
from bara_pyro.extras.bounds.pac_bayes import GibbsBound, held_out_bound
from bara_pyro.metrics import posterior_predictive
from bara_pyro.runs.config import load_config
from bara_pyro.runs.evaluate import true_probabilities
from bara_pyro.runs.rows import encode_split, load_data
from bara_pyro.runs.system import System, build_system
from bara_pyro.runs.train import train
from experiments.engine.arguments import command_line, positive
from experiments.engine.methods import tagged
from experiments.engine.results import results_option, resumed
from experiments.engine.search import chosen
from experiments.page.spec import entry_study
from experiments.studies.pac_bayes.gibbs import (
    CAP,
    DELTA,
    DRAWS_DELTA,
    bound_of,
    divergence,
    fit_phi,
    posterior,
    raw_phi,
    risk,
)
from experiments.studies.pac_bayes.section import LOSS, NAME, QUESTION, facts, parts

TASK, CLASSES = "micro-obqa", 4
FIRST = 0.4  # share of the training rows that fixes everything but Phi
SIZES = (320, 1280, 2478)  # of the 4957 training rows; the last is half of them
SHARED_DRAWS = 200  # as predictions are drawn, with one Phi for all rows
TRUTH_DRAWS = 10  # for each row of known truth; what predictions are averaged over elsewhere, too
BOUNDED = (LOSS, "zero-one", "smoothed-nll")


def split_rows(rows: Sequence[Example], seed: int) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """Split training rows at random; both parts are in random order.

    The answers of the second part are drawn anew, each by itself, from its true probabilities: in the task
    those of one resident hang together, also across the parts, and a bound needs independent rows.
    """
    order = random.Random(f"pac-bayes {seed}").sample(range(len(rows)), len(rows))
    cut = round(FIRST * len(rows))
    return tuple(rows[i] for i in order[:cut]), tuple(_drawn_anew(rows[i], seed) for i in order[cut:])


def _drawn_anew(row: Example, seed: int) -> Example:
    rng = random.Random(f"pac-bayes answer {seed} {row.id}")
    return replace(row, label=rng.choices(range(CLASSES), weights=row.truth)[0])


@dataclass(frozen=True)
class Part:
    """Rows as token ids, and their true answer probabilities, `n x C`."""

    split: EncodedSplit
    truth: Tensor


def part_of(system: System, rows: Sequence[Example]) -> Part:
    """Return rows of the microworld as a system reads them."""
    task = replace(system.task, train=rows)
    split = encode_split(system.config, system.backbone, task, "train")
    return Part(split, true_probabilities(replace(system, task=task), split, "train"))


def true_risks(system: System, places: dict[str, Part], seed: int) -> dict[str, Any]:
    """Return the true risks by place and loss; `average`: how often the averaged predictor errs."""
    found: dict[str, Any] = {}
    for place, part in places.items():
        draws = gibbs_draws(system, part.split, TRUTH_DRAWS * len(part.split), seed)
        found[place] = {loss: risk(draws, part.truth, loss) for loss in BOUNDED}
        found[place]["average"] = risk(posterior_predictive(draws)[None], part.truth, "zero-one")
    return found


def prepared(form: str, seed: int, args: Namespace, backbone: Any) -> tuple[System, Sequence[Example]]:
    """Return a system trained on the first part, or read back, and the rows of the second.

    Raises:
        ConfigError: more rows are asked for than the second part has.
    """
    settings = {"method": form, **chosen(form), "task.name": TASK, "seed": seed, "train.steps": args.steps}
    config = load_config(overrides=settings)
    task = load_data(config)
    first, second = split_rows(task.train, seed)
    if max(args.sizes) + args.rows > len(second):
        raise ConfigError(
            f"{max(args.sizes)} rows for the bound and {args.rows} for the true risk are more than the "
            f"{len(second)} rows that training leaves: lower --sizes or --rows."
        )
    system = build_system(config, backbone, replace(task, train=first))
    train(system, args.runs / f"{form}-{seed}", resume=True)
    return system, second


def arms(system: System, second: Sequence[Example], n: int, seed: int, args: Namespace) -> dict[str, Any]:
    """Return what is kept of every arm with n rows of the second part; the system is left as it was."""
    rows = part_of(system, second[:n]).split
    labels = torch.tensor(rows.labels)
    places = {"own": second[-args.rows :], "test": system.task.test[: args.rows]}
    known = {place: part_of(system, examples) for place, examples in places.items()}
    phi, model_prior = raw_phi(system.guide), system.model.phi_prior
    with torch.no_grad():
        weights, learned = phi.clone(), posterior(system.guide)
        usual = float(divergence(learned, model_prior))
    found: dict[str, Any] = {}
    bounds: dict[str, GibbsBound] = {}
    risks: dict[str, Any] = {}
    # The last is not fitted, so that `draws` and `risks` are those of the first part's posterior.
    for arm, prior in (("prior", model_prior), ("informed", learned), ("held-out", None)):
        kl = 0.0
        if prior is not None:
            fit_phi(system, rows, prior, args.fit_steps, seed)
            with torch.no_grad():
                kl = float(divergence(posterior(system.guide), prior).clamp(min=0.0))
        draws = gibbs_draws(system, rows, args.draws, seed)
        risks = true_risks(system, known, seed)
        bounds = {loss: bound_of(draws, labels, kl, loss) for loss in BOUNDED}
        found[arm] = kept(bounds, risks, held_out=prior is None)
        with torch.no_grad():
            phi.copy_(weights)
    as_usual = {loss: replace(bound, kl=usual, draws=SHARED_DRAWS) for loss, bound in bounds.items()}
    return {**found, "usual": kept(as_usual, risks)}


def kept(bounds: dict[str, GibbsBound], risks: dict[str, Any], *, held_out: bool = False) -> dict[str, Any]:
    """Return what is kept of an arm; `held_out`: nothing was fitted to the rows, the test-set bound holds."""
    numbers = {}
    for loss, found in bounds.items():
        value = found.bound
        if held_out:
            value = found.scale * held_out_bound(found.empirical / found.scale, found.n, found.delta)
        numbers[loss] = {
            "measured": found.scale * found.mean,
            "drawn": found.empirical,
            "bound": value,
            **{place: risks[place][loss] for place in risks},
        }
    average = {place: risks[place]["average"] for place in risks}
    first = next(iter(bounds.values()))
    return {"kl": first.kl, "draws": first.draws, "losses": numbers, "average": average}


def main() -> None:
    """Run what is missing and write the results."""
    parser = command_line(__doc__)
    add = parser.add_argument
    add(
        "--forms",
        nargs="+",
        metavar="NAME",
        choices=tagged("ours"),
        default=tagged("ours"),
        help="default: %(default)s",
    )
    add("--sizes", nargs="+", metavar="N", type=positive, default=list(SIZES),
        help="numbers of rows of the bound; default: %(default)s")  # fmt: skip
    add("--seeds", type=positive, default=1, help="repeat with the seeds 0 to N - 1; default: %(default)s")
    add("--steps", type=positive, default=1000, help="of training; default: %(default)s")
    add("--fit-steps", type=positive, default=300, help="of fitting Φ; default: %(default)s")
    add("--draws", type=positive, default=20_000, help="of Φ, for each bound; default: %(default)s")
    add("--rows", type=positive, default=400,
        help="rows of known truth: of the second part, and of test; default: %(default)s")  # fmt: skip
    add("--runs", metavar="DIR", type=Path, default=Path("runs") / NAME,
        help="folder of the runs; those that it holds are not repeated; default: %(default)s")  # fmt: skip
    results_option(parser)
    run(parser.parse_args())


def run(args: Namespace) -> None:
    """Do the entries that a results file lacks, writing it after each."""
    torch.set_num_threads(1)
    about = {"task": TASK, "classes": CLASSES, "first": FIRST, "cap": CAP} | {
        key: getattr(args, key) for key in ("steps", "fit_steps", "draws", "rows")
    }
    about |= {"delta": DELTA, "draws_delta": DRAWS_DELTA, "shared": SHARED_DRAWS}
    results = resumed(NAME, args.out, about)
    backbone = load_backbone("microworld")
    for seed, form in ((seed, form) for seed in range(args.seeds) for form in args.forms):
        missing = [n for n in args.sizes if f"{form} {n} {seed}" not in results.entries]
        if not missing:
            continue
        system, second = prepared(form, seed, args, backbone)
        for n in missing:
            found = arms(system, second, n, seed, args)
            results.add(f"{form} {n} {seed}", {"form": form, "n": n, "seed": seed, "arms": found})
            words = [f"{arm} {found[arm]['losses'][LOSS]['bound']:.3f}" for arm in found]
            say(f"{form}, {n} rows, seed {seed}: at most {', '.join(words)}")
    say(f"Written to {results.path}: python -m experiments report --out {args.out}")


STUDY = entry_study("What can be guaranteed", QUESTION, main, parts, facts=facts, order=26)
