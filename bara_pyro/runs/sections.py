"""The sections of a run's settings; nothing heavy is imported: the command line makes its options of them."""

from pathlib import Path
from typing import Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from bara_pyro.settings import later


class Section(BaseModel):
    """A part of the configuration: unknown keys are refused, values cannot be changed afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class BackboneConfig(Section):
    """Which frozen language model."""

    name: str = Field("microworld", description="'microworld', a local Hugging Face folder, or a hub name")
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="type of the frozen weights"
    )
    device: str = Field("cpu", description="'cpu', 'cuda', 'cuda:1', 'mps'")


class TaskConfig(Section):
    """Which data."""

    name: str = Field(
        "micro-wgs",
        description="a known task (see `bara tasks`) or a local .csv, .tsv, .jsonl, .json or .parquet file",
    )
    data_dir: Path | None = Field(
        None, description="local folder <data_dir>/<task>/<split>.jsonl, instead of the hub"
    )
    revision: str | None = Field(None, description="commit or tag of the hub dataset")
    test_file: Path | None = Field(None, description="for a file of one's own: the rows to test on")
    test_fraction: float = Field(
        0.2, gt=0, lt=1, description="for a file of one's own without test_file: share of its rows to test on"
    )
    text_column: str | None = later(None, "for a file of one's own: column of the text or question")
    label_column: str | None = later(None, "for a file of one's own: column of the answer")
    choices_column: str | None = later(None, "for a file of one's own: column of the options of each row")
    context_column: str | None = later(
        None, "for a file of one's own: column of a text put before the question"
    )
    classes: list[str] | None = Field(
        None, description="for a file of one's own without choices: the labels in class order"
    )
    max_length: PositiveInt = Field(300, description="tokens; longer contexts are shortened, questions never")
    too_long: Literal["error", "drop"] = Field(
        "error", description="what to do with a row whose question alone is longer than max_length"
    )
    labels: Literal["auto", "words", "letters"] = Field(
        "auto",
        description="what the model answers with: 'words', the labels themselves; 'letters', A, B, .. for "
        "labels that are several tokens; 'auto': words where they are single tokens, else letters",
    )
    validation_rows: NonNegativeInt = Field(0, description="rows set aside from train for choosing settings")
    evaluate_on: Literal["test", "validation"] = Field(
        "test", description="the split that metrics are computed on"
    )
    limit: PositiveInt | None = Field(None, description="use at most so many rows of each split, to try out")
    seed: NonNegativeInt = Field(0, description="of the split and of the microworld's rows")


class AdapterConfig(Section):
    """Where and how large the adapters are; PEFT's names."""

    r: PositiveInt = Field(8, description="rank")
    lora_alpha: PositiveFloat = Field(16.0, description="the change is scaled by lora_alpha / r")
    target_modules: str | list[str] | None = Field(
        None,
        description="names, a regular expression, 'all-linear', or null: query, value and output projection",
    )
    full_vocab: bool = Field(False, description="compute the whole vocabulary's logits (same probabilities)")


class TrainConfig(Section):
    """How the negative ELBO is minimised: AdamW, linear warm-up and decay."""

    steps: PositiveInt = Field(3000, description="optimiser steps")
    batch_size: PositiveInt = Field(4, description="rows a step")
    accumulate: PositiveInt = Field(1, description="micro-batches that a step is cut into")
    lr: PositiveFloat = Field(1e-3, description="peak learning rate")
    local_lr_scale: PositiveFloat | None = Field(
        None, description="rate of an amortised guide as a share of lr; null: 0.1 for gates, else 1"
    )
    warmup: float = Field(0.06, ge=0, le=1, description="share of the steps")
    weight_decay: NonNegativeFloat = Field(0.0, description="decoupled (AdamW)")
    clip_norm: PositiveFloat | None = Field(None, description="joint gradient norm, loss in nats per example")
    autocast: Literal["bfloat16", "float16"] | None = Field(
        None, description="autocast of the backbone's products"
    )
    sampled_kl: bool = Field(False, description="allow a one-draw KL where no analytic one is registered")
    checkpoint_every: PositiveInt = Field(200, description="steps between checkpoints")
    log_every: PositiveInt = Field(10, description="steps between lines of train_log.jsonl")

    @model_validator(mode="after")
    def _divides(self) -> "TrainConfig":
        if self.batch_size % self.accumulate:
            raise ValueError(f"accumulate={self.accumulate} must divide batch_size={self.batch_size}")
        return self


class PredictConfig(Section):
    """How predictions are drawn."""

    samples: list[NonNegativeInt] = Field(
        [0, 10], description="numbers S of posterior draws; 0: posterior mean"
    )
    batch_size: PositiveInt = Field(64, description="rows a forward, before repetition by S")
    memory_budget: PositiveInt | None = Field(
        None, description="bytes of activations a forward, roughly; by default what suits the device"
    )
    seed: NonNegativeInt = Field(0, description="of the draws")
