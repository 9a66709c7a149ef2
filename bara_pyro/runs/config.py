"""The configuration of a run: all settings that a result depends on, completed by its number of rows."""

import hashlib
import json
import math
from pathlib import Path
from typing import Any, Self

from pydantic import Field, SerializeAsAny, ValidationError, ValidationInfo, field_validator, model_validator

from bara_pyro.errors import ConfigError
from bara_pyro.methods import METHODS, MethodConfig, method_config
from bara_pyro.methods.base import STORED
from bara_pyro.runs.assignments import collect
from bara_pyro.runs.sections import DEFAULT_LR, RunSettings, TrainConfig
from bara_pyro.settings import DEFAULT_METHOD, validation_sentence
from bara_pyro.types import Json

LENGTH = ("steps", "epochs")  # settings of `train`, one of which gives the length of training
# Raised when a default changes, since a hash names only what differs from the defaults.
DEFAULTS = 1
# Default length of training: passes over few rows, and over MANY_ROWS or more or with a search for the rate;
# passes over replies; the fewest and the most steps.
PASSES, MANY_ROWS, REPLY_PASSES = (10, 20), 640, 2
FEWEST_STEPS, MOST_STEPS = 100, 6000
# Split-half calibration needs at least so many rows, and so many held out: fewer say less about the
# temperature than its prior does (docs/calibrated.md). By default it is used below MANY_ROWS, and up to
# SEARCHED_ROWS if nobody says how to train. From MANY_ROWS on it holds out one half only.
SPLIT_HALF_ROWS, ASKED_ROWS, SEARCHED_ROWS = 20, 10, 5000
# Settings of earlier versions without effect on results, which stored runs may have.
REMOVED = {"backbone": ("states_folder",), "task": ("streaming",), "predict": ("last",)}

# Settings that only cost memory and time: they may change when a run is resumed (results agree to rounding).
MEMORY = {
    "backbone": {"shortcuts"},
    "train": {"checkpointing"},
    "predict": {"memory_budget", "batch_size", "capture"},
}


class RunConfig(RunSettings):
    """All settings of a run."""

    method: SerializeAsAny[MethodConfig] = Field(default_factory=lambda: method_config(DEFAULT_METHOD))

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, data: Any, info: ValidationInfo) -> Any:
        """Fill in what the method presets, unless it is given."""
        if not isinstance(data, dict):
            return data
        method, train = data.get("method", DEFAULT_METHOD), data.get("train", {})
        if not (isinstance(method, dict | str) and isinstance(train, dict)):
            return data
        adapter = data.get("adapter")
        if isinstance(adapter, dict) and adapter.get("start") is not None:
            method, train = _started({"name": method} if isinstance(method, str) else method, train)
        method = cls._by_name(method, info)
        return {**data, "method": method, "train": {**METHODS[method.name].train, **train}}

    @model_validator(mode="after")
    def _holds_together(self) -> Self:
        c, method = self.train, METHODS[self.method.name]
        calibrated = self.adapter.calibrated or c.find_lr
        if c.steps == 0 and self.adapter.start is None:
            raise ConfigError("Setting train.steps = 0 is not valid: give at least 1.")
        if c.steps == 0 and calibrated:
            raise ConfigError(
                "Split-half calibration (adapter.calibrated, train.find_lr) needs a second training, and "
                f"{method.name!r} trains nothing with --from-adapter: use --method temperature with "
                "--validation-rows."
            )
        if calibrated and method.tempered:
            raise ConfigError(
                "Split-half calibration (adapter.calibrated, train.find_lr) fits a temperature, but the "
                f"method {method.name!r} fits its own: leave it out."
            )
        if self.adapter.one_pass and self.task.labels == "texts":
            raise ConfigError(
                "one_pass=True (--one-pass) needs answers of one token, not labels='texts' (--labels texts): "
                "set labels='letters' (--labels letters), or leave one_pass out."
            )
        return self

    @field_validator("method", mode="before")
    @classmethod
    def _by_name(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, dict | str):
            return value
        return method_config(value, stored=info.context == STORED)

    def dump(self) -> Json:
        """Return the configuration as plain JSON values."""
        return self.model_dump(mode="json")

    def updated(self, section: str, **settings: object) -> "RunConfig":
        """Return a copy with other settings of a section, which are not checked."""
        return self.model_copy(update={section: getattr(self, section).model_copy(update=settings)})

    def with_memory(self, other: "RunConfig") -> "RunConfig":
        """Return a copy with another configuration's settings that only cost memory and time."""
        config = self
        for section, keys in MEMORY.items():
            config = config.updated(section, **getattr(other, section).model_dump(include=keys))
        return config

    @property
    def hash(self) -> str:
        """Twelve hexadecimal digits that identify the configuration.

        Only settings that differ from their defaults count, so a setting that is added later changes no hash.
        A default that changes must change all hashes, see `DEFAULTS`.
        Settings that only cost memory and time never count. Labels "words" count as "auto": if the words are
        single tokens, both give the same run, and otherwise "words" is impossible. The default learning rate
        counts as none, and capture "off" as "auto".
        """
        data = self.model_dump(mode="json", exclude_defaults=True, exclude=MEMORY)
        if self.task.labels == "words":
            del data["task"]["labels"]
        if self.train.lr == DEFAULT_LR:
            del data["train"]["lr"]
        if self.train.capture == "off":  # gives the same results as "auto"
            del data["train"]["capture"]
        chosen: Json = {"defaults": DEFAULTS, **{name: part for name, part in data.items() if part}}
        chosen["method"] = self.method.model_dump(mode="json", exclude_defaults=True)
        return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:12]


