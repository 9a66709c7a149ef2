"""Refuse arguments of transformers' `Trainer` that `BaRATrainer` does not support."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from transformers import TrainingArguments

from bara_pyro.errors import ConfigError

CHECKPOINTING = ("activation_checkpointing", "gradient_checkpointing")  # new name and old name
ADAMW = ("adamw_torch", "adamw_torch_fused")
OURS = {"use_reentrant": False}  # how `Backbone` checkpoints
REFUSED = {
    "label_smoothing_factor": "changes the likelihood",
    "neftune_noise_alpha": "adds noise to frozen embeddings",
    "torch_compile": "compiles layers that adapters are hooked to",
    "use_liger_kernel": "replaces layers that adapters are hooked to",
    "bf16_full_eval": "permanently rounds adapters and guide, which are trained in float32",
    "fp16_full_eval": "permanently rounds adapters and guide, which are trained in float32",
    "optim_args": "is not passed to AdamW: give your own optimiser as optimizers=",
    "optim_target_modules": "belongs to optimisers that are not used here",
    "label_names": "is ignored: labels come from the rows",
    "use_cache": "has no effect, because training keeps no keys and values",
    "torch_empty_cache_steps": "is ignored",
}
"""Arguments that must keep their default, and why."""
AUTOCAST = {"no": None, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Autocast type of the language model for each of accelerate's mixed precisions."""
OPTIONS = {
    "compute_loss_func": "the loss is the negative ELBO: give elbo=",
    "model_init": "the program exists already: leave it out",
    "optimizer_cls_and_kwargs": "give the optimiser itself as optimizers=",
}
"""Further arguments of `Trainer` that would be ignored, and what to do instead."""


def check_arguments(args: TrainingArguments, options: Mapping[str, Any]) -> None:
    """Raise a `ConfigError` for arguments that conflict with the ELBO or the adapters, or have no effect.

    `options` are the further arguments of `Trainer`, by name.
    """
    if (optim := str(getattr(args.optim, "value", args.optim))) not in ADAMW:
        raise ConfigError(
            f"args.optim={optim!r} is not supported: give an optimiser other than AdamW as optimizers=."
        )
    usual = {field.name: field.default for field in fields(args)}
    for name, why in REFUSED.items():
        value = getattr(args, name, None)
        if value and value != usual.get(name):
            raise ConfigError(f"args.{name}={value!r} {why}; leave it out.")
    for name in CHECKPOINTING:
        how = getattr(args, f"{name}_kwargs", None) or {}
        if how and how != OURS:
            raise ConfigError(
                f"args.{name}_kwargs={how!r} is not supported, because the backbone checkpoints with "
                "use_reentrant=False: leave it out."
            )
    for name, instead in OPTIONS.items():
        if options.get(name) is not None:
            raise ConfigError(f"{name} would be ignored: {instead}.")


def adam_of(args: TrainingArguments) -> tuple[tuple[float, float], dict[str, float]]:
    """Return AdamW's betas, and its epsilon if it differs from Trainer's default (ours is another)."""
    usual = {field.name: field.default for field in fields(args)}["adam_epsilon"]
    eps = {} if args.adam_epsilon == usual else {"eps": float(args.adam_epsilon)}
    return (args.adam_beta1, args.adam_beta2), eps


def autocast_of(args: TrainingArguments) -> torch.dtype | None:
    """Return the autocast type of the language model, or None; a `ConfigError` for any but bf16 and fp16."""
    if args.mixed_precision not in AUTOCAST:
        raise ConfigError(
            f"Mixed precision {args.mixed_precision!r} is not supported: give bf16=True, or leave it out."
        )
    return AUTOCAST[args.mixed_precision]
