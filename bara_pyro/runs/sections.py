"""The sections of a run's settings, from which the command line makes its options; imports nothing heavy."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from bara_pyro.columns import KINDS, OPTIONS, ColumnNames, column_names
from bara_pyro.errors import ConfigError
from bara_pyro.fast import SHORTCUTS, Shortcut
from bara_pyro.types import WeightType

MOST_SEED = 2**32 - 1  # NumPy's limit, the lowest of all random number generators in use
# A value above these is a typing error: the run would not fit into memory, or never end.
MOST_DRAWS = 100_000
MOST_ROWS = 65_536
REPLY_LENGTH = 2048  # tokens of a prompt with its reply, as in the paper
OF_ANSWERS = ("labels", "classes", "system", *OPTIONS)
OF_REPLIES = ("packing",)
Seed = Annotated[int, Field(ge=0, le=MOST_SEED)]
Rank = Annotated[int, Field(ge=1, le=16_384)]
Rows = Annotated[int, Field(ge=1, le=MOST_ROWS)]
Draws = Annotated[int, Field(ge=0, le=MOST_DRAWS)]
MOST_STEPS = 10**9
DEFAULT_LR = 1e-3
Steps = Annotated[int, Field(ge=1, le=MOST_STEPS)]


class SettingsSection(BaseModel):
    """A frozen part of the configuration that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _in_order(names: list[Shortcut]) -> list[Shortcut]:
    """Return the shortcuts in the order of `SHORTCUTS`, so that the same choice is stored in one way."""
    return [name for name in SHORTCUTS if name in names]


def _word(value: Any) -> Any:
    return ("on" if value else "off") if isinstance(value, bool) else value  # YAML reads both as booleans


Capture = Annotated[Literal["auto", "on", "off"], BeforeValidator(_word)]


class BackboneConfig(SettingsSection):
    """The frozen language model and where it runs."""

    name: str = Field(
        "microworld",
        description="language model: 'microworld', a local Hugging Face folder, or a name on the hub",
    )
    dtype: WeightType = Field(
        "float32",
        description="type of the frozen weights; int8 and int4 quantise the linear layers and keep the rest "
        "in bfloat16",
    )
    device: str = Field(
        "cpu", description="device to compute on: 'cpu', 'cuda', 'cuda:1', 'mps', or 'auto' for all GPUs"
    )
    shortcuts: Annotated[list[Shortcut], AfterValidator(_in_order)] = Field(
        [*SHORTCUTS],
        description="shortcuts that are on; they save time and change results only by rounding, and "
        "`--set backbone.shortcuts=[]` switches all off",
    )


def _column(kind: str) -> str | None:
    return Field(None, description=f"in your own file: column of {KINDS[kind].help}")


