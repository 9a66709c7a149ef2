"""Arguments of transformers' `Trainer` that `BaRATrainer` does not do: refused, not passed over."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from transformers import TrainingArguments

from bara_pyro.errors import ConfigError

CHECKPOINTING = ("activation_checkpointing", "gradient_checkpointing")  # the newer name and the older
ADAMW = ("adamw_torch", "adamw_torch_fused")
OURS = {"use_reentrant": False}  # how `Backbone` checkpoints
REFUSED = {
    "label_smoothing_factor": "is another likelihood",
    "neftune_noise_alpha": "is noise in frozen embeddings",
    "torch_compile": "compiles layers on whose forward adapters hang",
    "use_liger_kernel": "replaces layers on which adapters hang",
    "bf16_full_eval": "rounds adapters and guide for good, which are trained in float32",
    "fp16_full_eval": "rounds adapters and guide for good, which are trained in float32",
    "optim_args": "is not passed on to AdamW: give an optimiser of your own as optimizers=",
    "optim_target_modules": "is of optimisers that are not used here",
    "label_names": "is not looked at: labels are those of the rows",
    "use_cache": "is of keys and values, of which training keeps none",
    "torch_empty_cache_steps": "is not looked at",
}
"""Arguments that have to stay as they are by default, and why."""
AUTOCAST = {"no": None, "bf16": torch.bfloat16, "fp16": torch.float16}
"""How products of the language model are computed, by accelerate's names."""
OPTIONS = {
    "compute_loss_func": "the loss is the negative ELBO: give elbo=",
    "model_init": "the program is there already",
    "optimizer_cls_and_kwargs": "give the optimiser itself as optimizers=",
}
"""Further arguments of `Trainer` itself that would not be looked at, and what to do."""


def check_arguments(args: TrainingArguments, options: Mapping[str, Any]) -> None:
    """Refuse what changes a loss or a model that are not the ELBO and the adapters, or would change nothing.

    Args:
        args: Trainer's.
        options: further arguments of Trainer by their names.

    Raises:
        ConfigError: there is such an argument.
    """
    if (optim := str(getattr(args.optim, "value", args.optim))) not in ADAMW:
        raise ConfigError(f"args.optim={optim!r} is not looked at: give what is no AdamW as optimizers=.")
    usual = {field.name: field.default for field in fields(args)}
    for name, why in REFUSED.items():
        value = getattr(args, name, None)
        if value and value != usual.get(name):
            raise ConfigError(f"args.{name}={value!r} {why}; leave it out.")
    for name in CHECKPOINTING:
        how = getattr(args, f"{name}_kwargs", None) or {}
        if how and how != OURS:
            raise ConfigError(
                f"args.{name}_kwargs={how!r} is not looked at: checkpointing is the backbone's own, with "
                "use_reentrant=False; leave it out."
            )
    for name, instead in OPTIONS.items():
        if options.get(name) is not None:
            raise ConfigError(f"{name} would not be looked at: {instead}.")


def adam_of(args: TrainingArguments) -> tuple[tuple[float, float], dict[str, float]]:
    """Return AdamW's betas, and its epsilon where it is not Trainer's default: ours is then another."""
    usual = {field.name: field.default for field in fields(args)}["adam_epsilon"]
    eps = {} if args.adam_epsilon == usual else {"eps": float(args.adam_epsilon)}
    return (args.adam_beta1, args.adam_beta2), eps


def autocast_of(args: TrainingArguments) -> torch.dtype | None:
    """Return the type of the language model's products, or None.

    Raises:
        ConfigError: it is another than bf16 and fp16.
    """
    if args.mixed_precision not in AUTOCAST:
        raise ConfigError(
            f"Mixed precision {args.mixed_precision} is not done here: give bf16=True, or leave it out."
        )
    return AUTOCAST[args.mixed_precision]
