"""The page of the verdict: its contrasts, a picture of worlds, tasks and worlds by figures."""

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from bara_pyro.report import Column, Table
from bara_pyro.report.style import INK, dress, new_figure
from experiments.engine.results import Entry, Results
from experiments.page.figures import PAGE
from experiments.page.parts import Part, Picture
from experiments.page.values import display
from experiments.studies.confirmatory.study import PRIMARY, TASKS

WORDS = {
    "nll": "NLL (nats), primary",
    "ece": "ECE (points)",
    "acc": "accuracy (points)",
    "error_auroc": "AUROC of errors by confidence (points)",
    "near_aware": "NLL, near shift, distance-aware (nats)",
    "far_aware": "NLL, far shift, distance-aware (nats)",
    "few": "NLL, 80 training rows (nats)",
    "shorter": "NLL, 80 training rows, by a later default (nats), exploratory",
    "rehearsed": "NLL, 80 training rows, by a later default, a rehearsal (nats), exploratory",
    "rehearsed_ece": "ECE, 80 training rows, by a later default, a rehearsal (points), exploratory",
    "longer": "NLL, 80 training rows, by a default in between, 20 passes (nats), exploratory",
    "longer_ece": "ECE, 80 training rows, by a default in between, 20 passes (points), exploratory",
    "doubling": "NLL, 80 training rows, by today's default, 10 passes or 20 (nats), exploratory",
    "doubling_ece": "ECE, 80 training rows, by today's default, 10 passes or 20 (points), exploratory",
    "rehearsed_lora": "NLL, 80 training rows, of LoRA by default in its place (nats), exploratory",
    "asked_lora": "NLL, 80 training rows, of LoRA with a rehearsal in its place (nats), exploratory",
    "rehearsed_bara": "NLL, 80 training rows, of the additive form with one in its place (nats), exploratory",
    "near": "NLL, near shift (nats), exploratory",
    "far": "NLL, far shift (nats), exploratory",
    "near_both": "NLL, near shift, both distance-aware (nats), exploratory",
    "far_both": "NLL, far shift, both distance-aware (nats), exploratory",
    "bara": "NLL of the additive form minus the gate form, both by default (nats), exploratory",
    "bara_ece": "ECE of the additive form minus the gate form, both by default (points), exploratory",
    "bara_acc": "accuracy of the additive form minus the gate form, both by default (points), exploratory",
    "lora": "NLL of LoRA minus the gate form, both by default (nats), exploratory",
    "lora_ece": "ECE of LoRA minus the gate form, both by default (points), exploratory",
    "lora_acc": "accuracy of LoRA minus the gate form, both by default (points), exploratory",
}

PRIMARY_ARMS = f"{display(PRIMARY.arm)} minus {display(PRIMARY.reference)}"


def parts(results: Results) -> list[Part]:
    """Return the worlds, the contrasts and a picture of both."""
    picture = Picture(
        lambda: world_figure(results),
        "verdict-nll",
        f"NLL of {display(PRIMARY.arm)} by default minus that of {display(PRIMARY.reference)} as tuned, "
        "by world: small marks are tasks, large ones their average; at the bottom the average of the worlds "
        "with its 95 % interval.",
    )
    of_lora = f"LoRA minus {display(PRIMARY.arm)}, both by default"
    return [
        contrast_table(results),
        picture,
        task_table(results, PRIMARY.metric, PRIMARY_ARMS),
        *([task_table(results, "lora", of_lora)] if "lora" in results.entries else []),
        *([auroc_table(results)] if aurocs_of(results) else []),
        world_table(results),
        codes(results.about["runs"]),
    ]


def codes(runs: Mapping[str, int]) -> str:
    """Return a sentence on which code made the runs that were read."""
    made = (
        f"commit {commit[:12]}{' with changes' * commit.endswith('+')} ({n})" for commit, n in runs.items()
    )
    return f"Code of the runs that were read: {'; '.join(made)}; defaults are the defaults of that code.\n"


def contrast_table(results: Results) -> Table:
    """Return a row a contrast."""
    found = {WORDS[name]: results.entries[name] for name in WORDS if name in results.entries}
    return _differences(
        found, "p (Holm where secondary)", results, PRIMARY_ARMS, "unless the row says otherwise"
    )


