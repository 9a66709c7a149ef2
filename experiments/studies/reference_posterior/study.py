"""Is the variational posterior right? Each guide family beside NUTS, on a few gates of a tiny language model.

    python -m experiments reference_posterior            # some minutes on one core
    python -m experiments reference_posterior --quick    # seconds: shows that it runs, says nothing

The answers of a few rows are drawn from the program itself, with random weights of backbone and adapters that
stay as they are; every guide is fitted to the same rows by SVI. Once with global gates alone, once with both
kinds, on rows of one token. What is done is not repeated: an arm is kept as soon as it is finished.
"""

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from bara_pyro.cli.architectures import shaped
from bara_pyro.cli.terminal import say, show
from bara_pyro.data.split import collate_ids
from bara_pyro.data.types import Batch
from bara_pyro.diagnostics.posterior.comparison import CANDIDATES, compare_with_reference
from bara_pyro.diagnostics.posterior.importance import importance_estimate
from bara_pyro.diagnostics.posterior.joint import draw_latents
from bara_pyro.diagnostics.posterior.reference import Reference, flat_gates, nuts, reference_from
from bara_pyro.diagnostics.posterior.sbc import fit_guide, simulate
from bara_pyro.diagnostics.posterior.weighing import weighed_draws
from bara_pyro.guides.families import FAMILIES
from bara_pyro.lm.backbone import Backbone
from bara_pyro.models.bara import BaRA, Latent
from bara_pyro.report import Column, Table, save
from bara_pyro.report.style import GREY, INK, dress, line_style, new_figure
from bara_pyro.runs.evaluate import environment
from bara_pyro.runs.store import read_tensors, write_tensors
from experiments.engine.arguments import given, quick_parser, setting
from experiments.engine.results import OUT, Results, results_option, resumed
from experiments.page.figures import PAGE, legend_below
from experiments.page.parts import Part, Picture
from experiments.page.spec import entry_study

NAME = "reference_posterior"
NUTS_ARM = "NUTS"
COUPLED = "weibull-coupled"
WEIGHED = ", weighed"  # behind the name of a family whose draws are weighed
PANELS, BESIDE = 4, 2  # gates drawn of each program, side by side
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
        drawn = draw_latents(model, guide, batch, count, again)
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


# The page --------------------------------------------------------------------------------------------------

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
    """Return the families that fit a program: without theta there is nothing to couple with Phi."""
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


SETUP = """\
Gates of a tiny random language model with fixed adapter weights; the answers are drawn from the program
itself. In the table:

- "sd ratio": standard deviation of the family over NUTS's, mean and least over the gates.
- "W1": 1-Wasserstein distance in standard deviations of NUTS, mean and most.
- "KS": how many gates differ by more than two samples of one distribution do in 19 of 20 cases.
- "points": largest difference of two predicted probabilities, in percentage points.
- "evidence": log p(y) by {draws:,} importance weights, in nats; "gap": evidence minus ELBO, KL(q ||
  posterior). Both are reliable if Pareto's k is at most `0.7`. A point (delta) has no density, hence no
  bound.
- "weighed": as many draws, kept out of five times as many by Pareto-smoothed importance weights. Its gap is
  what the bound of five weights leaves (Burda et al., ICLR 2016).
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
    legend_below(result)
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


STUDY = entry_study("Is the variational posterior right?", SETUP, main, parts)