class TaskConfig(SettingsSection):
    """The data: which rows, and how they are read and split."""

    name: str = Field(
        "micro-wgs",
        description="a known task (see `bara tasks`), or your own .csv, .tsv, .jsonl, .json or .parquet file",
    )
    data_dir: Path | None = Field(
        None, description="read <data_dir>/<task>/<split>.jsonl from this folder instead of the hub"
    )
    revision: str | None = Field(None, description="commit or tag of the dataset on the hub")
    test_file: Path | None = Field(None, description="your own file of test rows")
    test_fraction: float = Field(
        0.2, gt=0, lt=1, description="share of your own file's rows held out for testing, without a test_file"
    )
    text_column: str | None = _column("text")
    label_column: str | None = _column("label")
    choices_column: str | None = _column("choices")
    context_column: str | None = _column("context")
    cluster_column: str | None = _column("cluster")
    classes: list[str] | None = Field(
        None, description="in your own file, without a choices column: the labels in class order"
    )
    max_length: PositiveInt = Field(
        300, description="most tokens per row; a longer context is shortened, a question never"
    )
    too_long: Literal["error", "drop"] = Field(
        "error", description="what to do with a row whose question alone exceeds max_length"
    )
    labels: Literal["auto", "words", "letters", "texts"] = Field(
        "auto",
        description="what the model answers with: 'words' are the labels themselves, one token each; "
        "'letters' are A, B, ..; 'auto' takes words if each is one token, else letters; 'texts' scores "
        "the whole text of labels or options of any length",
    )
    likelihood: Literal["answer", "completion"] = Field(
        "answer",
        description="what to learn: 'answer' picks one of a fixed set of answers; 'completion' learns every "
        "token of a reply, with a default max_length of 2048",
    )
    chat: bool = Field(
        False,
        description="ask questions through the model's chat template, as instruct models expect; the answer "
        "is the assistant's; with likelihood=completion: apply it to plain prompts as well",
    )
    system: str | None = Field(None, description="with chat: system prompt of every question", min_length=1)
    packing: bool = Field(
        False,
        description="with likelihood=completion: pack several replies into each training row of max_length "
        "tokens",
    )
    text_score: Literal["sum", "mean"] = Field(
        "sum",
        description="with labels=texts: score a text by the sum or the mean of its tokens' log-probabilities",
    )
    validation_rows: NonNegativeInt = Field(
        0,
        description="training rows to set aside, either for choosing settings or for `bara conformal`, "
        "`abstain` and `detect`",
    )
    world: NonNegativeInt = Field(
        0,
        description="microworld tasks: seed of the world the questions are about; the shipped model knows "
        "world 0",
    )
    evaluate_on: Literal["test", "validation"] = Field(
        "test", description="split on which metrics are computed"
    )
    train_rows: PositiveInt | None = Field(
        None, description="use only this many training rows, including those set aside for validation"
    )
    train_rows_seed: Seed | None = Field(
        None,
        description="with train_rows: draw the rows at random with this seed; by default the first ones are "
        "used",
    )
    limit: PositiveInt | None = Field(
        None, description="use only this many rows of each split, the first ones, for a quick try"
    )
    seed: Seed = Field(0, description="seed of the choice of validation rows, and of the microworld's rows")

    @property
    def columns(self) -> ColumnNames:
        """The columns named for your own file."""
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
        if self.system is not None and not self.chat:
            raise ValueError(f"system={self.system[:40]!r} needs chat=True (now {self.chat})")
        if self.text_score != "sum" and self.labels != "texts":
            raise ValueError(f"text_score={self.text_score!r} needs labels='texts' (now {self.labels!r})")
        if self.train_rows_seed is not None and self.train_rows is None:
            raise ValueError(f"train_rows_seed={self.train_rows_seed} needs train_rows, the number to draw")
        if self.train_rows is not None and self.train_rows <= self.validation_rows:
            raise ValueError(
                f"train_rows={self.train_rows} leaves no row to train on: it must be more than "
                f"validation_rows={self.validation_rows}"
            )
        return self


class AdapterConfig(SettingsSection):
    """Where the adapters are and how large, with the names that PEFT uses."""

    r: Rank = Field(8, description="rank of the adapters")
    lora_alpha: PositiveFloat = Field(16.0, description="the adapters' output is scaled by lora_alpha / r")
    target_modules: str | list[str] | None = Field(
        None,
        description="modules to adapt: names, a regular expression, or 'all-linear'; null: the query and "
        "value projections and the output embedding",
    )
    top_layers: PositiveInt | None = Field(
        None,
        description="adapt only the modules in this many of the last transformer layers, and the output "
        "embedding if it is among target_modules",
    )
    distance_aware: bool = Field(
        False,
        description="make predictions less confident the less a row resembles the training rows; fitted "
        "after training, without labels; one extra forward pass without adapters per prediction",
    )
    one_pass: bool = Field(
        False,
        description="let the one-pass prediction (S = 0) approximate the average of 32 draws, by a "
        "temperature per row that is fitted after training, without labels",
    )
    calibrated: bool | None = Field(
        None,
        description="split-half calibration: predict half of the training rows after training on the others "
        "(with fewer than 640 rows, then the other way round), and fit a temperature to these predictions; "
        "up to twice as much training (with find_lr see there); "
        "null: on with 20 to 5,000 training rows, or 639 if lr, steps or epochs is given or find_lr is off, "
        "except for the methods temperature and ensemble_temperature",
    )
    start: str | None = Field(
        None,
        description="LoRA of PEFT to start from, a folder or a hub name: its A and B, rank and layers are "
        "kept, and the method (bara-gate, laplace, tfb, temperature or lora) puts a posterior around them",
    )


