"""Learning rates from 3e-4 to 1e-2: does training stay sound? LoRA, both forms of BaRA, before and after.

"before" is Algorithm 1 as printed (noise levels start random around ln 2, no cap, one rate for all, the
amortiser sees the input as it is); "after" are the defaults. Scores are those of rows set aside from train,
never of the test split.

    python -m experiments lr_sweep micro-wgs --seeds 2
    python -m experiments lr_sweep ag_news --model FOLDER --data-dir FOLDER --limit 640 --max-length 128
"""

import argparse
import math
from pathlib import Path

import torch

from experiments.engine.runner import RESULTS, run_all

RATES = (3e-4, 1e-3, 3e-3, 1e-2)
BEFORE = {
    "method.init_kappa": math.log(2),
    "method.random_kappa": True,
    "method.max_kappa": 5.0,
    "method.normalize_input": False,
    "train.local_lr_scale": 1.0,
}
ARMS = {
    "lora": {"method": "lora"},
    "bara before": {"method": "bara", **BEFORE},
    "bara after": {"method": "bara"},
    "gate before": {"method": "bara-gate", **BEFORE},
    "gate after": {"method": "bara-gate"},
}


def main() -> None:
    """Run the sweep."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task")
    parser.add_argument("--model")
    parser.add_argument("--data-dir")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--max-length", type=int, default=160)
    parser.add_argument("--validation-rows", type=int, default=500)
    parser.add_argument("--limit", type=int, help="rows of each split to use at most")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    parser.add_argument("--runs", type=Path, default=Path("runs/lr_sweep"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    shared = {
        "task.name": args.task,
        "backbone.name": args.model,
        "task.data_dir": args.data_dir,
        "task.max_length": args.max_length,
        "task.validation_rows": args.validation_rows,
        "task.evaluate_on": "validation",
        "task.limit": args.limit,
        "train.steps": args.steps,
    }
    jobs = {
        f"{arm} {rate:g} {seed}": {**shared, **settings, "train.lr": rate, "seed": seed}
        for seed in range(args.seeds)
        for rate in args.rates
        for arm, settings in ARMS.items()
    }
    results = RESULTS / f"lr_sweep_{args.task}.json"
    run_all(jobs, args.runs / args.task, results)


if __name__ == "__main__":
    main()
