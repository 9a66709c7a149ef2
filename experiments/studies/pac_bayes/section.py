"""The section on bounds that can say something: assumptions, a table by form, arm and rows, a figure."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import mean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bara_pyro.extras.bounds.pac_bayes import LOSSES, GibbsBound
from bara_pyro.report import Column, Table
from bara_pyro.report.style import GREY, INK, PALETTE, SMALL, dress, legend_of, new_figure
from experiments.engine.results import Results, distinct, having
from experiments.page.figures import PAGE
from experiments.page.parts import Folded, Part, Picture
from experiments.page.spec import shared_facts
from experiments.page.values import display, spread_rows

NAME, LOSS = "pac_bayes", "drawn-answer"
ARMS = ("prior", "informed", "held-out", "usual")
DASHES = ("-", "--", "-.", (0, (6, 2, 1, 2, 1, 2)))  # by arm; the line of a guess is dotted

QUESTION = """\
A bound that holds with probability {level:.0f} %, each by itself, on the risk of the predictor that draws Φ,
θ and its answer anew for every question. The training rows of {task} are split at random: {first:.0f} % fix
everything but Φ ({steps:,} steps, settings of the search; {seeds}), n of the others give the bound.

- **prior**: Φ goes on being fitted to the n rows, and nothing else does ({fit_steps:,} steps, mean NLL +
  KL(Φ)/n); KL(Φ) is that to the model's prior.
- **informed**: the same, but the prior of Φ, in the fit and in the bound, is the posterior of the first part.
- **held-out**: Φ stays as the first part left it. The test-set bound, which the others have to beat.
- **usual**: the same predictor counted with KL(Φ) to the model's prior, though the rows fitted nothing, and
  {shared} draws of Φ that all rows share. Elsewhere each row has draws of its own, at least {draws:,} in all.

"over all draws": bound on the mean over all draws from those drawn. "true": expected loss under the true
answer probabilities, without label noise, on {rows} rows of the second part that nothing else used, ±
standard error over rows; "test": the same on test rows, which ask about other residents: no bound here is
about them. "vacuous": no lower than the risk of a uniform guess. "average errs": how often the top answer of
the averaged probabilities is wrong, under the true ones, and twice the bound, which covers it.

Assumed, in the words of the bound, here for the most rows:

{assumptions}

Here (1) holds because the rows are chosen at random and their answers are drawn anew, each by itself, from
the true probabilities: in the task those of one resident hang together, and such rows are not independent.
(Choosing without replacement does no harm: Hoeffding 1963, Theorem 4.) (2) holds by the split, and because
the search of the settings saw none of the answers drawn anew; (4) because each draw is of one row.
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

Entries = Sequence[Mapping[str, Any]]


def parts(results: Results) -> list[Part]:
    """Return the tables, verdicts in words and the figure."""
    about, entries = results.about, list(results.entries.values())
    others = list(dict.fromkeys(loss for e in entries for loss in e["arms"][ARMS[0]]["losses"]))
    caption = (
        "Bound (filled, lines), measured risk (hollow) and true risk (black bars, two standard errors) of a "
        "drawn answer against the rows of the bound; dotted: a uniform guess."
    )
    return [
        table(entries, about, LOSS),
        " ".join([*verdicts(entries), LOSSES[LOSS].covers]) + "\n",
        Folded("Other losses", [table(entries, about, loss) for loss in others if loss != LOSS]),
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
    handles, labels = panels[0].get_legend_handles_labels()
    legend_of(
        result,
        handles=handles,
        labels=labels,
        loc="outside lower center",
        ncols=3,
    )
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
