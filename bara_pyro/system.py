"""A configuration made real: backbone, task, model and guide; and its folder on disk."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bara_pyro.backbone import Backbone, load_backbone
from bara_pyro.config import RunConfig, parse_config
from bara_pyro.data import EncodedSplit, Task, answer_token_ids, encode, load_task
from bara_pyro.errors import CheckpointError, ConfigError, DataError
from bara_pyro.fingerprint import fingerprint
from bara_pyro.guide import SiteGuide
from bara_pyro.methods import build
from bara_pyro.program import AdaptedLM
from bara_pyro.store import load_parameters, read_json, read_tensors, write_json, write_tensors

ADAPTER, GUIDE, CONFIG = "adapter_model.safetensors", "guide.safetensors", "config.json"


@dataclass
class System:
    """Everything that training and prediction work on.

    Attributes:
        config: the settings.
        backbone: the frozen language model with its tokenizer.
        task: the rows.
        answer_ids: long, `C`: the token of each class.
        model, guide: the program and its posterior.
    """

    config: RunConfig
    backbone: Backbone
    task: Task
    answer_ids: Tensor
    model: AdaptedLM
    guide: SiteGuide

    def split(self, name: str) -> EncodedSplit:
        """Return a split as token ids.

        Raises:
            DataError: the split is empty, or a question is too long.
        """
        rows = getattr(self.task, name)
        if not rows:
            raise DataError(
                f"The task {self.task.name!r} has no {name} rows: choose another split or --validation-rows."
            )
        return encode(rows, self.backbone.tokenizer, self.config.task.max_length)


def load_data(config: RunConfig) -> Task:
    """Load the task that a configuration names."""
    c = config.task
    return load_task(c.name, c.data_dir, validation_rows=c.validation_rows, seed=c.seed, labels=c.labels)


def build_system(config: RunConfig, backbone: Backbone | None = None, task: Task | None = None) -> System:
    """Load what a configuration names and build model and guide, with initial values from its seed.

    Args:
        config: the settings.
        backbone: an already loaded one, to share between several systems.
        task: an already loaded one.

    Raises:
        BaraError: a name is unknown, a file unreadable, a label not a single token.
    """
    backbone = backbone or load_backbone(
        config.backbone.name, dtype=config.backbone.dtype, device=_device(config.backbone.device)
    )
    task = task or load_data(config)
    if not task.train:
        raise DataError(f"The task {task.name!r} has no training rows: it serves for evaluation only.")
    answer_ids = answer_token_ids(backbone.tokenizer, task.labels)
    torch.manual_seed(config.seed)
    model, guide = build(config.method, backbone, len(task.train), config.adapter.model_dump())
    return System(config, backbone, task, answer_ids, model, guide)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"Unknown device {name!r}: choose cpu, cuda, cuda:0 or mps.") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"Device {name!r} asked for, but no CUDA device is available: use --device cpu.")
    return device


# On disk ---------------------------------------------------------------------------------------------------


def write_config(system: System, folder: Path) -> None:
    """Write `config.json` and PEFT's `adapter_config.json`: what a run is, before it starts."""
    config = system.config
    write_json(
        folder / CONFIG,
        {
            "schema": 1,
            "config": config.dump(),
            "config_hash": config.hash,
            "num_data": system.model.num_data,
            "backbone_fingerprint": fingerprint(system.backbone),
            "labels": list(system.task.labels),
        },
    )
    write_json(folder / "adapter_config.json", _peft_config(system))


def _peft_config(system: System) -> dict[str, Any]:
    """Settings under PEFT's names where they mean the same; a LoRA run can be read by PEFT itself."""
    config = system.config
    names = {target.path.rsplit(".", 1)[-1] for target in system.model.targets}
    return {
        "peft_type": "LORA" if config.method.name == "lora" else config.method.name.upper(),
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": config.backbone.name,
        "inference_mode": True,
        "r": config.adapter.r,
        "lora_alpha": config.adapter.lora_alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(names),
    }


def save_system(system: System, folder: Path) -> None:
    """Write the parameters of model and guide as safetensors."""
    metadata = {
        "method": system.config.method.name,
        "config_hash": system.config.hash,
        "backbone_fingerprint": fingerprint(system.backbone),
    }
    adapter = {_peft_name(name): value for name, value in system.model.named_parameters()}
    write_tensors(folder / ADAPTER, adapter, metadata)
    write_tensors(folder / GUIDE, dict(system.guide.named_parameters()), metadata)


def load_system(
    folder: Path, *, backbone: str | None = None, device: str | None = None, data_dir: Path | None = None
) -> System:
    """Read a run folder back: same predictions, bit for bit, in another process.

    Args:
        folder: of a finished run.
        backbone: where the language model is now, if it has moved.
        device: to run on; the run's own by default.
        data_dir: where the data are now, if they have moved.

    Raises:
        CheckpointError: a file is missing, truncated, foreign, or belongs to another backbone.
    """
    stored = read_json(folder / CONFIG)
    if not isinstance(stored, dict) or "config" not in stored:
        raise CheckpointError(f"{folder / CONFIG} is not the configuration of a run.")
    data = stored["config"]
    data["backbone"] |= {k: v for k, v in (("name", backbone), ("device", device)) if v is not None}
    if data_dir is not None:
        data["task"]["data_dir"] = str(data_dir)
    system = build_system(parse_config(data))
    found = fingerprint(system.backbone)
    if found != stored["backbone_fingerprint"]:
        raise CheckpointError(
            f"{folder} was trained on a backbone with fingerprint {stored['backbone_fingerprint']}, "
            f"{system.config.backbone.name!r} has {found}: give the right one with --model."
        )
    own = {_peft_name(name): name for name, _ in system.model.named_parameters()}
    adapter, _ = read_tensors(folder / ADAPTER)
    renamed = {own.get(name, name): value for name, value in adapter.items()}
    load_parameters(system.model, renamed, folder / ADAPTER)
    load_parameters(system.guide, read_tensors(folder / GUIDE)[0], folder / GUIDE)
    return system


def _peft_name(name: str) -> str:
    """`adapters.model/layers/0/self_attn/q_proj.lora_B` -> PEFT's key of the same tensor."""
    path, parameter = name.removeprefix("adapters.").rsplit(".", 1)
    return f"base_model.model.{path.replace('/', '.')}.{parameter}.weight"


def count_parameters(module: nn.Module) -> int:
    """Return the number of trainable parameters."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)
