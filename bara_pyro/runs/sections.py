"""The sections of a run's settings; nothing heavy is imported: the command line makes its options of them."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from bara_pyro.columns import KINDS, OPTIONS, ColumnNames, column_names
from bara_pyro.errors import ConfigError, unknown
from bara_pyro.retired import without_retired
from bara_pyro.settings import later, validation_sentence
from bara_pyro.types import Json, WeightType

MOST_SEED = 2**32 - 1  # what every generator of random numbers takes, NumPy's the least
# Above these a run is a slip of the finger: it would not fit, or not end.
MOST_DRAWS = 100_000
MOST_ROWS = 65_536
REPLY_LENGTH = 2048  # tokens of a prompt and its reply, as in the paper
OF_ANSWERS = ("labels", "classes", *OPTIONS)
OF_REPLIES = ("chat", "packing", "streaming")
Seed = Annotated[int, Field(ge=0, le=MOST_SEED)]
Rank = Annotated[int, Field(ge=1, le=16_384)]
Rows = Annotated[int, Field(ge=1, le=MOST_ROWS)]
Draws = Annotated[int, Field(ge=0, le=MOST_DRAWS)]
Steps = Annotated[int, Field(ge=1, le=10**9)]


class SettingsSection(BaseModel):
    """A part of the configuration: unknown keys are refused, values cannot be changed afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class BackboneConfig(SettingsSection):
    """Which frozen language model."""

    name: str = Field("microworld", description="'microworld', a local Hugging Face folder, or a hub name")
    dtype: WeightType = Field(
        "float32",
        description="type of the frozen weights; int8, int4: of linear layers, others in bfloat16",
    )
    device: str = Field(
        "cpu", description="where to compute: 'cpu', 'cuda', 'cuda:1', 'mps'; 'auto': on all GPUs"
    )
    states_folder: Path | None = later(
        None,
        "where to keep the hidden states below the lowest adapter, one file a row, for all runs; by default "
        "in memory, up to 1 GiB",
    )


def _column(kind: str) -> str | None:
    return later(None, f"for a file of one's own: column of {KINDS[kind].help}")


