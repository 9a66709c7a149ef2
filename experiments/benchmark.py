"""Is BaRA's default as good as a tuned LoRA? A confirmatory benchmark on new worlds and new rows.

    for world in 401 402 403 404 405 406; do
        bara microworld build --world $world --seed $world --out runs/worlds/$world; done
    bara backbone get smollm2 --out runs/smollm2
    python -m experiments.benchmark rows --packages Packages --arc-easy train.jsonl
    python -m experiments.benchmark run      # hours; goes on where it was stopped
    python -m experiments.benchmark table

`Packages` is Debian's index of packages (bookworm, main, amd64), `train.jsonl` the training split of
ARC-Easy. The plan, experiments/studies/benchmark/plan.md, was fixed before the first run.
"""

import json
import random
import re
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import product
from math import inf, isfinite, sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from matplotlib.figure import Figure
from scipy.stats import t as student
from torch import Tensor, tensor

from bara_pyro.atomic import write_jsonl
from bara_pyro.errors import DataError
from bara_pyro.metrics import aurc, decompose, ood_auroc, prediction_sets
from bara_pyro.posthoc.temperature import predictive_at
from bara_pyro.report.style import GREY, INK, new_figure
from bara_pyro.runs.config import default_steps, load_config
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.system import System, build_system
from bara_pyro.untrusted.files import read_jsonl
from experiments.engine.figures import PAGE, draw_difference, name_rows, save
from experiments.engine.record import on_task
from experiments.grid import (
    DIVERGED,
    DRAWS,
    TEST,
    TEXTS,
    UPPER,
    RunDraws,
    chosen_of,
    drawn_rows,
    file_settings,
    grid,
    keep,
    stored,
    tagged_packages,
    trained,
    write_parts,
)

SCORES = Path(__file__).parent / "results" / "scores" / "benchmark.jsonl.gz"
ROWS, RUN = Path("runs/benchmark/rows"), Path("runs/benchmark/run")
VALIDATION = 400
TAGS = {
    "use": ("gameplaying", "converting", "checking", "editing", "viewing", "monitor"),
    "interface": ("graphical", "commandline", "daemon", "text-mode"),
}
# Task -> number of training rows, with more settings for a real task.
MICRO = {"micro-wgs": 80, "micro-arcc": 160, "micro-obqa": 320}
REAL: dict[str, tuple[int, dict[str, Any]]] = {
    "use": (80, {}),
    "interface": (80, {}),
    "arc_easy": (80, TEXTS),
}
NOISE = 0.2  # share of the training and validation rows of `noise` pairs that get a wrong label
WORLDS, ROWS_SEEDS, NOISE_SEEDS = (*range(401, 407), *range(601, 607)), range(1, 7), range(1, 4)
GATE, HELPED, TUNED, ENSEMBLE = "gate form, default", "LoRA, same help", "LoRA, tuned", "three LoRAs, tuned"
ARMS = (GATE, HELPED, TUNED, ENSEMBLE)
# The default was changed after the first round. Its first two arms have the former one, these the new one.
LATER, LATER_HELPED = "gate form, from 3e-3", "LoRA, from 3e-3"
LATER_ARMS = (LATER, LATER_HELPED, TUNED, ENSEMBLE)
ROUNDS = {"Worlds": "4", "Real tasks": "rows [1-3]", "Label noise": "noise",
          "New worlds": "6", "New draws": "rows [4-6]"}  # fmt: skip
DEFAULTS = {LATER: {"method": "bara-gate"}, LATER_HELPED: {"method": "lora"}}
MEMBERS = (1, 2, 3)
SHIFTED, SHIFTS = "micro-obqa", ("micro-near", "micro-far")
Scores = Mapping[str, Mapping[str, Mapping[str, Any]]]  # pair -> arm -> its scores
MEASURES = ("nll", "acc", "ece", "aurc", "set size")
ALPHA, HALVES = 0.1, 50


