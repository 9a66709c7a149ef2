"""A bound that can say something: PAC-Bayes-kl from the KL of the global gates, beside the true risk.

    python -m experiments pac_bayes

The training rows of the large four-way task are split once. The first part fixes all that a bound may not see
its own rows for: B, A, the amortiser of theta, a first posterior of Phi. Of the second part, n rows may fit
Phi, and give the bound; others of it, which nothing else looks at, give the true risk, the microworld knowing
the true answer probabilities. What is done is not repeated.
"""

import math
import random
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any, cast

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import kl_divergence
from torch.optim import AdamW

from bara_pyro.cli.terminal import say
from bara_pyro.core.distributions import MeanWeibull
from bara_pyro.core.distributions.weibull import EULER
from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.modules import module_key
from bara_pyro.core.noise import seeded
from bara_pyro.core.optimizers import linear_schedule
from bara_pyro.data import EncodedSplit, Example, training_batches
from bara_pyro.diagnostics.posterior.gibbs_draws import gibbs_draws
from bara_pyro.errors import ConfigError, TrainingError
from bara_pyro.extras.bounds.pac_bayes import LOSSES, GibbsBound, gibbs_bound, held_out_bound
from bara_pyro.lm.loading import load_backbone
from bara_pyro.metrics import posterior_predictive
from bara_pyro.models.bara import PHI, BaRA
from bara_pyro.report import Column, Table
from bara_pyro.report.style import GREY, INK, PALETTE, SMALL, dress, new_figure
from bara_pyro.runs.config import load_config
from bara_pyro.runs.evaluate import true_probabilities
from bara_pyro.runs.rows import encode_split, load_data
from bara_pyro.runs.system import System, build_system
from bara_pyro.runs.train import train
from experiments.engine.arguments import RUNS, command_line, option
from experiments.engine.methods import tagged
from experiments.engine.results import Results, distinct, having, results_option, resumed
from experiments.engine.search import chosen
from experiments.page.figures import PAGE, legend_below
from experiments.page.parts import Folded, Part, Picture
from experiments.page.spec import entry_study, shared_facts
from experiments.page.values import display, spread_rows

NAME, LOSS = "pac_bayes", "drawn-answer"
ARMS = ("prior", "informed", "held-out", "usual")
DASHES = ("-", "--", "-.", (0, (6, 2, 1, 2, 1, 2)))  # by arm; the line of a guess is dotted
Entries = Sequence[Mapping[str, Any]]
FIT_RATE, FIT_BATCH = 0.003, 8
DELTA, DRAWS_DELTA = 0.045, 0.005
CAP = math.log(100)  # largest loss of the smoothed NLL, nats
TASK, CLASSES = "micro-obqa", 4
FIRST = 0.4  # share of the training rows that fixes everything but Phi
SIZES = (320, 1280, 2478)  # of the 4957 training rows; the last is half of them
SHARED_DRAWS = 200  # as predictions are drawn, with one Phi for all rows
TRUTH_DRAWS = 10  # for each row of known truth; what predictions are averaged over elsewhere, too
BOUNDED = (LOSS, "zero-one", "smoothed-nll")


def raw_phi(guide: SiteGuide) -> Tensor:
    """Return the one parameter that q(Phi) has."""
    return guide.sites[module_key(PHI)].weight


def posterior(guide: SiteGuide) -> MeanWeibull:
    """Return q(Phi), `modules x r`, in float64."""
    distribution = guide.get_posterior(PHI, cast(BaRA, guide.model).phi_prior).base_dist
    return MeanWeibull(distribution.mean.double(), distribution.kappa.double(), validate_args=False)


def weibull_kl(q: MeanWeibull, p: MeanWeibull) -> Tensor:
    r"""Return KL(q || p) of two Weibull distributions in nats, entry by entry.

    With t = scale E^kappa, E ~ Exp(1), under q: log t has mean log(scale) - g kappa, g Euler's number, and
    (t / scale_p)^(1 / kappa_p) has mean exp(d / kappa_p) Gamma(1 + kappa_q / kappa_p), where d is the
    difference of the log scales; the rest is linear in these (Bauckhage 2013, arXiv 1310.3713).
    """
    ratio, shift = q.kappa / p.kappa, (q.log_scale - p.log_scale) / p.kappa
    return EULER * (ratio - 1) - ratio.log() - shift - 1 + (shift + torch.lgamma(1 + ratio)).exp()


def divergence(q: MeanWeibull, p: TorchDistribution) -> Tensor:
    """Return KL(q(Phi) || p(Phi)) in nats, of the model's prior or of an earlier posterior."""
    return (weibull_kl(q, p) if isinstance(p, MeanWeibull) else kl_divergence(q, p)).sum()


