"""Predicts and trains on a sharded language model, in two processes; run by `test_ranks.py`."""

import json
import re
import sys
from pathlib import Path

import torch
from forks import processes
from ranks_driver import TWO
from torch import distributed
from torch.distributed.tensor import DTensor

import bara_pyro as bp
from bara_pyro.core.prediction import predict
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data.split import collate_ids
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.models.bara import BaRA

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
BATCH = collate_ids([[3, 4, 5], [6, 7, 8, 9]], [0, 1], ["a", "b"], torch.tensor([3, 5]), 1)


def results(model: AdaptedLM) -> dict[str, object]:
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith("lora_B"):
                value.copy_(torch.linspace(-0.3, 0.3, value.numel()).view_as(value))
    guide = WeibullGuide(model)
    probabilities = predict(model, guide, BATCH, samples=2).exp().flatten().tolist()
    svi = bp.SVI(model, guide, bp.adamw(model, guide, 1e-2))
    torch.manual_seed(1)
    losses = [svi.step(BATCH) for _ in range(3)]
    weights = model.backbone.lm.parameters()
    held = sum((w.to_local() if isinstance(w, DTensor) else w).numel() for w in weights)
    return {"probabilities": probabilities, "losses": losses, "weights": held}


def work() -> None:
    distributed.init_process_group("gloo")
    found = {}
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    sharding, building = block.split("model = ")
    for name in ("whole", "sharded"):
        names = {"backbone": bp.load_backbone(sys.argv[1]), "BaRA": BaRA, "num_data": 4}
        if name == "sharded":
            exec(compile(sharding, str(PAGE), "exec"), names)
        torch.manual_seed(0)
        exec(compile(f"model = {building}", str(PAGE), "exec"), names)
        found[name] = results(names["model"])  # type: ignore[arg-type]
    if distributed.get_rank() == 0:
        Path(sys.argv[2]).write_text(json.dumps(found))
    distributed.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    ends = processes(TWO, work, Path(sys.argv[2]))
    if ends != [[0, ""]] * TWO:
        sys.exit(f"The processes ended with {ends}")
