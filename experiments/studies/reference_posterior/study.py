"""Is the variational posterior right? Each guide family beside NUTS, on a few gates of a tiny language model.

    python -m experiments reference_posterior            # some minutes on one core
    python -m experiments reference_posterior --quick    # seconds: shows that it runs, says nothing

The answers of a few rows are drawn from the program itself, with random weights of backbone and adapters that
stay as they are; every guide is fitted to the same rows by SVI. Once with global gates alone, once with both
kinds, on rows of one token. What is done is not repeated: an arm is kept as soon as it is finished.
"""

import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from bara_pyro.cli.architectures import shaped
from bara_pyro.cli.terminal import say, show
from bara_pyro.core.backbone import Backbone
from bara_pyro.data.split import collate_ids
from bara_pyro.data.types import Batch
from bara_pyro.diagnostics.posterior.comparison import CANDIDATES, compare_with_reference
from bara_pyro.diagnostics.posterior.importance import importance_estimate
from bara_pyro.diagnostics.posterior.joint import draw
from bara_pyro.diagnostics.posterior.reference import Reference, flat_gates, nuts, reference_from
from bara_pyro.diagnostics.posterior.sbc import fit_guide, simulate
from bara_pyro.diagnostics.posterior.weighing import weighed_draws
from bara_pyro.guides.families import FAMILIES
from bara_pyro.models.bara import BaRA, Latent
from bara_pyro.report import save
from bara_pyro.runs.evaluate import environment
from bara_pyro.runs.store import read_tensors, write_tensors
from experiments.engine.arguments import given, quick_parser, setting
from experiments.engine.results import OUT, Results, results_option, resumed
from experiments.page.spec import entry_study
from experiments.studies.reference_posterior.section import (
    COUPLED,
    NAME,
    NUTS_ARM,
    PANELS,
    QUESTION,
    WEIGHED,
    asked_of,
    figure,
    parts,
    programs,
    table,
)

VOCABULARY, ANSWERS = 64, (7, 3, 50)
TARGETS = ["layers.1.self_attn.v_proj", "lm_head"]
UP_SCALE = 0.15  # standard deviation of B, as after training: gates of 1 move the answers
ARMS = (*FAMILIES, f"weibull{WEIGHED}", f"{COUPLED}{WEIGHED}")
LEVELS = 101  # quantiles kept of each marginal that is drawn
CASES: dict[Latent, dict[str, int]] = {
    "phi": {"rows": 32, "tokens": 3, "r": 2},
    "phi*theta": {"rows": 6, "tokens": 1, "r": 1},
}


@dataclass(frozen=True)
class Settings:
    """What the results depend on: the arguments of the same names."""

    seed: int = setting(0, 0, "of weights, rows, chains and draws")
    samples: int = setting(400, 16, "draws of NUTS a chain")
    warmup: int = setting(200, 8, "its warm-up steps")
    chains: int = setting(2, 1, "its chains, one after the other")
    steps: int = setting(1000, 10, "of SVI for each guide")
    draws: int = setting(2000, 60, "from each guide")


def program(latent: Latent, settings: Settings) -> tuple[BaRA, Batch, Tensor]:
    """Return a program, rows with answers drawn from it, and the gates behind them (float64, `G`)."""
    case = CASES[latent]
    config = shaped(
        Qwen2Config, VOCABULARY, 16, 24, 2, 2, 1, max_position_embeddings=32, initializer_range=0.3
    )
    torch.manual_seed(settings.seed)
    backbone = Backbone(Qwen2ForCausalLM(config))
    model = BaRA(
        backbone,
        case["rows"],
        form="gate",
        latent=latent,
        r=case["r"],
        target_modules=TARGETS,
        beta_theta=1.0,  # the exact bound
    )
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("lora_B"):
                weight.normal_(0, UP_SCALE)
    rows = torch.randint(VOCABULARY, (case["rows"], case["tokens"])).tolist()
    names = [str(row) for row in range(len(rows))]
    batch = collate_ids(rows, [0] * len(rows), names, torch.tensor(ANSWERS), 0)
    truth, labelled = simulate(model, batch, settings.seed)
    return model, labelled, flat_gates({name: value[None] for name, value in truth.items()})[0]


def sampled(model: BaRA, batch: Batch, settings: Settings, path: Path) -> Reference:
    """Return the reference posterior: from its file, or sampled and written there."""
    about = asdict(settings)
    if path.exists():
        values, metadata = read_tensors(path)
        if metadata["settings"] == about:
            said = (metadata[key] for key in ("chains", "divergences", "acceptance"))
            return reference_from(model, batch, {name: values[name] for name in metadata["sites"]}, *said)
    found = nuts(
        model,
        batch,
        samples=settings.samples,
        warmup=settings.warmup,
        chains=settings.chains,
        seed=settings.seed,
    )
    metadata = {key: getattr(found, key) for key in ("chains", "divergences", "acceptance")}
    write_tensors(path, found.values, {**metadata, "settings": about, "sites": list(found.values)})
    return found