def _started(method: Json, train: Json) -> tuple[Json, Json]:
    """Return these sections with what the method sets if it starts from a given adapter.

    A method that cannot, or one of these settings with another value, raises a `ConfigError`.
    """
    name = method.get("name", DEFAULT_METHOD)
    if (start := METHODS.find(name).start) is None:
        known = ", ".join(one for one, method in METHODS.usable() if method.start)
        raise ConfigError(
            f"The method {name!r} cannot start from an adapter (--from-adapter): choose one of {known}."
        )
    sections: Json = {"method": {"name": name, **method}, "train": {**train}}
    for key, value in (start.presets | start.fixed).items():
        section, _, setting = key.partition(".")
        typed = sections[section].setdefault(setting, value)
        if key not in start.fixed:
            continue
        if typed not in (None, value):
            raise ConfigError(
                f"{key}={typed} is not possible with an adapter to start from (--from-adapter), of which "
                f"{name!r} keeps A and B: leave it out."
            )
        sections[section][setting] = value
    return sections["method"], sections["train"]


def load_config(
    path: str | Path | None = None,
    overrides: Json | None = None,
    assignments: list[str] | None = None,
    base: RunConfig | None = None,
) -> RunConfig:
    """Build a configuration from a base, a YAML or JSON file, overrides and `key=value` assignments.

    Args:
        path: YAML (or JSON) file with any subset of the fields.
        overrides: dotted key -> value; None sets a setting to null.
        assignments: `"train.lr=0.001"`, values in YAML syntax.
        base: the configuration to change; None: the defaults.

    Raises:
        ConfigError: the file is unreadable, a key is unknown, a value has the wrong type or is out of range,
            or overrides and assignments contradict each other.

    Examples:
        >>> from bara_pyro.runs.config import load_config
        >>> config = load_config(overrides={"method": "bara-gate"}, assignments=["train.lr=1e-4"])
        >>> config.train.lr, config.method.form
        (0.0001, 'gate')
        >>> len(config.hash)  # identifies it
        12
    """
    file = None if path is None else Path(path)
    if base is None:
        return parse_config(collect(file, overrides, assignments))
    typed, data = collect(file, overrides, assignments), base.dump()
    train = typed.get("train")
    if isinstance(train, dict) and any(train.get(key) is not None for key in LENGTH):
        data["train"] |= dict.fromkeys(LENGTH)  # the given length replaces the base's
    if isinstance(train, dict) and train.get("lr") is not None:
        data["train"].pop("find_lr", None)  # as the given rate replaces a search
    # Unused settings are accepted in a stored base, but refused if they are given.
    return parse_config(collect(file, overrides, assignments, data), stored="method" not in typed)


def parse_config(data: Json, *, stored: bool = False) -> RunConfig:
    """Validate a plain dictionary, which may come from a stored run; see `load_config`, `method_config`."""
    for name, keys in REMOVED.items() if stored else ():
        if isinstance(section := data.get(name), dict):
            data = {**data, name: {key: value for key, value in section.items() if key not in keys}}
    try:
        return RunConfig.model_validate(data, context=STORED if stored else None)
    except ValidationError as error:
        raise ConfigError(validation_sentence(error, RunConfig)) from error