class TrainConfig(SettingsSection):
    """How the negative ELBO is minimised: AdamW with linear warm-up and decay."""

    steps: Annotated[int, Field(ge=0, le=MOST_STEPS)] | None = Field(
        None,
        description="optimiser steps; null: 20 passes over the training rows with a search for the learning "
        "rate, or a quarter of them by may_shorten; otherwise 10 to 20, doubled if the model is "
        "underconfident; 100 to 6,000 steps before either; for replies 2 passes",
    )
    may_double: bool | None = Field(
        None,
        description="with split-half calibration: train twice as long if the model is underconfident (best "
        "temperature more than 1.645 standard errors below 1); null: on without find_lr if neither steps "
        "nor epochs is given",
    )
    may_shorten: bool | None = Field(
        None,
        description="with find_lr: train a quarter as long if a fit of that length predicts the other half "
        "significantly better; null: on with find_lr and 640 rows or more if neither steps nor epochs is "
        "given",
    )
    find_lr: bool | None = Field(
        None,
        description="find the learning rate with split-half calibration: train on half of the rows at lr and "
        "at 3 times lr, and take lr if it predicts the other half significantly better; with 640 rows or "
        "more, 0.3 times lr instead of 3 if a quarter of the steps at lr is better; 2 to 2.5 times as much "
        "training; null: on with split-half calibration unless lr, steps, epochs or may_double is given or "
        "the method sets lr",
    )
    epochs: PositiveFloat | None = Field(None, description="passes over the training rows, instead of steps")
    batch_size: Rows = Field(4, description="rows per optimiser step")
    accumulate: Rows = Field(1, description="micro-batches per step, to save memory")
    lr: PositiveFloat | None = Field(
        None,
        description="peak learning rate; null: 3e-3, 1e-3 or 3e-4, chosen by split-half calibration, or 1e-3 "
        "without it; ivon 0.03, gates around a given adapter 0.02",
    )
    local_lr_scale: PositiveFloat | None = Field(
        None, description="learning rate of an amortised guide as a share of lr; null: 0.1 for gates, else 1"
    )
    warmup: float = Field(
        0.06, ge=0, le=1, description="share of the steps over which the learning rate rises"
    )
    weight_decay: NonNegativeFloat = Field(0.0, description="decoupled weight decay of AdamW")
    clip_norm: PositiveFloat | None = Field(
        None, description="largest joint gradient norm, of the loss in nats per example; null: no clipping"
    )
    autocast: Literal["bfloat16", "float16"] | None = Field(
        None, description="autocast type of the language model's products; null: no autocast"
    )
    checkpointing: bool = Field(
        False, description="recompute activations in the backward pass: less memory, more time"
    )
    capture: Capture = Field(
        "auto",
        description="'auto' records frequent training steps on a CPU and replays them, with equal results; "
        "'on' also records them on a GPU, as CUDA graphs, and pads rows to a few widths, which changes the "
        "random draws",
    )
    sampled_kl: bool = Field(
        False, description="allow a KL estimated from one draw if no analytic KL is registered"
    )
    checkpoint_every: Steps = Field(200, description="steps between checkpoints")

    @property
    def total_steps(self) -> int:
        """The number of optimiser steps; a `ConfigError` until `build_system` has read the training rows."""
        if self.steps is None:
            raise ConfigError("The number of steps depends on the training rows: build the system first.")
        return self.steps

    @property
    def peak_lr(self) -> float:
        """The peak learning rate that is set, or the default."""
        return DEFAULT_LR if self.lr is None else self.lr

    @model_validator(mode="after")
    def _holds_together(self) -> "TrainConfig":
        if self.batch_size % self.accumulate:
            raise ValueError(f"accumulate={self.accumulate} must divide batch_size={self.batch_size}")
        if self.steps is not None and self.epochs is not None:
            raise ConfigError(
                f"train.steps={self.steps} and train.epochs={self.epochs:g} both set the length of training: "
                "give only one (--steps or --epochs)."
            )
        return self


class PredictConfig(SettingsSection):
    """How predictions are drawn from the posterior."""

    samples: list[Draws] = Field(
        [0, 10],
        min_length=1,
        description="numbers S of posterior draws to evaluate with; 0: one pass at the posterior mean",
    )
    batch_size: Rows = Field(64, description="rows per forward pass, before repetition by S")
    memory_budget: PositiveInt | None = Field(
        None, description="approximate bytes of activations per forward pass; null: chosen for the device"
    )
    capture: Capture = Field(
        "auto",
        description="'auto' records frequent forward passes on a CPU and replays them, with equal results; "
        "'on' also records them on a GPU, as CUDA graphs",
    )
    seed: Seed = Field(0, description="seed of the draws")


class RunSettings(SettingsSection):
    """All settings of a run except its method's, which the method declares."""

    backbone: BackboneConfig = BackboneConfig()
    task: TaskConfig = TaskConfig()
    adapter: AdapterConfig = AdapterConfig()
    train: TrainConfig = TrainConfig()
    predict: PredictConfig = PredictConfig()
    seed: Seed = Field(0, description="seed of the initial values, the data order and the noise")
