"""Choose settings on validation rows: the same number of trials for every method, never the test split.

python -m experiments.search micro-wgs micro-arcc
"""

import argparse
from itertools import product
from pathlib import Path

import torch

from experiments.runner import run_all

RATES = (1e-3, 3e-3)
# Two values a method of the setting that matters most to it beside the rate.
ARMS = {
    "lora": ("train.weight_decay", (0.0, 0.1)),
    "bara": ("method.init_kappa", (0.35, 0.693)),
    "bara-gate": ("method.init_kappa", (0.35, 0.693)),
}


def main() -> None:
    """Run the search."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="+")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--runs", type=Path, default=Path("runs/search"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    jobs = {
        f"{task} {method} lr {rate:g} {key.split('.')[1]} {value:g}": {
            "method": method,
            key: value,
            "task.name": task,
            "task.evaluate_on": "validation",
            "train.steps": args.steps,
            "train.lr": rate,
        }
        for task in args.tasks
        for method, (key, values) in ARMS.items()
        for rate, value in product(RATES, values)
    }
    run_all(jobs, args.runs, Path(__file__).parent / "results" / "search.json")


if __name__ == "__main__":
    main()