def pair_settings() -> dict[str, dict[str, Any]]:
    """Return the name of each pair of a language model and a task -> its settings."""
    found: dict[str, dict[str, Any]] = {}
    for world, (task, rows) in product(WORLDS, MICRO.items()):
        model = {"backbone.name": f"runs/worlds/{world}", "task.world": world, "task.seed": world}
        found[f"{world}, {task}"] = {**model, "task.name": task, **drawn_rows(rows, VALIDATION, 1)}
    for seed, (task, (rows, own)) in product(ROWS_SEEDS, REAL.items()):
        files, drawn = file_settings(ROWS, task), drawn_rows(rows, VALIDATION, seed)
        found[f"rows {seed}, {task}"] = {**UPPER, **own, **files, **drawn}
    for seed in NOISE_SEEDS:
        wrong = {"task.name": str(ROWS / "use-noise.jsonl")}
        found[f"noise {seed}, use"] = {**found[f"rows {seed}, use"], **wrong}
    return found


def write_rows(args: Namespace) -> None:
    """Write the rows of the real tasks: 300 for the test, the others to draw from."""
    for task, tags in TAGS.items():
        rows = tagged_packages(args.packages, task, tags)
        write_parts(ROWS, task, rows, len(rows) - TEST)
    noise, rows = random.Random(0), read_jsonl(ROWS / "use.jsonl")
    for row in rows:
        if noise.random() < NOISE:
            row["label"] = noise.choice([tag for tag in TAGS["use"] if tag != row["label"]])
    write_jsonl(ROWS / "use-noise.jsonl", rows)
    lines = [json.loads(line) for line in args.arc_easy.read_text().splitlines()]
    rows = [line for line in lines if line["choices"]["label"] == [*"ABCD"]]
    write_parts(ROWS, "arc_easy", rows, len(rows) - TEST)


def run(args: Namespace) -> None:
    """Train every arm of the pairs that has no stored score."""
    for pair in args.pairs:
        run_pair(pair)


def run_pair(pair: str) -> None:
    """Train the arms of a pair that have no stored score: defaults, the grid, what is best of it."""
    done = {row["arm"] for row in stored(SCORES) if row["pair"] == pair}
    base = {**pair_settings()[pair], "seed": 1}
    first = build_system(load_config(overrides=base))
    tried = grid(default_steps(first.model.num_data, first.config.train.batch_size))

    def system(settings: dict[str, Any]) -> System:
        return build_system(load_config(overrides={**base, **settings}), first.backbone, first.task)

    for arm, settings in DEFAULTS.items():
        if arm not in done:
            keep(SCORES, {"pair": pair, "arm": arm}, of_test([trained(system(settings), RUN)], tuned=False))
    for arm, settings in tried.items() if searched(pair) == pair else ():
        if arm not in done:
            drawn = trained(system({**settings, "method": "lora"}), RUN)
            scores = drawn.scores(drawn.log_temperature(tuned=True)) if drawn else DIVERGED
            keep(SCORES, {"pair": pair, "arm": arm}, scores)
    tuned = {**tried[best_of_grid(searched(pair))], "method": "lora"}
    if ENSEMBLE not in done:
        members = [trained(system({**tuned, "seed": seed}), RUN) for seed in MEMBERS]
        for arm, some in ((TUNED, members[:1]), (ENSEMBLE, members)):
            keep(SCORES, {"pair": pair, "arm": arm}, of_test(some, tuned=True))
    if pair.endswith(SHIFTED):
        for name, settings in {LATER: DEFAULTS[LATER], TUNED: tuned}.items():
            if (arm := f"{name}, distance-aware") not in done:
                own = system({**settings, "adapter.distance_aware": True})
                drawn = trained(own, RUN)
                found = {**drawn.scores(0.0), **detected(own, drawn.test[0])} if drawn else DIVERGED
                keep(SCORES, {"pair": pair, "arm": arm}, found)


def searched(pair: str) -> str:
    """Return the pair whose grid chooses the settings: for other draws of rows, that of the first draw."""
    return re.sub(r"^(rows|noise) \d+", rf"\1 {ROWS_SEEDS[0]}", pair)