def fit_phi(system: System, rows: EncodedSplit, prior: TorchDistribution, steps: int, seed: int) -> None:
    """Go on fitting q(Phi), and nothing else, to n rows: mean NLL + KL(q(Phi) || prior) / n.

    The prior is not the model's own where it is an earlier posterior; a step is of `FIT_BATCH` rows.

    Raises:
        TrainingError: the loss is not finite.
    """
    phi, elbo = raw_phi(system.guide), MeanFieldELBO()
    optim = AdamW([phi], lr=FIT_RATE, weight_decay=0.0)
    schedule = linear_schedule(optim, steps)
    with seeded(system.model.backbone.device, seed):
        for step in range(steps):
            batch = rows.batch(training_batches(len(rows), FIT_BATCH, seed, step), system.answer_ids)
            terms = elbo.terms(system.model, system.guide, batch.to(system.backbone.device))
            loss = terms.nll / system.model.num_data + divergence(posterior(system.guide), prior) / len(rows)
            if not loss.isfinite():
                raise TrainingError(f"The loss of Φ is {loss.item()} at step {step + 1}: lower FIT_RATE.")
            (phi.grad,) = torch.autograd.grad(loss, [phi])
            optim.step()
            schedule.step()


def bound_of(draws: Tensor, labels: Tensor, kl: float, loss: str) -> GibbsBound:
    """Return the PAC-Bayes bound from draws of `gibbs_draws`."""
    return gibbs_bound(
        draws, labels, kl, loss=loss, loss_cap=CAP, delta=DELTA, draws_delta=DRAWS_DELTA, shared=False
    )


def risk(draws: Tensor, truth: Tensor, loss: str) -> dict[str, float]:
    """Return the expected loss of a draw under the true answer probabilities, `mean` and standard `error`.

    In units of the loss, a key of `LOSSES`; draws are log-probabilities, `S x n x C`, the truth is `n x C`.
    """
    probs, top, classes = draws.exp().clamp(max=1.0), draws.argmax(-1), draws.shape[-1]
    values = [LOSSES[loss].values(probs[..., c], top == c, classes, CAP) for c in range(classes)]
    scale = CAP if LOSSES[loss].capped else 1.0
    by_row = scale * (torch.stack(values, dim=-1) * truth).sum(-1).mean(0)
    return {"mean": float(by_row.mean()), "error": float(by_row.std() / len(by_row) ** 0.5)}


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
class Rows:
    """Rows as token ids, and their true answer probabilities, `n x C`."""

    split: EncodedSplit
    truth: Tensor


def part_of(system: System, rows: Sequence[Example]) -> Rows:
    """Return rows of the microworld as a system reads them."""
    task = replace(system.task, train=rows)
    split = encode_split(system.config, system.backbone, task, "train")
    return Rows(split, true_probabilities(replace(system, task=task), split, "train"))


def true_risks(system: System, places: dict[str, Rows], seed: int) -> dict[str, Any]:
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
        ConfigError: the second part has fewer rows than `args` requests.
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
    add("--forms", **option(tagged("ours"), "of BaRA", metavar="NAME", choices=tagged("ours")))
    add("--sizes", **option(SIZES, "numbers of rows of the bound", metavar="N"))
    add("--seeds", **option(1, "repeat with the seeds 0 to N - 1"))
    add("--steps", **option(1000, "of training"))
    add("--fit-steps", **option(300, "of fitting Φ"))
    add("--draws", **option(20_000, "of Φ, for each bound"))
    add("--rows", **option(400, "rows of known truth: of the second part, and of test"))
    add("--runs", **option(Path("runs") / NAME, RUNS, metavar="DIR", type=Path))
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


# The page --------------------------------------------------------------------------------------------------

SETUP = """\
Each bound holds with probability {level:.0f} %, on the risk of the predictor that draws Φ, θ and its answer
anew for every question. The training rows of {task} are split at random: {first:.0f} % fix everything
except Φ ({steps:,} steps, settings of the search; {seeds}), and n of the others give the bound.

- **prior**: only Φ is fitted further, to the n rows ({fit_steps:,} steps, mean NLL + KL(Φ)/n). KL(Φ) is to
  the model's prior.
- **informed**: the same with the posterior of the first part as prior, in the fit and in the bound.
- **held-out**: Φ stays as the first part left it. This is the test-set bound, which the others have to
  beat.
- **usual**: the held-out predictor, counted with KL(Φ) to the model's prior and {shared} draws of Φ shared
  by all rows. In the other arms each row has its own draws, at least {draws:,} in all.

- "over all draws": bound on the mean over all draws, from those drawn.
- "true": expected loss under the true answer probabilities, ± standard error over rows, on {rows} rows of
  the second part that nothing else used. "test": on test rows, which are outside every bound.
- "vacuous": no lower than the risk of a uniform guess.
- "average errs": how often the averaged predictor's top answer is wrong, and twice the bound, which covers
  it.

The bounds assume, here for the most rows:

{assumptions}

(1) holds because the rows are chosen at random and their answers are drawn anew from the true
probabilities; in the task itself, rows of one resident are dependent. Choosing without replacement does no
harm (Hoeffding 1963, Theorem 4). (2) holds by the split, and because the search saw none of the new
answers. (4) holds because each draw is of one row.
"""

