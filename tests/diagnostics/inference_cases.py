"""A tiny system of any method, its parameters random, in place of a trained one."""

import atexit
import shutil
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp

import torch
from app_cases import questions, save_backbone, write_rows

from bara_pyro.data import Task
from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.loading import load_backbone
from bara_pyro.runs.config import load_config
from bara_pyro.runs.system import System, assemble, build_system

R, MODULES = 3, ("model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.v_proj")


@lru_cache
def place() -> tuple[Path, Backbone]:
    """A backbone and a file of 32 training and 8 test rows, made once a process."""
    folder = Path(mkdtemp())
    atexit.register(shutil.rmtree, folder)
    save_backbone(folder / "backbone")
    write_rows(folder / "rows.jsonl", questions())
    return folder, load_backbone(str(folder / "backbone"), dtype="float32", device=torch.device("cpu"))


def tiny_system(
    method: str = "bara",
    task: Task | None = None,
    ranks: Mapping[str, int] | None = None,
    **settings: object,
) -> System:
    """A system whose gates, noise levels and adapters are all away from their start.

    `ranks` has the modules with a rank below R.
    """
    folder, backbone = place()
    config = load_config(
        overrides={
            "method": {"name": method, **settings},
            "backbone.name": str(folder / "backbone"),
            "task.name": str(folder / "rows.jsonl"),
            "adapter.r": R,
        }
    )
    system = build_system(config, backbone, task)
    if ranks:
        system = assemble(system.config, backbone, system.task, system.model.num_data, ranks)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for module in (system.model, system.guide):
            for value in module.parameters():
                if value.requires_grad:
                    value.add_(0.3 * torch.randn(value.shape, generator=generator))
    return system


def with_rows(system: System, split: str, **changes: object) -> System:
    """The same system whose first row of a split is changed."""
    first, *others = getattr(system.task, split)
    return replace(system, task=replace(system.task, **{split: (replace(first, **changes), *others)}))
