"""Trains LoRA with `BaRATrainer`, 4 rows a step, as one of some processes; run by `test_trainer.py`."""

import os
import sys
from pathlib import Path

import torch
from method_cases import made
from safetensors.torch import save_file
from test_trainer import SPLIT, trainer_of

if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    out = Path(sys.argv[1])
    share = 4 // int(os.environ.get("WORLD_SIZE", "1"))
    pair = made("lora", num_data=len(SPLIT))
    trainer = trainer_of(pair, out, {"per_device_train_batch_size": share, "max_steps": 5})
    trainer.train()
    if trainer.args.process_index == 0:
        nll = torch.tensor([logged["nll"] for logged in trainer.state.log_history if "nll" in logged])
        save_file({"nll": nll, **pair[0].state_dict()}, out / "found.safetensors")