COLUMNS = (
    Column("form", "form"),
    Column("n", "n", format=",d"),
    Column("arm", "arm"),
    Column("kl", "KL(Φ)", "nats", ".1f"),
    Column("measured", "measured", format=".{digits}f"),
    Column("drawn", "over all draws", format=".{digits}f"),
    Column("bound", "bound", format=".{digits}f"),
    Column("own", "true", format=".{digits}f"),
    Column("error", "±", format=".{digits}f"),
    Column("test", "test", format=".{digits}f"),
    Column("holds", "holds"),
    Column("vacuous", "vacuous"),
)

AVERAGE = (Column("average", "average errs", "%", ".1f"), Column("twice", "at most", "%", ".1f"))


def parts(results: Results) -> list[Part]:
    """Return the tables, verdicts in words and the figure."""
    about, entries = results.about, list(results.entries.values())
    most = max(entry["n"] for entry in entries)
    caption = (
        "Risk of a drawn answer against the rows of the bound. Filled: bound; hollow: measured risk; black "
        "bars: true risk with two standard errors; dotted: a uniform guess."
    )
    return [
        table([entry for entry in entries if entry["n"] == most], about, LOSS),
        " ".join([*verdicts(entries), LOSSES[LOSS].covers]) + "\n",
        Folded(
            "All numbers of rows, and the zero-one loss",
            [table(entries, about, loss) for loss in (LOSS, "zero-one")],
        ),
        Picture(lambda: figure(entries, about), NAME, caption),
    ]


def facts(results: Results) -> dict[str, Any]:
    """Return what the question names, with the assumptions of the bound for the most rows."""
    about = results.about
    most = max(results.entries.values(), key=lambda e: e["n"])
    draws = most["arms"][ARMS[0]]["draws"]
    bound = GibbsBound(LOSS, 0.0, draws, most["n"], 0.0, about["delta"], about["draws_delta"], 1.0)
    return {
        **shared_facts(results),
        "level": 100 * (1 - about["delta"] - about["draws_delta"]),
        "first": 100 * about["first"],
        "assumptions": "\n".join(f"{i}. {sentence}" for i, sentence in enumerate(bound.assumptions, 1)),
    }


def guess(about: Mapping[str, Any], loss: str) -> float:
    """Return the risk of a uniform guess, in units of the loss."""
    classes = about["classes"]
    return math.log(classes) if LOSSES[loss].capped else (classes - 1) / classes


def places(entries: Entries) -> list[tuple[str, int]]:
    """Return forms and numbers of rows in order."""
    return sorted({(e["form"], e["n"]) for e in entries})


def table(entries: Entries, about: Mapping[str, Any], loss: str) -> Table:
    """Return a row a form, number of rows and arm; means over seeds with their spread."""
    rates = not LOSSES[loss].capped
    scale, digits, unit = (100.0, "1", "percent") if rates else (1.0, "3", "nats")
    columns = [
        Column(c.key, c.heading, c.unit, c.format.replace("{digits}", digits))
        for c in (*COLUMNS, *(AVERAGE if loss == LOSS else ()))
    ]
    flat = [
        _numbers(e, arm, loss, scale)
        | {"vacuous": e["arms"][arm]["losses"][loss]["bound"] >= guess(about, loss)}
        for form, n in places(entries)
        for e in having(entries, form=form, n=n)
        for arm in ARMS
    ]
    by = ("form", "n", "arm")
    shown = ("kl", "measured", "drawn", "bound", "own", "test", *(column.key for column in AVERAGE))
    rows = spread_rows(flat, by, shown)
    for row in rows:
        found = having(flat, **{key: row[key] for key in by})
        row["error"] = mean(e["error"] for e in found)
        row |= {key: share([e[key] for e in found]) for key in ("holds", "vacuous")}
    return Table(columns, rows, f"{loss}, {unit}; a guess: {scale * guess(about, loss):.{digits}f}")


