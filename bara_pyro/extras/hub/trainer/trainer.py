"""`transformers.Trainer` around the steps of `SVI`."""

from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset
from transformers import BatchEncoding, Trainer, TrainingArguments

from bara_pyro.core.attached import Fitted, pair_of
from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.handlers import PROGRAM
from bara_pyro.core.optimizers import adamw
from bara_pyro.core.prediction import predict
from bara_pyro.core.program import AdaptedLM
from bara_pyro.core.svi import SVI
from bara_pyro.data import EncodedSplit
from bara_pyro.data.labels import among_offered
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError, DataError
from bara_pyro.extras.hub.trainer.arguments import CHECKPOINTING, adam_of, autocast_of, check_arguments
from bara_pyro.metrics import posterior_predictive
from bara_pyro.processes import Ranks

WEIGHTS = "model.safetensors"  # Trainer's name of the file


class ModelAndGuide(nn.Module):
    """Program and guide as one module, whose parameters Trainer saves; the language model is not included.

    Args:
        model, guide: the program and its guide.
    """

    main_input_name = "rows"  # `include_for_metrics=["inputs"]` passes on the numbers of the rows

    def __init__(self, model: AdaptedLM, guide: SiteGuide) -> None:
        super().__init__()
        self.model, self.guide = model, guide


class SplitDataset(Dataset):
    """The rows of a split, for a `DataLoader`."""

    def __init__(self, split: EncodedSplit) -> None:
        self.split = split

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, row: int) -> BatchEncoding:
        # Trainer needs "input_ids" to group rows by length, and it would remove unknown keys from a plain
        # dictionary.
        return BatchEncoding({"input_ids": self.split.token_ids[row], "split": self.split, "row": row})


