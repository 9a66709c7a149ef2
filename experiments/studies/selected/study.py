"""LoRA and both forms of BaRA on test rows, each at the learning rate that validation rows chose for it.

Every method has the same budget: the rates and seeds of the study `lr_sweep`, whose results are read. The
lowest mean NLL wins. Steps and all other settings are those of the sweep.

    python -m experiments selected --seeds 3
"""

import argparse
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from bara_pyro.runs.store import read_json
from experiments.engine.runner import RESULTS, run_all

TASK = "micro-wgs"
ARMS = {"lora": "lora", "bara": "bara after", "bara-gate": "gate after"}


def best_rate(sweep: dict[str, Any], arm: str) -> float:
    """Return the rate of the lowest validation NLL (S = 10), averaged over the seeds of the sweep."""
    nll: dict[float, list[float]] = defaultdict(list)
    for name, report in sweep.items():
        which, rate, _ = name.rsplit(" ", 2)
        if which == arm:
            nll[float(rate)].append(report["metrics"]["10"]["nll"] if "metrics" in report else float("inf"))
    return min(nll, key=lambda rate: mean(nll[rate]))


def main() -> None:
    """Choose, train and test."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--runs", type=Path, default=Path("runs/selected"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    sweep = read_json(RESULTS / f"lr_sweep_{TASK}.json")
    steps = next(iter(sweep.values()))["settings"]["train.steps"]
    jobs = {
        f"{TASK} {method} {seed}": {
            "method": method,
            "task.name": TASK,
            "train.steps": steps,
            "train.lr": best_rate(sweep, arm),
            "seed": seed,
        }
        for method, arm in ARMS.items()
        for seed in range(args.seeds)
    }
    run_all(jobs, args.runs, RESULTS / "selected.json")


if __name__ == "__main__":
    main()