def _numbers(entry: Mapping[str, Any], name: str, loss: str, scale: float) -> dict[str, Any]:
    """Return the numbers of an arm of an entry; all but the KL times `scale`."""
    arm, x = entry["arms"][name], entry["arms"][name]["losses"][loss]
    found = {key: scale * x[key] for key in ("measured", "drawn", "bound")}
    found |= {key: scale * x[key]["mean"] for key in ("own", "test")} | {"error": scale * x["own"]["error"]}
    found |= {"average": scale * arm["average"]["own"]["mean"], "twice": scale * min(1.0, 2 * x["bound"])}
    about = {"form": display(entry["form"]), "n": entry["n"], "arm": name, "kl": arm["kl"]}
    return {**about, **found, "holds": x["bound"] >= x["own"]["mean"]}


def share(flags: Sequence[bool]) -> str:
    """Return yes, no, or of how many seeds."""
    return "yes" if all(flags) else f"{sum(flags)} of {len(flags)}" if any(flags) else "no"


def verdicts(entries: Entries) -> list[str]:
    """Return where bounds of a drawn answer lie below a risk, and how often each arm has the lowest one."""
    below: dict[str, list[str]] = {"own": [], "test": []}
    wins = dict.fromkeys(ARMS, 0)
    for entry in entries:
        numbers = {arm: entry["arms"][arm]["losses"][LOSS] for arm in ARMS}
        wins[min(numbers, key=lambda arm: numbers[arm]["bound"])] += 1
        for arm, x in numbers.items():
            for place, names in below.items():
                if x["bound"] < x[place]["mean"]:
                    names.append(f"{display(entry['form'])}, {arm}, n = {entry['n']:,}, seed {entry['seed']}")
    risks = {"own": "the true risk", "test": "the risk on test rows, of which none speaks"}
    said = [
        f"Below {risks[place]}: {'; '.join(names)}." if names else f"No bound lies below {risks[place]}."
        for place, names in below.items()
    ]
    counts = ", ".join(f"{arm} {count}" for arm, count in wins.items() if count)
    return [*said, f"The lowest bound of the {len(entries)} choices of form, rows and seed: {counts}."]


def figure(entries: Entries, about: Mapping[str, Any]) -> Figure:
    """Draw bounds, measured and true risks of a drawn answer against n: a panel a form."""
    forms = sorted(distinct(entries, "form"))
    result = new_figure(PAGE, 4.0)
    panels = result.subplots(1, len(forms), squeeze=False, sharey=True)[0]
    for axes, form in zip(panels, forms, strict=True):
        sizes = [n for name, n in places(entries) if name == form]
        for i, arm in enumerate(ARMS):
            _draw_arm(axes, [having(entries, form=form, n=n) for n in sizes], sizes, i, arm)
        level = 100 * guess(about, LOSS)
        axes.axhline(level, color=GREY, linestyle=":", linewidth=1.4)
        axes.annotate("a guess", (1, level), xycoords=("axes fraction", "data"), ha="right", va="bottom",
                      fontsize=SMALL, color=GREY)  # fmt: skip
        axes.set_xscale("log")
        axes.set_xticks(sizes, [f"{n:,}" for n in sizes])
        axes.minorticks_off()
        dress(axes, "Rows of the bound", "Risk (%)" if axes is panels[0] else "", display(form))
    panels[0].set_ylim(0, max(panels[0].get_ylim()[1], 100 * guess(about, LOSS) + 5))
    # What hollow markers and bars are, whatever the arm.
    panels[0].plot([], [], "o", color=GREY, markersize=5, markerfacecolor="none", label="measured")
    panels[0].errorbar([], [], [], fmt="_", color=INK, markersize=7, label="true")
    legend_below(result)
    return result


def _draw_arm(axes: Axes, found: Sequence[Entries], sizes: Sequence[int], i: int, arm: str) -> None:
    def line(read: Callable[[Any], float]) -> list[float]:
        return [mean(100 * read(e["arms"][arm]["losses"][LOSS]) for e in seeds) for seeds in found]

    x = [n * 1.07 ** (i - 1.5) for n in sizes]  # side by side: what several arms share would hide
    style: dict[str, Any] = {"color": PALETTE[i], "marker": "osD^"[i], "markersize": 5}
    axes.plot(x, line(lambda v: v["bound"]), linestyle=DASHES[i], label=f"bound, {arm}", **style)
    axes.plot(x, line(lambda v: v["measured"]), linestyle="none", markerfacecolor="none", **style)
    errors = [2 * value for value in line(lambda v: v["own"]["error"])]
    axes.errorbar(x, line(lambda v: v["own"]["mean"]), errors, fmt="_", color=INK, linewidth=1, markersize=7)


STUDY = entry_study("What error rate can be guaranteed?", SETUP, main, parts, facts=facts)
