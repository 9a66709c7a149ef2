"""What a method is, and the registry of methods."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bara_pyro.core.backbone import Backbone
from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.program import AdaptedLM
from bara_pyro.core.svi import SVI
from bara_pyro.errors import ConfigError, unknown
from bara_pyro.methods.recipes import default_svi
from bara_pyro.settings import validation_sentence

if TYPE_CHECKING:  # what is fitted is built from the registry
    from bara_pyro.runs.system import System


class MethodConfig(BaseModel):
    """Settings of a method; subclasses add theirs."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: str = Field(description="the method")


Builder = Callable[[Backbone, int, dict[str, Any], Any], tuple[AdaptedLM, SiteGuide]]
Inference = Callable[[AdaptedLM, SiteGuide, Any, Any], SVI]
Finish = Callable[["System"], dict[str, float]]
Check = Callable[["System"], None]


@dataclass(frozen=True)
class Method:
    """A named pair of program and guide.

    Attributes:
        name: what `--method` takes.
        summary: one line for `bara methods`.
        config: the class of its settings.
        build: `(backbone, num_data, adapter settings, method settings) -> (model, guide)`.
        defaults: settings that this name presets.
        train: settings of the section `train` that this name presets.
        svi: `(model, guide, training settings, method settings) -> SVI`: how it is trained; by default one
            AdamW on the negative ELBO.
        finish: what is fitted once training is over (a Laplace approximation, a temperature), in place, to
            frozen parameters of model and guide, so that it is saved with them; returns figures worth
            recording.
        check: called before training; raises where `finish` could not do its work.
        peft: whether `lora_A` and `lora_B` of the program, without the guide, are a LoRA worth using (the
            posterior's mean), so that PEFT may read a run's folder as one.
    """

    name: str
    summary: str
    config: type[MethodConfig]
    build: Builder
    defaults: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)
    svi: Inference = default_svi
    finish: Finish | None = None
    check: Check | None = None
    peft: bool = False


METHODS: dict[str, Method] = {}


def register_method(method: Method) -> Method:
    """Add a method to the registry; a name can be taken once.

    Raises:
        ConfigError: the name is taken.
    """
    if method.name in METHODS:
        raise ConfigError(f"The method name {method.name!r} is already registered.")
    METHODS[method.name] = method
    return method


def method_config(value: dict[str, Any] | str) -> MethodConfig:
    """Return the checked settings of the method that `value["name"]` names.

    Raises:
        ConfigError: unknown method, setting or value.
    """
    data = {"name": value} if isinstance(value, str) else dict(value)
    name = data.get("name", "bara")
    if not isinstance(name, str) or name not in METHODS:
        raise ConfigError(unknown("method", name, METHODS))
    method = METHODS[name]
    try:
        return method.config.model_validate({**method.defaults, **data, "name": name})
    except ValidationError as error:
        raise ConfigError(validation_sentence(error, method.config, ("method",))) from error


def build(
    config: MethodConfig, backbone: Backbone, num_data: int, adapter: dict[str, Any]
) -> tuple[AdaptedLM, SiteGuide]:
    """Make the model and the guide of a method.

    Args:
        config: from `method_config`.
        backbone: the frozen language model.
        num_data: number of training examples.
        adapter: `r`, `lora_alpha`, `target_modules`, `full_vocab`.
    """
    return METHODS[config.name].build(backbone, num_data, adapter, config)
