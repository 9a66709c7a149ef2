"""The verdict of the confirmatory benchmark, from the stored rows of its worlds; nothing is run.

    python -m experiments verdict

What is computed, and from which worlds, was written down before any of them was made:
`experiments/studies/confirmatory/plan.md`. A figure of a world is the average over its six tasks; intervals
are Student's, of the worlds' figures, or what other residents of these worlds would change, where that is
wider: six figures may agree by accident. With fewer worlds than the plan has there is no verdict, only what
has been seen so far. Rows of `confirmatory_102` are of the primary contrast in world 102, those of
`confirmatory_aware_102` and `confirmatory_few_102` of secondary ones, which count once every world has them.
How each further set was run: `runs.md` beside this file.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from matplotlib.figure import Figure

from bara_pyro.errors import DataError
from bara_pyro.metrics import accuracy, ece, error_auroc, holm, nll
from bara_pyro.report import Column, Table
from bara_pyro.report.style import INK, dress, new_figure
from experiments.engine.arguments import command_line
from experiments.engine.differences import METRICS
from experiments.engine.record import Record, number
from experiments.engine.results import Entry, Results, read_store, results_option, results_path
from experiments.engine.rows import RunRows, rows_of_study, sets_with_rows
from experiments.engine.worlds import OverWorlds, detectable, over_worlds, student_range
from experiments.page.figures import PAGE
from experiments.page.parts import Folded, Part, Picture
from experiments.page.spec import entry_study
from experiments.page.values import display
from experiments.studies.confirmatory.study import NAME, PRIMARY, TASKS

Metric = Callable[[Any, Any], float]
SCORES: Mapping[str, Metric] = {"nll": nll, "ece": ece, "acc": accuracy, "error_auroc": error_auroc}
SHIFTED = {"near": "micro-near", "far": "micro-far"}
AWARE, FEW, AGAIN, ARMS = ", distance-aware", ", 80 rows", ", made again", ", a further arm"
# By defaults that were chosen when the benchmark was over.
SHORTER, REHEARSED = ", 80 rows, 10 passes", ", 80 rows, rehearsed"
ASKED, LONGER = ", 80 rows, rehearsed as asked for", ", 80 rows, rehearsed, 20 passes"
DOUBLING = ", 80 rows, rehearsed, 10 passes or 20"
# Files of rows -> what their arms are called.
FURTHER = {
    **{"aware": AWARE, "few": FEW, "again": AGAIN},
    **{"shorter": SHORTER, "rehearsed": REHEARSED, "lora": ASKED, "longer": LONGER},
    **{"doubling": DOUBLING, "arms": ARMS},
}
GATE, RIVAL = PRIMARY.arm, PRIMARY.reference
WORDS = {
    "nll": "NLL (nats), primary",
    "ece": "ECE (points)",
    "acc": "accuracy (points)",
    "error_auroc": "AUROC of errors by confidence (points)",
    "near_aware": "NLL, near shift, distance-aware (nats)",
    "far_aware": "NLL, far shift, distance-aware (nats)",
    "few": "NLL, 80 training rows (nats)",
    "shorter": "NLL, 80 training rows, 10 passes (nats)",
    "rehearsed": "NLL, 80 training rows, 10 passes, split-half calibration (nats)",
    "rehearsed_ece": "ECE, 80 training rows, 10 passes, split-half calibration (points)",
    "longer": "NLL, 80 training rows, 20 passes, split-half calibration (nats)",
    "longer_ece": "ECE, 80 training rows, 20 passes, split-half calibration (points)",
    "doubling": "NLL, 80 training rows, by today's default (nats)",
    "doubling_ece": "ECE, 80 training rows, by today's default (points)",
    "rehearsed_lora": "NLL, 80 training rows, LoRA by default (nats)",
    "asked_lora": "NLL, 80 training rows, LoRA, split-half calibration (nats)",
    "rehearsed_bara": "NLL, 80 training rows, additive form, split-half calibration (nats)",
    "near": "NLL, near shift (nats)",
    "far": "NLL, far shift (nats)",
    "near_both": "NLL, near shift, both distance-aware (nats)",
    "far_both": "NLL, far shift, both distance-aware (nats)",
    "bara": "NLL of the additive form minus the gate form, both by default (nats)",
    "bara_ece": "ECE of the additive form minus the gate form, both by default (points)",
    "bara_acc": "accuracy of the additive form minus the gate form, both by default (points)",
    "lora": "NLL of LoRA minus the gate form, both by default (nats)",
    "lora_ece": "ECE of LoRA minus the gate form, both by default (points)",
    "lora_acc": "accuracy of LoRA minus the gate form, both by default (points)",
}
WORLDS = 6
SECONDARY = ("ece", "acc", "error_auroc", "near_aware", "far_aware", "few")
BY_TASK = {PRIMARY.metric: "", "lora": "lora "}  # contrasts that are looked at task by task -> their entries
DRAWN = (GATE, GATE + AWARE, RIVAL + AWARE)  # arms whose draws differ


@dataclass(frozen=True)
class Pair:
    """Two arms and the score in which they differ, on the tasks that they learnt or on other rows."""

    arm: str
    reference: str
    metric: str = "nll"
    tested_on: str | None = None

    def runs(self, world: Sequence[RunRows]) -> list[RunRows]:
        """Return what a world has of the two, each as if it had learnt what it was tested on."""
        return [
            replace(run, task=run.tested_on)
            for run in world
            if run.arm in (self.arm, self.reference) and run.tested_on == (self.tested_on or run.task)
        ]


PAIRS: Mapping[str, Pair] = {
    **{metric: Pair(GATE, RIVAL, metric) for metric in SCORES},
    **{name: Pair(GATE, RIVAL, tested_on=task) for name, task in SHIFTED.items()},
    # Of the language model that the distance-aware form has, where it was not the world's first one.
    **{f"{name}_aware": Pair(GATE + AWARE, RIVAL + AGAIN, tested_on=task) for name, task in SHIFTED.items()},
    **{f"{name}_both": Pair(GATE + AWARE, RIVAL + AWARE, tested_on=task) for name, task in SHIFTED.items()},
    "few": Pair(GATE + FEW, RIVAL + FEW),
    "shorter": Pair(GATE + SHORTER, RIVAL + FEW),
    # Between arms of the same language models, made again.
    "rehearsed": Pair(GATE + REHEARSED, RIVAL + REHEARSED),
    "rehearsed_ece": Pair(GATE + REHEARSED, RIVAL + REHEARSED, "ece"),
    "longer": Pair(GATE + LONGER, RIVAL + REHEARSED),
    "longer_ece": Pair(GATE + LONGER, RIVAL + REHEARSED, "ece"),
    "doubling": Pair(GATE + DOUBLING, RIVAL + REHEARSED),
    "doubling_ece": Pair(GATE + DOUBLING, RIVAL + REHEARSED, "ece"),
    "rehearsed_bara": Pair("bara" + REHEARSED, RIVAL + REHEARSED),
    "rehearsed_lora": Pair("lora" + REHEARSED, RIVAL + REHEARSED),
    "asked_lora": Pair("lora" + ASKED, RIVAL + REHEARSED),
    "bara": Pair("bara" + ARMS, GATE + ARMS),
    "bara_ece": Pair("bara" + ARMS, GATE + ARMS, "ece"),
    "bara_acc": Pair("bara" + ARMS, GATE + ARMS, "acc"),
    "lora": Pair("lora" + ARMS, GATE + ARMS),
    "lora_ece": Pair("lora" + ARMS, GATE + ARMS, "ece"),
    "lora_acc": Pair("lora" + ARMS, GATE + ARMS, "acc"),
}


def stored_worlds(results: Path) -> dict[str, list[RunRows]]:
    """Return world -> rows of its runs; a `DataError` where no world has any."""
    stored = sets_with_rows(NAME, results)
    found = [name for name in stored if re.fullmatch(f"{NAME}_[0-9]+", name)]
    if not found:
        raise DataError(
            f"No world has been run into {results}: see experiments/studies/confirmatory/plan.md. "
            "The committed ones are those of --out experiments/results."
        )
    worlds = {name.removeprefix(f"{NAME}_"): rows_of_study(name, results) for name in found}
    for (world, runs), (name, suffix) in product(worlds.items(), FURTHER.items()):
        more = f"{NAME}_{name}_{world}"
        if more in stored:
            runs += [replace(run, arm=run.arm + suffix) for run in rows_of_study(more, results)]
        elif suffix == AGAIN:  # the language model is the world's first one
            runs += [replace(run, arm=RIVAL + AGAIN) for run in runs if run.arm == RIVAL]
    return worlds


def task_scores(runs: Sequence[RunRows], arm: str, metric: str) -> list[float]:
    """Return a score of each task that an arm learnt, under the largest S."""
    own = [run for run in runs if run.arm == arm and run.tested_on == run.task]
    if not own:
        raise DataError(f"A world has no run of {arm}.")
    return [SCORES[metric](run.log_probs[max(run.log_probs)], run.labels) for run in own]


def differences(runs: Sequence[RunRows]) -> dict[str, float]:
    """Return what the first arm of each pair has more than the other in a world.

    Raises:
        DataError: the world lacks a run of the primary pair.
    """
    found = {}
    for name, pair in PAIRS.items():
        own = pair.runs(runs)
        if name == PRIMARY.metric or {run.arm for run in own} == {pair.arm, pair.reference}:
            ours, theirs = (fmean(task_scores(own, arm, pair.metric)) for arm in (pair.arm, pair.reference))
            found[name] = ours - theirs
    return found


def contrasts(worlds: Mapping[str, Sequence[RunRows]]) -> dict[str, dict[str, Any]]:
    """Return `difference`, `low`, `high` and `p` of every contrast of which all worlds have runs.

    Of the interval of worlds as such and that of these worlds the wider one decides; of AUROC, which is no
    average over rows, there is the first alone. Secondary ones have a `p_holm`, the primary one the interval
    of these worlds beside it (`these_low`, `these_high`).

    Raises:
        DataError: fewer than two worlds, or a world lacks a run.
    """
    found: dict[str, dict[str, Any]] = {}
    by_world = [differences(runs) for runs in worlds.values()]
    for name in [name for name in WORDS if all(name in one for one in by_world)]:
        if PAIRS[name].metric in METRICS:
            both = over(PAIRS[name], worlds)
            found[name] = asdict(both.decides)
            if name == PRIMARY.metric:
                found[name] |= {"these_low": both.these.low, "these_high": both.these.high}
        else:
            found[name] = asdict(student_range([one[name] for one in by_world]))
    others = [name for name in SECONDARY if name in found]
    for name, p in zip(others, holm([found[name]["p"] for name in others]), strict=True):
        found[name]["p_holm"] = p
    return found


def over(pair: Pair, worlds: Mapping[str, Sequence[RunRows]]) -> OverWorlds:
    """Return the difference of a pair, averaged over worlds."""
    runs = {name: pair.runs(world) for name, world in worlds.items()}
    return over_worlds(runs, pair.arm, pair.reference, pair.metric)


def by_task(worlds: Mapping[str, Sequence[RunRows]], pair: Pair) -> dict[str, dict[str, float]]:
    """Return `difference`, `low`, `high` and `p_holm` of each task over worlds: exploratory."""
    tasks = list(dict.fromkeys(run.task for run in pair.runs(next(iter(worlds.values())))))
    ranges = [over(replace(pair, tested_on=task), worlds).decides for task in tasks]
    corrected = holm([found.p for found in ranges])
    return {
        task: {"difference": found.difference, "low": found.low, "high": found.high, "p_holm": p}
        for task, found, p in zip(tasks, ranges, corrected, strict=True)
    }


def told(worlds: Mapping[str, Sequence[RunRows]], records: Mapping[str, Record]) -> dict[str, dict[str, Any]]:
    """Return how well draws detect out-of-distribution rows: AUROC of mutual information, %, over worlds.

    The mean has Student's interval; `by_world` are what it is of. An arm that a world lacks is left out.
    """
    found: dict[str, dict[str, Any]] = {}
    for arm, (shift, task) in product(DRAWN, SHIFTED.items()):
        by_world = {
            world: _auroc(run, records[run.hash])
            for world, runs in worlds.items()
            for run in runs
            if run.arm == arm and run.tested_on == task
        }
        if len(by_world) == len(worlds):
            spread = student_range(list(by_world.values()))
            about = {"arm": arm, "shift": shift, "by_world": by_world, "mean": spread.difference}
            found[f"auroc {shift} {arm}"] = about | {"low": spread.low, "high": spread.high}
    return found


def _auroc(run: RunRows, record: Record) -> float:
    return number(record["shifted"][run.tested_on]["auroc"][str(max(run.log_probs))]["mutual_information"])


def codes(worlds: Mapping[str, Sequence[RunRows]]) -> dict[str, int]:
    """Return commit -> number of the runs that it made; one with changes has a + behind it."""
    made = {(run.hash, run.commit) for runs in worlds.values() for run in runs}
    return dict(Counter(commit for _, commit in made).most_common())


def verdict(worlds: int, low: float, high: float) -> str:
    """Return "met" or "missed" as the plan says, or that worlds are missing."""
    if worlds < WORLDS:
        return "no verdict yet"
    return "met" if high < 0 else "missed"


def main() -> None:
    """Read the worlds' rows and write what they say."""
    parser = command_line(__doc__)
    results_option(parser)
    folder = parser.parse_args().out
    worlds = stored_worlds(folder)
    about = {"worlds": len(worlds), "planned": WORLDS, "runs": codes(worlds)}
    results = Results("verdict", folder, about)
    for world, runs in worlds.items():
        scores = {
            arm: dict(zip(_tasks(runs), task_scores(runs, arm, "nll"), strict=True)) for arm in (GATE, RIVAL)
        }
        results.add(f"world {world}", {"world": world, "nll": scores, "differences": differences(runs)})
    for name, found in contrasts(worlds).items():
        results.add(name, {"metric": name, **found})
    for name, prefix in BY_TASK.items():
        if name in results.entries:
            for task, found in by_task(worlds, PAIRS[name]).items():
                results.add(f"{prefix}{task}", {"task": task, "contrast": name, **found})
    for name, found in told(worlds, read_store(results_path(NAME, folder)).records).items():
        results.add(name, found)
    primary = results.entries[PRIMARY.metric]
    sd = stdev(entry["differences"][PRIMARY.metric] for entry in worlds_of(results))
    reached = {"sd": sd, "told": detectable(sd / len(worlds) ** 0.5, len(worlds) - 1)}
    said = verdict(len(worlds), primary["low"], primary["high"])
    results.add("verdict", {"verdict": said, "worlds": len(worlds), "planned": WORLDS, **reached})
    print(f"{len(worlds)} of {WORLDS} worlds: {said}. Written to {results.path}.")


