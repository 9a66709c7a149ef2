"""Real benchmark rows and a real language model: LoRA and both forms of BaRA, on the official splits.

    python -m experiments real_rows --model FOLDER --data-dir FOLDER [--seeds 3]

Settings are the defaults for every method; nothing is tuned on these sets.
"""

import argparse
from pathlib import Path

import torch

from experiments.engine.runner import RESULTS, run_all

TASKS = ("ag_news", "winogrande_s", "openbookqa", "arc_easy")
METHODS = ("lora", "bara", "bara-gate")


def main() -> None:
    """Run all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--max-length", type=int, default=512)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--runs", type=Path, default=Path("runs/real_rows"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    jobs = {
        f"{task} {method} {seed}": {
            "method": method,
            "backbone.name": args.model,
            "task.name": task,
            "task.data_dir": args.data_dir,
            "task.max_length": args.max_length,
            "train.steps": args.steps,
            "seed": seed,
        }
        for seed in range(args.seeds)
        for task in args.tasks
        for method in METHODS
    }
    run_all(jobs, args.runs, RESULTS / "real_rows.json")


if __name__ == "__main__":
    main()