class TaskConfig(SettingsSection):
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
    text_column: str | None = _column("text")
    label_column: str | None = _column("label")
    choices_column: str | None = _column("choices")
    context_column: str | None = _column("context")
    cluster_column: str | None = _column("cluster")
    classes: list[str] | None = Field(
        None, description="for a file of one's own without choices: the labels in class order"
    )
    max_length: PositiveInt = Field(
        300, description="tokens a row; longer contexts are shortened, questions never"
    )
    too_long: Literal["error", "drop"] = Field(
        "error", description="what to do with a row whose question alone is longer than max_length"
    )
    labels: Literal["auto", "words", "letters", "texts"] = Field(
        "auto",
        description="what the model answers with: 'words', the labels themselves; 'letters', A, B, .. for "
        "labels that are several tokens; 'auto': words where they are single tokens, else letters; 'texts': "
        "labels or options of any length, whose whole texts are scored",
    )
    likelihood: Literal["answer", "completion"] = later(
        "answer",
        "what is learnt: 'answer', one of a closed set; 'completion', every token of a reply (max_length is "
        "2048 then by default)",
    )
    chat: bool = later(
        False, "with likelihood=completion: plain prompts, too, go through the model's chat template"
    )
    packing: bool = later(
        False,
        "with likelihood=completion: train on rows of several replies, of max_length tokens together",
    )
    streaming: bool = later(
        False,
        "with likelihood=completion: leave rows on the disk and tokenise them when a batch needs them, for "
        "data that do not fit into memory",
    )
    text_score: Literal["sum", "mean"] = later(
        "sum", "with labels=texts: a text's score, the sum or the mean of its tokens' log-probabilities"
    )
    validation_rows: NonNegativeInt = Field(0, description="rows set aside from train for choosing settings")
    world: NonNegativeInt = later(
        0,
        "of a task of the microworld: seed of the world that is asked about; the shipped model knows world 0",
    )
    evaluate_on: Literal["test", "validation"] = Field(
        "test", description="the split that metrics are computed on"
    )
    train_rows: PositiveInt | None = later(
        None, "train on so many rows only, those set aside for validation included"
    )
    train_rows_seed: Seed | None = later(
        None, "with train_rows: draw them at random with this seed; by default the first are taken"
    )
    limit: PositiveInt | None = Field(None, description="use at most so many rows of each split, to try out")
    seed: Seed = Field(0, description="seed of the split and of the microworld's rows")

    @property
    def columns(self) -> ColumnNames:
        """The columns of a file of one's own."""
        return column_names({option: getattr(self, option) for option in OPTIONS})

    @model_validator(mode="before")
    @classmethod
    def _room_for_replies(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("likelihood") == "completion":
            return {"max_length": REPLY_LENGTH, **data}
        return data

    @model_validator(mode="after")
    def _holds_together(self) -> "TaskConfig":
        replies = self.likelihood == "completion"
        for name in OF_REPLIES if not replies else OF_ANSWERS:
            if (value := getattr(self, name)) != type(self).model_fields[name].default:
                needed = "answer" if replies else "completion"
                raise ValueError(f"{name}={value!r} needs likelihood={needed!r} (now {self.likelihood!r})")
        if self.streaming and self.packing:
            raise ValueError(
                "packing=True fits all rows together and streaming=True never holds them all: leave one out"
            )
        if self.text_score != "sum" and self.labels != "texts":
            raise ValueError(f"text_score={self.text_score!r} needs labels='texts' (now {self.labels!r})")
        if self.train_rows_seed is not None and self.train_rows is None:
            raise ValueError(f"train_rows_seed={self.train_rows_seed} needs train_rows, how many to draw")
        if self.train_rows is not None and self.train_rows <= self.validation_rows:
            raise ValueError(
                f"train_rows={self.train_rows} leaves none beside validation_rows={self.validation_rows}"
            )
        return self


class AdapterConfig(SettingsSection):
    """Where and how large the adapters are; PEFT's names."""

    r: Rank = Field(8, description="rank of the adapters")
    lora_alpha: PositiveFloat = Field(16.0, description="the change is scaled by lora_alpha / r")
    target_modules: str | list[str] | None = Field(
        None,
        description="names, a regular expression, 'all-linear', or null: query, value and output projection",
    )
    distance_aware: bool = later(
        False,
        "let draws of rows disagree the more, the less the row is like the training rows: fitted to these "
        "without their labels when training is over; one more forward without adapters a prediction",
    )
    one_pass: bool = later(
        False,
        "let S = 0 stand for the average of 32 draws, by a temperature for every row: fitted to training "
        "rows without their labels when training is over",
    )
    calibrated: bool | None = later(
        None,
        "divide the answers' scores by a temperature that is fitted without validation rows: to what a "
        "rehearsal on half of the training rows says of the others, half as much training again; null: of "
        "BaRA and its gate form with 20 to 639 training rows",
    )


class TrainConfig(SettingsSection):
    """How the negative ELBO is minimised: AdamW, linear warm-up and decay."""

    steps: Steps | None = Field(
        None,
        description="optimiser steps; null: 20 passes over 640 training rows or more, down to 10 over fewer, "
        "in 100 to 6,000 steps, twice as many where a rehearsal asks for them; or 2 passes over replies",
    )
    may_double: bool | None = later(
        None,
        "with a rehearsal: train twice as long where it is too unsure of itself after so many steps (its "
        "best temperature is below 1 by more than 1.645 standard errors); null: where nobody says how long",
    )
    epochs: PositiveFloat | None = later(None, "passes over the training rows, in place of steps")
    batch_size: Rows = Field(4, description="rows a step")
    accumulate: Rows = Field(1, description="micro-batches that a step is cut into")
    lr: PositiveFloat = Field(1e-3, description="peak learning rate")
    local_lr_scale: PositiveFloat | None = Field(
        None, description="rate of an amortised guide as a share of lr; null: 0.1 for gates, else 1"
    )
    warmup: float = Field(0.06, ge=0, le=1, description="share of the steps in which the learning rate rises")
    weight_decay: NonNegativeFloat = Field(0.0, description="weight decay of AdamW, decoupled")
    clip_norm: PositiveFloat | None = Field(None, description="joint gradient norm, loss in nats per example")
    autocast: Literal["bfloat16", "float16"] | None = Field(
        None, description="autocast of the backbone's products"
    )
    checkpointing: bool = later(
        False,
        "keep each layer's input only, compute the rest again in the backward pass: less memory, more time",
    )
    capture: Literal["off", "auto"] = later(
        "off",
        "auto: on a GPU, record a training step as a CUDA graph and replay it, which is faster for small "
        "batches; rows are padded to a few widths for it, so that the draws are others",
    )
    sampled_kl: bool = Field(False, description="allow a one-draw KL where no analytic one is registered")
    checkpoint_every: Steps = Field(200, description="steps between checkpoints")
    log_every: Steps = Field(10, description="steps between lines of train_log.jsonl")

    @property
    def total_steps(self) -> int:
        """The number of optimiser steps, of a configuration whose rows are known.

        Raises:
            ConfigError: they are not: `bara_pyro.runs.system.build_system` reads them.
        """
        if self.steps is None:
            raise ConfigError("The number of steps follows from the training rows: build the system first.")
        return self.steps

    @model_validator(mode="after")
    def _divides(self) -> "TrainConfig":
        if self.batch_size % self.accumulate:
            raise ValueError(f"accumulate={self.accumulate} must divide batch_size={self.batch_size}")
        return self

    @model_validator(mode="after")
    def _one_length(self) -> "TrainConfig":
        if self.steps is not None and self.epochs is not None:
            raise ConfigError(
                f"train.steps={self.steps} and train.epochs={self.epochs:g} both say how long training is: "
                "give one of them (--steps or --epochs)."
            )
        return self


class PredictConfig(SettingsSection):
    """How predictions are drawn."""

    samples: list[Draws] = Field(
        [0, 10], min_length=1, description="numbers S of posterior draws to evaluate with; 0: posterior mean"
    )
    batch_size: Rows = Field(64, description="rows a forward of prediction, before repetition by S")
    memory_budget: PositiveInt | None = Field(
        None, description="bytes of activations a forward, roughly; by default what suits the device"
    )
    seed: Seed = Field(0, description="seed of the draws of prediction")
    last: PositiveInt | None = later(
        None,
        "an approximation: draw for the last so many tokens of a row, the others once at the posterior mean",
    )


class RunSettings(SettingsSection):
    """All settings of a run but those of its method, which the method itself declares."""

    backbone: BackboneConfig = BackboneConfig()
    task: TaskConfig = TaskConfig()
    adapter: AdapterConfig = AdapterConfig()
    train: TrainConfig = TrainConfig()
    predict: PredictConfig = PredictConfig()
    seed: Seed = Field(0, description="seed of initial values, data order and noise")

    @model_validator(mode="before")
    @classmethod
    def _without_retired(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        sections = {name: part for name, part in data.items() if isinstance(part, dict)}
        return data | {name: without_retired(name, part) for name, part in sections.items()}


def check_settings(data: Json) -> None:
    """Check nested settings one by one, before anything slow is imported.

    What only holds between settings, and the method's own settings, are checked with the whole
    configuration; see `bara_pyro.runs.config.parse_config`.

    Raises:
        ConfigError: an unknown key, or a value of the wrong type or out of range.
    """
    try:
        RunSettings.model_validate({key: value for key, value in data.items() if key != "method"})
    except ValidationError as error:
        first = error.errors()[0]
        between = first["type"] == "value_error" and len(first["loc"]) == 1  # has the place of its section
        if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
            known = ("method", *RunSettings.model_fields)
            raise ConfigError(unknown("setting", first["loc"][0], known)) from error
        if not between:
            raise ConfigError(validation_sentence(error, RunSettings)) from error
