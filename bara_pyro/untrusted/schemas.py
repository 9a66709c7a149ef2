"""Schemas of a run's JSON files: the type and the largest size of every field that is used."""

from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from bara_pyro.errors import CheckpointError

SCHEMA = 2
"""Version of the format of a run's files."""
MOST_JSON = 2**26
"""Most bytes of a JSON file, unless its schema allows more."""
MOST_CLASSES, MOST_MODULES, MOST_ROWS, MOST_RANK = 100_000, 100_000, 10**12, 16_384
Text = Annotated[str, Field(max_length=10_000)]
LongText = Annotated[str, Field(max_length=1_000_000)]
Names = Annotated[list[Text], Field(max_length=MOST_CLASSES)]
Count = Annotated[int, Field(ge=0, le=MOST_ROWS)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{1,64}$")]
Draws = Annotated[str, Field(pattern=r"^[0-9]{1,6}$")]
Label = Annotated[int, Field(ge=-1, lt=MOST_CLASSES)]
Rank = Annotated[int, Field(ge=1, le=MOST_RANK)]
RankPattern = Annotated[dict[Text, Rank], Field(max_length=MOST_MODULES)]
Scores = dict[Text, FiniteFloat | None]


class Stored(BaseModel):
    """A file of bara_pyro; unknown fields, which later versions may add, are ignored, and types are strict.

    A field with a default may be absent; it may be null only if its type allows it.

    Attributes:
        most_bytes: the most bytes of the file.
    """

    most_bytes: ClassVar[int] = MOST_JSON
    model_config = ConfigDict(extra="ignore", strict=True, hide_input_in_errors=True)


class StoredColumns(Stored):
    """Columns of a user's rows; see `bara_pyro.data.Columns`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: Text
    label: Text | None = None
    choices: Text | None = None
    context: Text | None = None
    cluster: Text | None = None
    id: Text | None = None
    indices: bool = False


class StoredChat(Stored):
    """The text around each question; see `bara_pyro.data.ChatFrame`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    before: LongText
    after: LongText
    space: Text = ""


class RunFile(Stored):
    """The settings of a run, its language model and its rows."""

    config: dict[Text, Any]
    config_hash: Digest
    num_data: Annotated[int, Field(ge=1, le=MOST_ROWS)]
    backbone_fingerprint: Digest
    backbone_computation: dict[Text, bool | int | FiniteFloat | Text]
    task: Text
    labels: Names
    names: Names
    columns: StoredColumns | None
    chat: StoredChat | None = None
    training_rows: Digest = ""
    test_rows: Digest = ""
    rank_pattern: RankPattern = {}
    plugins: Annotated[list[Text], Field(max_length=100)] = []


class ManifestFile(Stored):
    """The files of a folder with their SHA-256."""

    files: dict[Text, Digest]
    digest: Digest


class MetricsFile(Stored):
    """The scores of a run: number of draws S, as digits -> name of a score -> its value."""

    method: Text
    task: Text
    split: Text = ""
    seed: Count = 0
    rows: Text = ""
    metrics: dict[Draws, Scores] = {}
    classes: Names = []
    config_hash: Digest = ""
    notes: list[Text] = []


class RowScores(Stored):
    """Scores of answers, rates in percent; None for an infinite score."""

    n: Count
    acc: FiniteFloat
    ece: FiniteFloat
    nll: FiniteFloat | None
    brier: FiniteFloat


class Majority(Stored):
    """The most frequent class, and its accuracy in percent."""

    label: str | int
    acc: FiniteFloat


class Sizes(Stored):
    """Numbers of parameters."""

    trainable: Count
    frozen: Count


class Environment(Stored):
    """Versions of the packages that a run used."""

    versions: dict[Text, Text]


class PublishedMetrics(MetricsFile):
    """The scores of a run that a model card shows."""

    split: Text
    seed: Count
    metrics: Annotated[dict[Draws, RowScores], Field(min_length=1)]  # type: ignore[assignment]
    majority_class: Majority
    parameters: Sizes
    environment: Environment
    notes: list[Text]


class PredictionLine(Stored):
    """A run's prediction of one row: number of draws S, as digits -> probabilities of the classes."""

    id: Text
    label: Label = -1
    probs: dict[Draws, list[Annotated[FiniteFloat, Field(ge=0, le=1.0001)]]] = {}
    epistemic: dict[Draws, FiniteFloat | None] = {}
    cluster: Text = ""


class FittedFile(Stored):
    """Values fitted after training, by name."""

    model_config = ConfigDict(extra="allow", strict=True)
    __pydantic_extra__: dict[str, FiniteFloat | None]


class AdapterSizes(BaseModel):
    """The sizes in PEFT's settings of an adapter."""

    r: Rank
    lora_alpha: Annotated[FiniteFloat, Field(gt=0)]
    rank_pattern: RankPattern


class AdapterFile(Stored):
    """PEFT's settings of an adapter."""

    peft_type: Text
    base_model_name_or_path: Text | None = None


class TensorsFile(Stored):
    """The metadata of the tensors of a run or of a checkpoint."""

    step: Count = 0
    config_hash: Digest = ""
    identity: dict[Text, Text] = {}
    param_groups: list[dict[Text, Any]] = []
    counters: dict[Text, Any] = {}
    scheduler: dict[Text, Any] | None = None


class LogLine(Stored):
    """A step of training in the log."""

    step: Count
    nll: float = 0.0
    seconds: float = 0.0


class AskedRow(Stored):
    """A fit's prediction of a row that it did not learn.

    Log-probabilities are in nats, draws x classes; None: not offered.
    """

    id: Text
    label: Label
    log_probs: list[list[FiniteFloat | None]]


class TriedRate(Stored):
    """A learning rate and length that split-half calibration tried, and its held-out loss in nats.

    The loss is None if it diverged. Earlier versions stored no length.
    """

    lr: FiniteFloat
    steps: Count | None = None
    loss: FiniteFloat | None
    taken: bool = False  # whether it replaced what was tried before


class SplitHalfFile(Stored):
    """Predictions of held-out rows in split-half calibration; of the rate taken, if it tried several.

    `turned` are those with the halves turned around: predictions of the rows that the other fits learned.
    `own_nll` is the NLL (nats a row) of the fit behind `rows` on the rows that it learned, at the end of its
    training; `learnt_nll` is that of its predictions of them afterwards. `lowered` says that the run itself
    was unstable at the rate taken, and has the next lower one.
    """

    most_bytes: ClassVar[int] = 2**30  # there may be many classes

    seconds: FiniteFloat
    rows: Annotated[list[AskedRow], Field(min_length=1)]
    steps: Count
    tried: list[TriedRate] = []
    turned: list[AskedRow] = []
    own_nll: FiniteFloat | None = None
    learnt_nll: FiniteFloat | None = None
    lowered: bool = False

    @model_validator(mode="after")
    def _of_one_shape(self) -> Self:
        draws, classes = len(self.rows[0].log_probs), len((self.rows[0].log_probs or [[]])[0])
        for row in (*self.rows, *self.turned):
            if len(row.log_probs) != draws or any(len(draw) != classes for draw in row.log_probs):
                raise ValueError(f"row {row.id[:60]!r} differs from the first in its draws or classes")
            if not row.label < classes:
                raise ValueError(f"row {row.id[:60]!r} has the label {row.label} of {classes} classes")
        return self


class ReplyLine(Stored):
    """A line of a file of replies."""

    id: Text
    number: Count


def later_schema(found: object, place: object) -> CheckpointError:
    """Return the error for a file that another version of bara_pyro wrote."""
    return CheckpointError(
        f"{place} has schema {str(found)[:20]}, but this version reads {SCHEMA}: use the version of "
        "bara_pyro that wrote it."
    )


def checked(value: Any, schema: type[Stored], place: object) -> Any:
    """Return a value unchanged after checking it against a schema.

    Args:
        value: a value from JSON.
        schema: the schema to check.
        place: the file it comes from, for errors.

    Raises:
        CheckpointError: the value violates the schema, or has another schema version.

    Examples:
        >>> from bara_pyro.untrusted.schemas import LogLine, checked
        >>> checked({"step": 1, "nll": 0.5}, LogLine, "train_log.jsonl")
        {'step': 1, 'nll': 0.5}
        >>> try:
        ...     checked({"step": "one"}, LogLine, "train_log.jsonl")
        ... except ValueError as error:
        ...     print(error)
        train_log.jsonl is damaged (step: input should be a valid integer): restore it from a copy.
    """
    if isinstance(value, dict) and (version := value.get("schema", SCHEMA)) != SCHEMA:
        raise later_schema(version, place)
    try:
        schema.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        key = ".".join(map(str, first["loc"]))[:100]
        message = first["msg"][0].lower() + first["msg"][1:]
        problem = f"lacks {key!r}" if first["type"] == "missing" else f"is damaged ({key or 'it'}: {message})"
        raise CheckpointError(f"{place} {problem}: restore it from a copy.") from error
    return value