class BaRATrainer(Trainer):
    """Train a program and its guide with `Trainer`; the loss is the negative ELBO in nats per example.

    Gradients are those of `SVI`. The optimiser is `bara_pyro.adamw` with the learning rate, weight decay,
    betas and epsilon of `args`; amortised gates have a separate learning rate, and the epsilon is 1e-6 if
    `args.adam_epsilon` is Trainer's default. Batches, schedule, clipping (at norm 1 by default), callbacks
    and reports are Trainer's. With `bf16` or `fp16` the language model runs under autocast, without loss
    scaling.

    Logs hold the parts of the bound, `nll` and `kl_...`, in addition to `loss`. Methods with a special
    training scheme (IVON, AdaLoRA, published recipes) are not supported. `gradient_checkpointing` uses the
    checkpointing of `Backbone`, which draws every gate once.

    Checkpoints hold `model.safetensors`, optimizer.pt, scheduler.pt and rng_state.pth; `save_only_model`
    leaves out the last three, which Trainer reads with `weights_only=True`. All processes start from
    `args.seed`, so they draw the same Phi at each step.

    Args:
        run: a `System`, or `(model, guide)`.
        args: arguments of training.
        train_dataset, eval_dataset: splits made by `bara_pyro.encode`; `eval_dataset` may be a dictionary of
            splits.
        answer_ids: long, `C`: the token of each class; see `bara_pyro.answer_token_ids`.
        elbo: the bound; by default `MeanFieldELBO()`.
        local_lr_scale: see `bara_pyro.adamw`.
        eval_samples: posterior draws S in evaluations. `eval_loss` is the negative log-likelihood of the
            predictive distribution (nats per row); `compute_metrics` gets its log-probabilities.
        **options: further arguments of `Trainer` (callbacks, compute_metrics, optimizers).

    Raises:
        ConfigError: the guide belongs to another model, an argument is not supported (`arguments`), adapters
            and guide would be sharded (FSDP, DeepSpeed), or the language model and Trainer use different
            types of device.

    Examples:
        >>> import bara_pyro as bp
        >>> from transformers import TrainingArguments
        >>> backbone, task = bp.load_backbone("microworld"), bp.load_task("micro-wgs")
        >>> answers = bp.answer_token_ids(backbone.tokenizer, task.labels)
        >>> rows = bp.encode(task.train[:8], backbone.tokenizer)
        >>> model = bp.models.BaRA(backbone, num_data=len(rows), form="gate")
        >>> pair = (model, bp.guides.WeibullGuide(model))
        >>> args = TrainingArguments(
        ...     "run", max_steps=2, use_cpu=True, dataloader_pin_memory=False, disable_tqdm=True
        ... )
        >>> trainer = bp.BaRATrainer(pair, args, train_dataset=rows, answer_ids=answers)
        >>> trainer.train().global_step  # doctest: +ELLIPSIS
        {'train_runtime': ...}
        2
    """

    optimizer: Optimizer | None

    def __init__(
        self,
        run: Fitted | tuple[AdaptedLM, SiteGuide],
        args: TrainingArguments,
        *,
        train_dataset: EncodedSplit | None = None,
        eval_dataset: EncodedSplit | Mapping[str, EncodedSplit] | None = None,
        answer_ids: Tensor,
        elbo: MeanFieldELBO | None = None,
        local_lr_scale: float | None = None,
        eval_samples: int = 10,
        **options: Any,
    ) -> None:
        model, guide = pair_of(run)
        where = model.backbone.device
        if where.type != args.device.type:
            raise ConfigError(
                f"The language model is on {where} and Trainer computes on {args.device}: load the model "
                f"onto {args.device}, or give use_cpu=True."
            )
        check_arguments(args, options)
        args = copy(args)  # do not change the caller's
        requested = [name for name in CHECKPOINTING if getattr(args, name, None)]
        for name in requested:  # Trainer would use the language model's own checkpointing
            setattr(args, name, False)
        args._n_gpu = min(args.n_gpu, 1)  # one GPU per process: nn.DataParallel breaks the hooks
        self.answer_ids = answer_ids
        self.local_lr_scale = local_lr_scale
        self.eval_samples = eval_samples
        self.elbo = elbo
        self.autocast, args.mixed_precision = autocast_of(args), "no"  # accelerate would scale the loss
        self._batches: list[Batch] = []  # of the current step
        self._parts: list[dict[str, float]] = []
        super().__init__(
            ModelAndGuide(model, guide),
            args,
            data_collator=self._collate,
            train_dataset=_rows(train_dataset),
            eval_dataset=_rows(eval_dataset),
            **options,
        )
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            raise ConfigError(
                "FSDP and DeepSpeed would shard adapters and guide, which is not supported: leave them out "
                "and shard only the language model (docs/scale.md)."
            )
        if requested:
            model.backbone.checkpointing = True

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        """Return the given optimiser or `bara_pyro.adamw`, and set up `SVI` with it."""
        if self.optimizer is None:
            betas, eps = adam_of(self.args)
            self.optimizer = adamw(
                self.model.model,
                self.model.guide,
                self.args.learning_rate,
                local_lr_scale=self.local_lr_scale,
                weight_decay=self.args.weight_decay,
                **eps,
            )
            for group in self.optimizer.param_groups:
                group["betas"] = betas
        pair = (self.model.model, self.model.guide)
        self.svi = SVI(*pair, self.optimizer, self.elbo, autocast=self.autocast)
        if self.args.world_size > 1:
            self.svi.ranks = Ranks(self.args.process_index, self.args.world_size, self.args.device)
        return self.optimizer

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Compute the gradients of a step after its last micro-batch, and return the loss."""
        model.train()
        self._batches.append(self._prepare_inputs(inputs)["batch"].to(self.args.device))
        if not self.accelerator.sync_gradients:
            return torch.zeros((), device=self.args.device)
        batches, self._batches = self._batches, []
        self.svi.model.backbone.check()
        with PROGRAM:
            self._parts.append(self.svi.gradients(*batches))
        return torch.tensor(self._parts[-1]["loss"], device=self.args.device)

    def _track_num_input_tokens(self, inputs: dict[str, Any]) -> None:
        """Count the tokens of a batch as Trainer does, with or without padding."""
        batch = inputs["batch"]
        tokens = {ModelAndGuide.main_input_name: batch.input_ids, "attention_mask": batch.attention_mask}
        super()._track_num_input_tokens(tokens)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log values; with the loss also its parts, as means over the steps since the last log."""
        if "loss" in logs and self._parts:
            names = [name for name in self._parts[0] if name not in ("loss", "grad_norm")]
            logs |= {name: mean(part[name] for part in self._parts) for name in names}
            self._parts = []
        super().log(logs, *args, **kwargs)

    @torch.no_grad()
    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return the NLL and log-probabilities (`B x C`) of the predictive distribution, and the labels."""
        batch = self._prepare_inputs(inputs)["batch"].to(self.args.device)
        drawn = predict(
            self.model.model, self.model.guide, batch, samples=self.eval_samples, seed=self.args.seed
        )
        among = among_offered(drawn, inputs["offered"].tolist())
        log_probs, labels = posterior_predictive(among).to(self.args.device), batch.labels
        loss = None if labels is None else nn.functional.nll_loss(log_probs, labels)
        return (loss, None, None) if prediction_loss_only else (loss, log_probs, labels)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """Return the loader of a split, of `eval_dataset`, or of the named part of `eval_dataset`.

        Raises:
            DataError: a row has no label, so it has no loss.
        """
        loader = super().get_eval_dataloader(_rows(eval_dataset))
        rows = loader.dataset
        if isinstance(rows, SplitDataset) and (unknown := sum(label < 0 for label in rows.split.labels)):
            raise DataError(
                f"{unknown} of {len(rows)} rows to evaluate have no label: leave them out, or call `predict`."
            )
        return loader

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader:
        """Return the loader of a split."""
        return super().get_test_dataloader(_rows(test_dataset))

    def _collate(self, rows: Sequence[BatchEncoding]) -> dict[str, Any]:
        numbers = [row["row"] for row in rows]
        part = rows[0]["split"].take(numbers)
        batch = part.batch(range(len(part)), self.answer_ids)
        return {
            "batch": batch,
            "rows": torch.tensor(numbers),  # Trainer counts the rows of tensors only
            "offered": torch.tensor(part.offered or [0] * len(part)),
        }

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        # Trainer's own method would also pickle its arguments.
        if self.args.should_save:
            folder = Path(output_dir or str(self.args.output_dir))
            folder.mkdir(parents=True, exist_ok=True)
            save_file(state_dict or self.model.state_dict(), folder / WEIGHTS, metadata={"format": "pt"})


def _rows(data: Any) -> Any:
    """Wrap splits as datasets; return anything else unchanged."""
    if isinstance(data, Mapping):
        return {name: _rows(split) for name, split in data.items()}
    return SplitDataset(data) if isinstance(data, EncodedSplit) else data
