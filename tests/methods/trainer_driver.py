"""Trains LoRA with `BaRATrainer`, 4 rows a step, in one process and in two; run by `test_trainer.py`."""

import os
import sys
from pathlib import Path

import torch
from forks import processes
from method_cases import made
from safetensors.torch import save_file
from test_trainer import SPLIT, trainer_of


def train(out: Path, count: int) -> None:
    os.environ["LOCAL_RANK"] = os.environ.get("RANK", "-1")  # as torchrun sets it, for accelerate
    torch.manual_seed(0)
    pair = made("lora", num_data=len(SPLIT))
    trainer = trainer_of(pair, out, {"per_device_train_batch_size": 4 // count, "max_steps": 5})
    trainer.train()
    if trainer.args.process_index == 0:
        nll = torch.tensor([logged["nll"] for logged in trainer.state.log_history if "nll" in logged])
        save_file({"nll": nll, **pair[0].state_dict()}, out / "found.safetensors")


if __name__ == "__main__":
    torch.set_num_threads(1)
    root = Path(sys.argv[1])
    for count in (1, 2):
        ends = processes(count, lambda count=count: train(root / str(count), count), root / str(count))
        if ends != [[0, ""]] * count:
            sys.exit(f"{count} processes ended with {ends}")
