"""The two files of a run that PEFT reads: `adapter_config.json`, and tensors under PEFT's names.

Methods whose mean is a LoRA are stored as PEFT's LoRA. BaRA is stored as the method that `bara_pyro.peft`
registers: the guide's parameters of a module are beside its `lora_B`, so PEFT finds the whole adapter in one
file. Other methods use PEFT's names for tensors, but PEFT cannot read them.
"""

import os
from typing import Final

from torch import Tensor

from bara_pyro.core.modules import module_key
from bara_pyro.core.program import AdaptedLM
from bara_pyro.guides.amortized import AmortizedGuide
from bara_pyro.lm.loading import resolve
from bara_pyro.lm.targets import shortest
from bara_pyro.lm.verifying import fingerprint
from bara_pyro.methods import METHODS
from bara_pyro.models.bara import PHI, THETA, BaRA
from bara_pyro.runs.store import peft_key
from bara_pyro.runs.system import System
from bara_pyro.types import Json

# PEFT's error for an unknown type prints its name, so the name says what to do.
PEFT_TYPE: Final = "BARA: pip install bara-pyro and `import bara_pyro.peft` before PEFT reads this adapter"
NOT_PEFT: Final = "no adapter of PEFT's, read it with bara_pyro.load_system(folder)"


def is_bara(system: System) -> bool:
    """Whether `bara_pyro.peft` can read a system: BaRA with an amortised guide per module."""
    model, guide = system.model, system.guide
    return isinstance(model, BaRA) and isinstance(guide, AmortizedGuide) and is_by_module(guide)


def is_by_module(guide: AmortizedGuide) -> bool:
    """Whether a guide has only parameters of single modules: the PEFT file cannot hold others."""
    return all(name.startswith("sites.") for name, _ in guide.named_parameters())


def peft_config(system: System) -> Json:
    """Return the content of PEFT's `adapter_config.json` for a system."""
    config = system.config
    name = config.method.name
    common = {
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model(config.backbone.name),
        "inference_mode": True,
        "r": config.adapter.r,
        "lora_alpha": config.adapter.lora_alpha,
        "target_modules": shortest(system.backbone.lm, [target.path for target in system.model.targets]),
    }
    ranks, c = system.model.rank_pattern, config.adapter
    patterns: Json = {"rank_pattern": ranks} if ranks else {}
    if is_bara(system):
        return {
            "peft_type": PEFT_TYPE,
            **common,
            **patterns,
            "method": config.method.model_dump(mode="json"),
            "backbone_fingerprint": fingerprint(system.backbone),
        }
    # The prefix avoids PEFT's methods of the same name (AdaLoRA), whose files have another format.
    kind = "LORA" if METHODS[name].peft else f"BARA_PYRO_{name.upper()}: {NOT_PEFT}"
    if ranks:  # every module keeps the scaling alpha / r
        patterns["alpha_pattern"] = {path: c.lora_alpha * rank / c.r for path, rank in ranks.items()}
    return {"peft_type": kind, **common, "lora_dropout": 0.0, "bias": "none", **patterns}


def base_model(name: str) -> str:
    """Return a language model's name for transformers: a hub name, or the absolute path of a folder."""
    place = resolve(name)
    return os.path.abspath(place) if os.path.isdir(place) else place


def lora_tensors(model: AdaptedLM) -> dict[str, Tensor]:
    """Return a program's parameters by PEFT's keys; PEFT has none for one of the whole program."""
    tensors: dict[str, Tensor] = {}
    for name, value in model.named_parameters():
        key = name
        if name.startswith("adapters."):  # such as `adapters.model/layers/0/self_attn/q_proj.lora_B`
            path, parameter = name.removeprefix("adapters.").rsplit(".", 1)
            key = peft_key(path.replace("/", "."), parameter)
        tensors[key] = value
    return tensors


def split_guide(system: System) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the guide's parameters in two parts: those for PEFT, by PEFT's keys, and the others.

    For BaRA, `lora_phi` of a module are the parameters of its gate Phi, and `lora_theta` the weights of the
    amortiser of its theta, if the method has these gates.
    """
    others: dict[str, Tensor] = dict(system.guide.named_parameters())
    if not is_bara(system):
        return {}, others
    ours: dict[str, Tensor] = {}
    phi = others.pop(_raw(PHI), None)
    for target in system.model.targets:
        if phi is not None:
            ours[peft_key(target.path, "lora_phi")] = phi[target.index]
        theta = others.pop(_raw(target.site(THETA)), None)
        if theta is not None:
            ours[peft_key(target.path, "lora_theta")] = theta
    return ours, others


def _raw(site: str) -> str:
    """Return the name of the guide's parameter behind a site."""
    return f"sites.{module_key(site)}.weight"