def _tasks(runs: Sequence[RunRows]) -> list[str]:
    return [run.task for run in runs if run.arm == PRIMARY.arm and run.tested_on == run.task]


# The page --------------------------------------------------------------------------------------------------

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
    tables = [
        contrast_table(results, ("near", "far", "near_both", "far_both")),
        task_table(results, PRIMARY.metric, PRIMARY_ARMS),
        task_table(results, "lora", f"LoRA minus {display(PRIMARY.arm)}, both by default"),
        *([auroc_table(results)] if aurocs_of(results) else []),
        world_table(results),
    ]
    return [
        picture,
        contrast_table(results, [PRIMARY.metric, *SECONDARY]),
        Folded("Exploratory contrasts, tasks, shifts and worlds", [table for table in tables if table.rows]),
        codes_in_words(results.about["runs"]),
    ]


def codes_in_words(runs: Mapping[str, int]) -> str:
    """Return a sentence on which code made the runs that were read."""
    made = (
        f"commit {commit[:12]}{' with changes' * commit.endswith('+')}: {n}" for commit, n in runs.items()
    )
    return f"Code of the runs that were read: {'; '.join(made)}.\n"


def contrast_table(results: Results, names: Sequence[str]) -> Table:
    """Return a row for each of these contrasts that is stored."""
    found = {WORDS[name]: results.entries[name] for name in names if name in results.entries}
    return _differences(
        found, "p (Holm where secondary)", results, PRIMARY_ARMS, "if the row names no other method"
    )


def task_table(results: Results, contrast: str, arms: str) -> Table:
    """Return a row a task."""
    found = {e["task"]: e for e in results.entries.values() if e.get("contrast") == contrast}
    return _differences(found, "p (Holm, of the tasks)", results, arms, "NLL in nats by task, exploratory")


def aurocs_of(results: Results) -> list[Entry]:
    """Return the entries on how well draws detect out-of-distribution rows."""
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
        columns,
        rows,
        "Detection of out-of-distribution rows by mutual information: AUROC in %, by world, exploratory",
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


STUDY = entry_study(
    "Does BaRA with default settings beat a tuned LoRA?",
    "New worlds, language models and tasks on which nothing was developed. The plan "
    "(`experiments/studies/confirmatory/plan.md`) was frozen before any of them was made. {worlds} of "
    "{planned} worlds, six tasks each, one training of each method on each task. `verdict/runs.md` beside "
    "the study names the commands of every set of runs.",
    main,
    parts,
)