def task_table(results: Results, contrast: str, arms: str) -> Table:
    """Return a row a task."""
    found = {e["task"]: e for e in results.entries.values() if e.get("contrast") == contrast}
    return _differences(found, "p (Holm, of the tasks)", results, arms, "NLL in nats by task, exploratory")


def aurocs_of(results: Results) -> list[Entry]:
    """Return the entries that say how well draws tell rows from elsewhere."""
    return [entry for entry in results.entries.values() if "shift" in entry]


def auroc_table(results: Results) -> Table:
    """Return a row a shift and an arm: AUROC of mutual information in each world, and their mean."""
    rows = [
        {
            "what": f"{entry['shift']}, {display(entry['arm'])}",
            "mean": f"{entry['mean']:.1f}",
            "interval": f"[{entry['low']:.1f}, {entry['high']:.1f}]",
            **{world: f"{value:.1f}" for world, value in entry["by_world"].items()},
        }
        for entry in sorted(aurocs_of(results), key=lambda entry: entry["shift"], reverse=True)
    ]
    worlds = [Column(world, world) for world in aurocs_of(results)[0]["by_world"]]
    columns = (Column("what", "rows, method"), Column("mean", "mean"), Column("interval", "95 %"), *worlds)
    return Table(
        columns, rows, "Rows from elsewhere told by mutual information: AUROC in %, by world, exploratory"
    )


def _differences(found: Mapping[str, Entry], p: str, results: Results, arms: str, about: str) -> Table:
    rows = [
        {
            "what": what,
            "difference": f"{one['difference']:+.3f}",
            "interval": f"[{one['low']:+.3f}, {one['high']:+.3f}]",
            "p": p_value(one["p_holm"] if "p_holm" in one else one["p"]),
        }
        for what, one in found.items()
    ]
    columns = (
        Column("what", ""),
        Column("difference", "difference"),
        Column("interval", "95 %"),
        Column("p", p),
    )
    return Table(columns, rows, f"{arms}, {results.about['worlds']} worlds; {about}")


def p_value(p: float) -> str:
    """Write a p-value; no p-value is 0."""
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


def world_table(results: Results) -> Table:
    """Return the NLL of both arms by world and task."""
    rows = []
    for entry in worlds_of(results):
        for arm, scores in entry["nll"].items():
            average = fmean(scores.values())
            rows.append({"world": entry["world"], "arm": display(arm), **scores, "average": average})
    columns = [Column("world", "world"), Column("arm", "method")]
    columns += [Column(task, task, format=".3f") for task in TASKS]
    columns += [Column("average", "average", format=".3f")]
    return Table(columns, rows, "NLL in nats on test rows, S = 10; one training each")


def worlds_of(results: Results) -> list[dict[str, Any]]:
    """Return the entries of worlds."""
    return [entry for entry in results.entries.values() if "world" in entry]


def world_figure(results: Results) -> Figure:
    """Draw the differences of tasks, worlds and their average."""
    worlds, found = worlds_of(results), results.entries[PRIMARY.metric]
    figure = new_figure(PAGE, 0.34 * len(worlds) + 1.4)
    axes = figure.add_subplot()
    for place, entry in enumerate(worlds):
        ours, theirs = entry["nll"][PRIMARY.arm], entry["nll"][PRIMARY.reference]
        axes.plot(
            [ours[t] - theirs[t] for t in ours], [place] * len(ours), "|", color=INK, markersize=8, alpha=0.5
        )
        axes.plot(entry["differences"][PRIMARY.metric], place, "o", color=INK)
    sides = [[found["difference"] - found["low"]], [found["high"] - found["difference"]]]
    axes.errorbar(found["difference"], len(worlds), xerr=sides, fmt="D", color=INK, capsize=4)
    axes.axvline(0, color=INK, linewidth=0.9, linestyle="--")
    dress(axes, "difference in NLL (nats); left of 0 BaRA is better")
    axes.set_yticks(range(len(worlds) + 1), [*(f"world {entry['world']}" for entry in worlds), "average"])
    axes.set_ylim(len(worlds) + 0.6, -0.6)
    return figure
