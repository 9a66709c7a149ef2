"""Systems with random parameters in place of trained ones, and little to look at."""

from collections.abc import Mapping
from functools import lru_cache

import torch

from bara_pyro.diagnostics.context import Options
from bara_pyro.runs.config import load_config
from bara_pyro.runs.system import System, assemble, build_system

OPTIONS = Options(rows=10, samples=15)
MODULES = ["q_proj", "lm_head"]
BASE = {"task.name": "micro-wgs", "task.limit": 12, "adapter.r": 3, "adapter.target_modules": MODULES}


@lru_cache
def shared() -> System:
    """What all systems here have in common, backbone and rows, is read once."""
    return build_system(load_config(overrides={"method": "lora", **BASE}))


def fitted(method: str, ranks: Mapping[str, int] | None = None, **settings: object) -> System:
    """A system of a method; `ranks` has the modules with a rank below 3."""
    config = load_config(overrides={"method": method, **BASE, **settings})
    system = build_system(config, shared().backbone, shared().task)
    if ranks:
        system = assemble(system.config, system.backbone, system.task, system.model.num_data, ranks)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, weight in (*system.model.named_parameters(), *system.guide.named_parameters()):
            if weight.requires_grad:
                weight.add_((0.02 if name.endswith("lora_B") else 0.2) * torch.randn_like(weight))
    return system