def best_of_grid(pair: str) -> str:
    """Return the arm of a pair's grid with the lowest NLL on validation rows.

    Raises:
        DataError: the grid was not run.
    """
    tried = [row for row in stored(SCORES) if row["pair"] == pair and row["arm"][0].isdigit()]
    if not tried:
        raise DataError(f"The grid of {pair!r} has no scores: run that pair first.")
    return str(chosen_of(tried)["arm"])


def pooled(members: Sequence[RunDraws]) -> RunDraws:
    """Return the draws of all members as those of one run."""
    known, test = members[0].validation[1], members[0].test[1]
    return RunDraws(
        (torch.cat([one.validation[0] for one in members]), known),
        (torch.cat([one.test[0] for one in members]), test),
        sum(one.seconds for one in members),
    )


def of_test(members: Sequence[RunDraws | None], *, tuned: bool) -> dict[str, Any]:
    """Return scores, and the log-probabilities and labels of the test rows; `DIVERGED` if a member did."""
    finished = [one for one in members if one is not None]
    if len(finished) < len(members):
        return dict[str, Any](DIVERGED)
    drawn = pooled(finished)
    ln_t = drawn.log_temperature(tuned=tuned)
    log_probs = [[round(value, 5) for value in row] for row in predictive_at(drawn.test[0], ln_t).tolist()]
    return {**drawn.scores(ln_t), "log_probs": log_probs, "labels": drawn.test[1].tolist()}


def detected(system: System, known: Tensor) -> dict[str, float]:
    """Return how well mutual information detects shifted rows: AUROC in percent."""
    usual, found = decompose(known).epistemic, {}
    for name in SHIFTS:
        rows = on_task(system, name).split("test").take(range(TEST))
        found[name] = ood_auroc(usual, decompose(draw(system, rows, DRAWS)).epistemic)
    return found


def table(args: Namespace) -> None:
    """Print the mean scores of the arms and the gate form's differences, on worlds and on real tasks."""
    scores: defaultdict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    shown: dict[str, tuple[Scores, Sequence[str]]] = {}
    for row in stored(SCORES):
        scores[row["pair"]][row["arm"]] = row if "log_probs" not in row else {**row, **derived(row)}
    for title, start in ROUNDS.items():
        pairs = [pair for pair in args.pairs if re.match(start, pair) and ENSEMBLE in scores[pair]]
        if pairs:
            compared = with_worst({pair: scores[pair] for pair in pairs})
            print(f"\n{title}: {len(pairs)} pairs\n\n| arm | {' | '.join(MEASURES)} |")
            print(f"|---|{'---:|' * len(MEASURES)}")
            complete = [arms for arms in (ARMS, LATER_ARMS) if {*arms} <= {*shared_arms(compared)}]
            for arms in complete:
                print_means(compared, arms)
            if complete and title != "Label noise":
                shown[title] = (compared, complete[0])
            print_detection(compared)
    if args.figure:
        caption = "NLL of the gate form by default minus that of other arms; rings: worlds or draws of rows."
        save(contrast_figure(shown), args.figure, caption)


def shared_arms(scores: Scores) -> tuple[str, ...]:
    """Return the arms that all pairs have, without the grid's."""
    return tuple(
        arm for arm in dict.fromkeys((*ARMS, *LATER_ARMS)) if all(arm in arms for arms in scores.values())
    )


def with_worst(scores: Scores) -> Scores:
    """Return the scores of pairs; an arm that diverged on one gets its worst scores on the others."""
    filled = {pair: dict(arms) for pair, arms in scores.items()}
    for arm in shared_arms(scores):
        finished = [arms[arm] for arms in scores.values() if isfinite(arms[arm]["nll"])]
        failed = [pair for pair, arms in scores.items() if not isfinite(arms[arm]["nll"])]
        for pair in failed:
            print(f"{arm} diverged on {pair}: its worst scores on other pairs count")
            filled[pair][arm] = {
                name: (min if name == "acc" else max)(one[name] for one in finished) for name in MEASURES
            }
    return filled


