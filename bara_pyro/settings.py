"""Helpers for settings classes: fields added later, retired or without effect, and error messages."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from bara_pyro.errors import BaraError, ConfigError, unknown
from bara_pyro.types import Json

T = TypeVar("T")

DEFAULT_METHOD = "bara-gate"  # see docs/decisions.md, record 4

# Replacements for pydantic's messages.
FIXES = {"bool": "give true or false", "int": "give a whole number", "float": "give a number"}


def later(default: T, description: str, **limits: Any) -> T:
    """Return a field that was added after results had been stored under a configuration's hash.

    While it has its default, it is left out of the dump and so of the hash: a configuration that does not use
    it keeps the name of its stored results. For the same reason its default must never change after a
    release. Use it for every new field of a section or of a method's settings:

        text_column: str | None = later(None, "column of the text")

    Args:
        default: the value that keeps the previous behaviour.
        description: help text.
        limits: further arguments of `pydantic.Field`, such as `gt=0`.
    """
    field: T = Field(default, description=description, exclude_if=lambda value: value == default, **limits)
    return field


@dataclass(frozen=True)
class Unread:
    """Marks a setting that has no effect while another setting has one of some values.

    A configuration that then sets it to anything but its default is refused, so that no setting is ignored.

    Attributes:
        setting: name of the other setting.
        values: values of the other setting, or their types.

    Examples:
        >>> from typing import Annotated
        >>> from bara_pyro.methods import MethodConfig
        >>> from bara_pyro.settings import Unread
        >>> class MineConfig(MethodConfig):
        ...     recipe: str = "elbo"
        ...     kl_lr: Annotated[float, Unread("recipe", ("elbo",))] = 0.01
        >>> MineConfig(name="mine", recipe="published", kl_lr=0.3).kl_lr
        0.3
    """

    setting: str
    values: tuple[object, ...]

    def applies(self, value: object) -> bool:
        """Return whether the other setting has such a value."""
        return any(isinstance(value, one) if isinstance(one, type) else value == one for one in self.values)


def validation_sentence(error: ValidationError, model: type[BaseModel], prefix: tuple[str, ...] = ()) -> str:
    """Return pydantic's first error as one sentence; for an unknown key it lists the known ones.

    Args:
        error: pydantic's error.
        model: the validated class.
        prefix: key of the section, for the message.
    """
    first = error.errors()[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, BaraError):  # raised by one of our validators
        return str(cause)
    key = ".".join(map(str, (*prefix, *first["loc"])))
    if first["type"] == "extra_forbidden":
        return unknown("setting", key, _known_fields(model, first["loc"][:-1], prefix))
    fix = FIXES.get(first["type"].removesuffix("_parsing").removesuffix("_type"))
    message = fix or first["msg"].removeprefix("Value error, ").rstrip(".")
    where = f"Setting {key} = {first['input']!r}" if key else "The configuration"
    return f"{where} is not valid: {message[0].lower()}{message[1:]}."


def _known_fields(model: type[BaseModel], path: tuple[int | str, ...], prefix: tuple[str, ...]) -> list[str]:
    """Return the valid dotted keys at the place of an unknown one."""
    for part in path:
        annotation = model.model_fields[str(part)].annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            model = annotation
    return [".".join(map(str, (*prefix, *path, name))) for name in model.model_fields]


RETIRED: dict[str, Json] = {
    "adapter": {"full_vocab": False},
    "method.adalora": {
        "mask_interval": 10,
        "beta1": 0.85,
        "beta2": 0.85,
        "init_r": None,
        "t_init": 0.1,
        "t_final": 0.5,
    },
    "method.bara": {"form": "additive", "top_k": 4},
    "method.bara-gate": {"form": "gate", "top_k": 4},
    "method.blob": {
        "transform": "square",
        "kl_lr": 0.01,
        "init_scale": 0.05,
        "flipout": True,
        "scale_optimizer": "sgd",
    },
    "method.clora": {
        "hidden": 64,
        "kl_lr": 0.01,
        "init_scale": 0.25,
        "kl_weight": 1e-6 / 65,
        "nll_weight": 1.0,
    },
    "method.fvae": {
        "encoder_width": None,
        "decoder_width": 128,
        "z2_mean": 1.5,
        "ce_weight": 1000.0,
        "rec_weight": 1.0,
        "z2_weight": 1.0,
        "z1_weight": 1.0,
        "kl_weight": 1.0,
        "decoder_layers": 3,
        "learn_scale": True,
        "padding": True,
        "detach": False,
    },
    "method.ivon": {
        "beta1": 0.9,
        "beta2": 0.99999,
        "rescale_lr": False,
        "hess_init": 0.001,
        "clip_radius": 0.001,
    },
    "method.laplace": {
        "logit_samples": 5000,
        "base": "mle",
        "prior_scale": 0.4,
        "predictive": "glm",
        "optimiser": "bisection",
        "max_gigabytes": 16.0,
        "batch_size": 8,
    },
    "method.polar_vbll": {"bound": "jensen", "max_gigabytes": 8.0},
    "method.scalabl": {"kl_lr": 0.2, "init_scale": 0.05},
    "method.tfb": {
        "anchor": "train",
        "flipout": True,
        "nll_floor": 0.1,
        "anchor_rows": 500,
        "pseudo_labels": False,
        "search_samples": 10,
        "low": 0.001,
        "high": 0.015,
        "halvings": 5,
        "divide_by_rows": True,
        "return_infeasible": True,
    },
    "method.vbll": {"bound": "jensen", "max_gigabytes": 8.0},
    "train": {"process_timeout": 600.0},
}
"""Section or method -> retired settings with the values that are now constants of the code.

They still count in the hash of a configuration, so that stored results keep their names, except settings that
never counted (`runs.config.WITHOUT_EFFECT`).
"""


def without_retired(section: str, given: Mapping[str, object]) -> Json:
    """Return the settings of a section or of a method without retired ones.

    Raises:
        ConfigError: a retired setting differs from its constant.
    """
    constants = RETIRED.get(section, {})
    for name, constant in constants.items():
        if name in given and given[name] != constant:
            part, _, method = section.partition(".")
            raise ConfigError(
                f"{part}.{name}={given[name]!r} is no longer a setting: it is always {constant!r}"
                f"{f' with the method {method!r}' if method else ''}, so leave it out."
            )
    return {name: value for name, value in given.items() if name not in constants}


def with_retired(dumped: Json) -> Json:
    """Return a dumped configuration with the constants of its retired settings added."""
    method = dumped["method"]
    complete = {name: RETIRED.get(name, {}) | part for name, part in dumped.items() if isinstance(part, dict)}
    complete["method"] = RETIRED.get(f"method.{method['name']}", {}) | method
    return dumped | complete