def for_rows(config: RunConfig, rows: int, held_out: int | None = None) -> RunConfig:
    """Return a configuration completed with the defaults for this number of training rows.

    Split-half calibration can hold out `held_out` rows; None: half. `may_double` and `find_lr` without it or
    together, and `may_shorten` without `find_lr`, raise a `ConfigError`.
    """
    config = config.model_copy(update={"method": config.method.for_rows(rows)})
    enough = held_out is None or held_out >= ASKED_ROWS or config.train.find_lr
    if calibrated_by_default(config, rows) and enough:
        config = config.updated("adapter", calibrated=True)
    c = config.train
    for name in ("may_double", "may_shorten", "find_lr"):
        if getattr(c, name) and not config.adapter.calibrated:
            raise ConfigError(
                f"train.{name}=true needs split-half calibration, which is off: set calibrated=True "
                f"(adapter.calibrated), or leave {name} out."
            )
    if c.may_double and c.find_lr:
        raise ConfigError(
            "train.may_double=true and train.find_lr=true are two ways to learn more: give only one."
        )
    if c.may_shorten and not (c.find_lr or _is_open(c)):
        raise ConfigError(
            "train.may_shorten=true needs a search for the learning rate: set train.find_lr=true, or leave "
            "it out."
        )
    if c.epochs is not None:
        steps = steps_of(c.epochs, rows, c.batch_size)
    elif c.steps is None:
        if config.adapter.calibrated:  # look for a better training, if nobody says how: rate, else length
            if _is_open(c):
                c = c.model_copy(update={"find_lr": True})
            elif c.may_double is None and not c.find_lr:
                c = c.model_copy(update={"may_double": True})
            few = turned(rows, rows // 2 if held_out is None else held_out)
            if c.find_lr and c.may_shorten is None and not few:
                c = c.model_copy(update={"may_shorten": True})
        replies = config.task.likelihood == "completion"
        steps = default_steps(rows, c.batch_size, replies=replies, searching=bool(c.find_lr))
    else:
        return config
    return config.model_copy(update={"train": c.model_copy(update={"steps": steps, "epochs": None})})


def may_calibrate(config: RunConfig, rows: int) -> bool:
    """Return whether this many rows are calibrated, provided that enough of them can be held out."""
    return bool(config.adapter.calibrated) or calibrated_by_default(config, rows)


def calibrated_by_default(config: RunConfig, rows: int) -> bool:
    """Whether this many rows are calibrated if nobody says so; docs/calibrated.md says why."""
    if config.adapter.calibrated is not None:
        return False
    if config.train.find_lr:  # asked for: what does not allow it is then an error
        return True
    if config.train.steps == 0 or config.task.likelihood != "answer":  # 0: a given adapter stays as it is
        return False
    most = SEARCHED_ROWS if _is_open(config.train) else MANY_ROWS - 1
    return not METHODS[config.method.name].tempered and SPLIT_HALF_ROWS <= rows <= most


def _is_open(section: TrainConfig) -> bool:
    """Whether nobody says at which rate or for how long to train."""
    given = (section.lr, section.steps, section.epochs, section.find_lr)
    return given == (None,) * 4 and not section.may_double


def turned(rows: int, held_out: int) -> bool:
    """Return whether the halves of split-half calibration are turned around.

    They are not if one of them has enough rows for a temperature, or related rows leave one below half of
    the other.
    """
    return rows < MANY_ROWS and 3 * held_out >= rows


def steps_of(epochs: float, rows: int, batch_size: int) -> int:
    """Return the number of steps of so many epochs, at least one."""
    return max(1, math.ceil(epochs * rows / batch_size))


def default_steps(rows: int, batch_size: int, *, replies: bool = False, searching: bool = False) -> int:
    """Return the default number of steps; record 6 of docs/decisions.md says why.

    If `searching`, split-half calibration looks for the learning rate (`find_lr`).

    >>> default_steps(80, 4), default_steps(640, 4), default_steps(100_000, 4)
    (200, 3200, 6000)
    """
    if replies:
        return min(MOST_STEPS, steps_of(REPLY_PASSES, rows, batch_size))
    few, many = PASSES
    passes = many if searching else min(many, max(few, many * rows / MANY_ROWS))
    return min(MOST_STEPS, max(FEWEST_STEPS, steps_of(passes, rows, batch_size)))