def print_means(scores: Scores, arms_shown: Sequence[str]) -> None:
    """Print the arms' means over pairs, and the first one's differences from the others, with intervals."""
    gate, *references = arms_shown
    for arm in arms_shown:
        cells = [f"{mean(arms[arm][name] for arms in scores.values()):.3f}" for name in MEASURES]
        print(f"| {arm} | {' | '.join(cells)} |")
    for reference, name in product(references, MEASURES):
        middle, half = student_interval(differences(scores, reference, name, gate))
        interval = f"{middle:+.3f} [{middle - half:+.3f}, {middle + half:+.3f}]"
        print(f"{gate} minus {reference}, {name}: {interval}")


def print_detection(scores: Scores) -> None:
    """Print how well distance-aware arms detect shifted rows; one that diverged: no better than chance."""
    for arm, shift in product((GATE, LATER, TUNED), SHIFTS):
        named = [some for arms in scores.values() if (some := arms.get(f"{arm}, distance-aware"))]
        if named:
            auroc = mean(one.get(shift, 50.0) for one in named)
            print(f"{arm}, distance-aware, {shift}: AUROC {auroc:.1f} % in {len(named)} worlds")


def differences(scores: Scores, reference: str, name: str, arm: str) -> list[float]:
    """Return an arm's mean score minus that of a reference, for each world or draw of rows."""
    by_group: defaultdict[int, list[float]] = defaultdict(list)
    for pair, arms in scores.items():
        by_group[group(pair)].append(arms[arm][name] - arms[reference][name])
    return [mean(some) for some in by_group.values()]


def contrast_figure(compared: Mapping[str, tuple[Scores, Sequence[str]]]) -> Figure:
    """Draw the gate form's differences in NLL with intervals; rings: worlds or draws of rows."""
    rows = {f"{title}: minus {reference}": differences(scores, reference, "nll", gate)
            for title, (scores, (gate, *others)) in compared.items() for reference in others}  # fmt: skip
    figure = new_figure(PAGE, 0.4 * len(rows) + 1.2)
    axes = figure.add_subplot()
    for place, values in enumerate(rows.values()):
        middle, half = student_interval(values)
        draw_difference(axes, place, {"difference": middle, "low": middle - half, "high": middle + half})
        axes.plot(values, [place + 0.25] * len(values), "o", color=GREY, markerfacecolor="none", markersize=4)
    axes.axvline(0, color=INK, linewidth=0.9, linestyle="--")
    name_rows(axes, rows, "Difference in NLL (nats)")
    return figure


def group(pair: str) -> int:
    """Return the world of a pair, or its draw of rows."""
    return int(re.findall(r"\d+", pair)[0])


def derived(row: dict[str, Any]) -> dict[str, float]:
    """Return the area under the risk-coverage curve (percent), and the mean size of sets that promise 90 %.

    Sets are calibrated on one half of the test rows and counted on the other, for random halves.
    """
    log_probs, labels = tensor(row["log_probs"], dtype=torch.float64), tensor(row["labels"])
    sizes, noise = [], torch.Generator().manual_seed(0)
    for _ in range(HALVES):
        known, new = torch.randperm(len(labels), generator=noise).chunk(2)
        rule = prediction_sets(log_probs[known], labels[known], alpha=ALPHA)
        sizes.append(float(rule(log_probs[new]).sum(dim=1).double().mean()))
    return {"aurc": aurc(log_probs, labels), "set size": mean(sizes)}


def student_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and half the width of its 95 % interval; infinite for one value."""
    if len(values) < 2:
        return mean(values), inf
    return mean(values), float(student.ppf(0.975, len(values) - 1)) * stdev(values) / sqrt(len(values))


def main() -> None:
    """Write rows, run or print the table."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["rows", "run", "table"])
    parser.add_argument("--packages", type=Path, help="Debian's index of packages, unpacked")
    parser.add_argument("--arc-easy", type=Path, help="rows of ARC-Easy's training split, JSON Lines")
    parser.add_argument("--figure", type=Path, help="file for a figure of the table, .svg")
    parser.add_argument("--pairs", nargs="+", metavar="PAIR", choices=[*pair_settings()],
        default=[*pair_settings()], help="'401, micro-wgs', 'rows 1, use' ..; default: all")  # fmt: skip
    args = parser.parse_args()
    {"rows": write_rows, "run": run, "table": table}[args.what](args)


if __name__ == "__main__":
    main()