def quantiles(gates: Tensor) -> list[list[float]]:
    """Return the quantiles of the first gates' draws (`S x G`), from level 0 to 1, to four digits."""
    levels = torch.linspace(0, 1, LEVELS, dtype=torch.float64)
    return [
        [float(f"{value:.4g}") for value in gate]
        for gate in gates[:, :PANELS].quantile(levels, dim=0).T.tolist()
    ]


def reference_arm(reference: Reference, batch: Batch, truth: Tensor) -> dict[str, Any]:
    """Return what is kept of the reference posterior."""
    gates, rows = reference.gates, batch.input_ids
    found = {"truth": truth, "mean": gates.mean(0), "sd": gates.std(0), "ess": reference.ess}
    return {
        "rows": rows.shape[0],
        "tokens": rows.shape[1],
        "gates": list(reference.names),
        **{key: value.tolist() for key, value in found.items()},
        "r_hat": reference.r_hat.tolist(),
        "divergences": reference.divergences,
        "acceptance": list(reference.acceptance),
        "quantiles": quantiles(gates),
    }


def guide_arm(
    name: str, model: BaRA, batch: Batch, reference: Reference, settings: Settings
) -> dict[str, Any]:
    """Fit a guide of a family and return what is kept of its comparison with the reference."""
    torch.manual_seed(settings.seed)  # one start for all families
    family, weighed = name.removesuffix(WEIGHED), name.endswith(WEIGHED)
    guide = FAMILIES[family](model)
    fit_guide(model, guide, batch, steps=settings.steps)
    compared = compare_with_reference(
        model, guide, reference, batch, samples=settings.draws, seed=settings.seed, weighed=weighed
    )
    importance = None
    if guide.stochastic:
        found = importance_estimate(model, guide, batch, samples=settings.draws, seed=settings.seed)
        keys = ("elbo", "elbo_error", "evidence", "evidence_error", "gap", "k_hat", "effective")
        importance = {key: getattr(found, key) for key in keys} | {"bounded": found.bounded_by()}
        if weighed:
            groups = found.log_weights.reshape(CANDIDATES, -1)
            bound = float((groups.logsumexp(0) - math.log(CANDIDATES)).mean())
            importance |= {"elbo": bound, "gap": found.evidence - bound}
    count, again = settings.draws, settings.seed + 1
    if weighed:
        size = CANDIDATES * count
        drawn = weighed_draws(model, guide, batch, samples=count, candidates=size, seed=again).draws
    else:
        drawn = draw(model, guide, batch, count, again)
    return {
        "gates": [vars(gate) for gate in compared.gates],
        "largest_difference": compared.largest_difference,
        "importance": importance,
        "quantiles": quantiles(flat_gates(drawn.values)),
    }


def run(latent: Latent, results: Results, settings: Settings, runs: Path) -> None:
    """Do the arms of a program that are not done, writing the results after each."""
    missing = [arm for arm in (NUTS_ARM, *asked_of(latent, ARMS)) if f"{latent} {arm}" not in results.entries]
    if not missing:
        return
    model, batch, truth = program(latent, settings)
    say(f"{latent}: {NUTS_ARM}")
    begun = time.perf_counter()
    reference = sampled(model, batch, settings, runs / f"{latent.replace('*', '-')}.safetensors")
    for arm in missing:
        if arm != NUTS_ARM:
            say(f"{latent}: {arm}")
            begun = time.perf_counter()
            found = guide_arm(arm, model, batch, reference, settings)
        else:
            found = reference_arm(reference, batch, truth)
        seconds = round(time.perf_counter() - begun, 1)
        results.add(f"{latent} {arm}", {"program": latent, "arm": arm, **found, "seconds": seconds})


def started(name: str, folder: Path, settings: Any) -> Results:
    """Return what is stored of a dataclass of settings, or the beginning of it."""
    found = resumed(name, folder, asdict(settings))
    found.about.setdefault("environment", environment())
    return found


def main() -> None:
    """Run what is missing and print the tables."""
    parser, hasty = quick_parser(__doc__, Settings)
    add, runs = parser.add_argument, Path("runs") / (f"{NAME}-quick" if hasty else NAME)
    add("--runs", metavar="DIR", type=Path, default=runs, help="draws of NUTS; default: %(default)s")
    results_option(parser, runs if hasty else OUT)
    args = parser.parse_args()
    settings = given(Settings, args)
    torch.set_num_threads(1)
    results = started(NAME, args.out, settings)
    for latent in CASES:
        run(latent, results, settings, args.runs)
        show(table(latent, programs(results)[latent]))
    picture = save(figure(programs(results)), args.runs / f"{NAME}.png")
    say(f"Written: {results.path}, {picture}; for the page: python -m experiments report --out {args.out}")


STUDY = entry_study("The variational posterior beside NUTS", QUESTION, main, parts, order=23)
