"""A model in a folder, from training to detaching: what must hold whatever its family and type."""

from pathlib import Path

import torch
from app_cases import Place
from family_cases import modules_with_hooks
from torch import Tensor

from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.loading import load_backbone
from bara_pyro.runs.config import load_config
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.system import build_system
from bara_pyro.runs.train import train


@torch.no_grad()
def own_logits(backbone: Backbone, ids: Tensor) -> Tensor:
    """Of the model's own forward."""
    return backbone.lm(input_ids=ids, use_cache=False).logits


def check_trained_saved_read_and_detached(
    folder: Path, place: Place, run: Path, ids: Tensor, dtype: str = "float32"
) -> None:
    """It learns, its draws differ, it is read back to the same bits, and the model is left as it was."""
    settings = {"backbone.name": str(folder), "backbone.dtype": dtype, "task.name": str(place.rows)}
    training = {"train.steps": 30, "train.lr": 0.01, "adapter.r": 4, "method.name": "bara-gate"}
    backbone = load_backbone(folder, dtype=dtype)
    before = own_logits(backbone, ids)
    system = build_system(load_config(overrides=settings | training), backbone=backbone)
    split = system.split("train")
    untrained = draw(system, split, 0)
    train(system, run)
    assert _nll(draw(system, split, 0), split.labels) < _nll(untrained, split.labels)
    drawn = draw(system, split, 3)
    assert (drawn.exp().std(0) > 0).all()
    read = load_system(run)
    assert torch.equal(draw(read, read.split("train"), 3), drawn)
    assert modules_with_hooks(backbone.lm) == []
    assert torch.equal(own_logits(backbone, ids), before)


def _nll(log_probs: Tensor, labels: tuple[int, ...]) -> float:
    return -float(log_probs[0, torch.arange(len(labels)), list(labels)].mean())
