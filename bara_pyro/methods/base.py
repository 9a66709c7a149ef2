"""Definition of a method (program, guide, settings, training) and the registry of methods."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import Parameter
from typing import Any, Generic, Literal, Self, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, model_validator
from torch import Tensor

from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.program import AdaptedLM, AdapterOptions
from bara_pyro.core.svi import SVI
from bara_pyro.data import EncodedSplit
from bara_pyro.errors import ConfigError
from bara_pyro.lm.backbone import Backbone
from bara_pyro.methods.recipes import Training, default_svi
from bara_pyro.posthoc.corrections import Corrections
from bara_pyro.registry import Registry
from bara_pyro.settings import DEFAULT_METHOD, Unread, validation_sentence
from bara_pyro.types import Json, default

STORED = {"stored": True}  # pydantic's context where settings are read back


class MethodConfig(BaseModel):
    """Settings of a method; subclasses add theirs."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: str = Field(description="the method")

    @model_validator(mode="after")
    def _all_are_read(self, info: ValidationInfo) -> Self:
        """Refuse settings that have no effect together with others (marked `Unread`).

        Settings of stored runs are accepted, because the results do not depend on them.
        """
        if info.context == STORED:
            return self
        fields = type(self).model_fields
        for name, declared in fields.items():
            value, default = getattr(self, name), declared.get_default()
            for mark in (one for one in declared.metadata if isinstance(one, Unread)):
                now = getattr(self, mark.setting)
                # A prior is given by its name or by its settings.
                if now in mark.values and value not in (default, {"name": default}):
                    annotation = fields[mark.setting].annotation
                    known = get_args(annotation) if get_origin(annotation) is Literal else ()
                    others = " or ".join(one for one in known if one not in mark.values)
                    reads = f"method.{mark.setting}={others}" if others else f"another {mark.setting}"
                    raise ConfigError(
                        f"method.{name}={value} has no effect with method.{mark.setting}={now}: leave it "
                        f"out, or give {reads}."
                    )
        return self

    def for_rows(self, rows: int) -> Self:
        """Return the settings with defaults that depend on the number of training rows filled in."""
        return self


def setting(of: Callable[..., object], parameter: str, description: str, **limits: Any) -> Any:
    """Return a pydantic field whose default is that of a parameter of a program, guide or function.

    Name the field like the parameter, so that `pair` passes its value on.

    Args:
        of: the program, guide or function.
        parameter: name of its parameter.
        description: help text of the setting.
        **limits: further arguments of `pydantic.Field`, such as `gt=0`.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.methods import MethodConfig
        >>> from bara_pyro.methods.base import setting
        >>> class MineConfig(MethodConfig):
        ...     beta_phi: float = setting(bp.models.BaRA, "beta_phi", "weight of the KL of Phi")
        >>> MineConfig(name="mine").beta_phi  # the default of the constructor
        1.0
    """
    return Field(default(of, parameter), description=description, **limits)


def given(to: Callable[..., object], config: MethodConfig) -> dict[str, Any]:
    """Return the settings whose names are parameters of a program or guide.

    For a class that takes `**options` the parameters of its base class count as well.
    """
    names: dict[str, None] = {}
    for one in inspect.getmro(to) if inspect.isclass(to) else (to,):
        parameters = inspect.signature(one).parameters
        names |= dict.fromkeys(parameters)
        if all(parameter.kind is not Parameter.VAR_KEYWORD for parameter in parameters.values()):
            break
    return {name: getattr(config, name) for name in names if name in type(config).model_fields}


M = TypeVar("M", bound=AdaptedLM)
G = TypeVar("G", bound=SiteGuide)
C = TypeVar("C", bound=MethodConfig)


@dataclass(frozen=True)
class Fit(Generic[M, G, C]):
    """Input of a method's `check`, before training, and of its `finish`, after training.

    Attributes:
        model, guide: the program and its guide.
        config: settings of the method.
        corrections: corrections of the predictions.
        answer_ids: token id of each class, long, `C`.
        split: function from the name of a split to its encoded rows; raises `DataError` for a missing split.
        draw: function `(split, samples, seed=...)` that draws the answers' log-probabilities as prediction
            does, `max(S, 1) x n x C`, float64.
        seed: seed of the prediction's draws.
        batch_size: rows per forward pass of prediction.
    """

    model: M
    guide: G
    config: C
    corrections: Corrections
    answer_ids: Tensor
    split: Callable[[str], EncodedSplit]
    draw: Callable[..., Tensor]
    seed: int
    batch_size: int


@dataclass(frozen=True)
class Start(Generic[M, G]):
    """How a method starts from an adapter that is given, whose A and B it keeps.

    Attributes:
        fixed: dotted key -> the only value that a setting may have then.
        presets: dotted key -> its default then.
        begin: function called with program and guide before A and B are copied.
    """

    fixed: Json = field(default_factory=dict)
    presets: Json = field(default_factory=dict)
    begin: Callable[[M, G], None] | None = None


AS_IT_IS: Start[Any, Any] = Start(fixed={"train.steps": 0, "train.epochs": None})
"""Nothing is trained: a method's `finish` fits what it adds."""


@dataclass(frozen=True)
class Method(Generic[M, G, C]):
    """A method: a named pair of program and guide, with its settings and training.

    Attributes:
        name: the name for `--method`.
        summary: one line for `bara methods`.
        config: class of its settings.
        build: function `(backbone, num_data, adapter settings, method settings) -> (model, guide)`; see
            `pair`.
        defaults: preset values of its settings.
        train: preset values of the section `train`.
        svi: function `(model, guide, training settings, method settings) -> SVI`; by default one AdamW on the
            negative ELBO.
        finish: function called after training, which fits for example a Laplace approximation or a
            temperature. It changes frozen parameters of model and guide in place, so that they are saved, and
            returns numbers to record.
        check: function called before training; raises if `finish` could not work, for example if there are no
            rows to fit to.
        uses_validation: whether `finish` uses validation rows, which are then no longer held out.
        tempered: whether `finish` sets a temperature, so that `adapter.calibrated` must be off.
        peft: whether the program's `lora_A` and `lora_B` alone are a usable LoRA (the posterior mean), so
            that PEFT may read a run's folder.
        start: how it starts from a given adapter; None if it cannot.
    """

    name: str
    summary: str
    config: type[C]
    build: Callable[[Backbone, int, AdapterOptions, C], tuple[M, G]]
    defaults: Json = field(default_factory=dict)
    train: Json = field(default_factory=dict)
    svi: Callable[[M, G, Training, C], SVI] = default_svi
    finish: Callable[[Fit[M, G, C]], dict[str, float]] | None = None
    check: Callable[[Fit[M, G, C]], object] | None = None
    uses_validation: Callable[[C], bool] = lambda config: False
    tempered: bool = False
    peft: bool = False
    start: Start[M, G] | None = None


def pair(
    program: Callable[..., M], guide: Callable[..., G], others: Callable[[Any], Json] = lambda config: {}
) -> Callable[[Backbone, int, AdapterOptions, Any], tuple[M, G]]:
    """Return a `build` function that passes each setting to the program's or guide's parameter of that name.

    `others` returns arguments of the program that follow from the settings. Fix further parameters with
    `functools.partial`.

    Examples:
        >>> from functools import partial
        >>> import bara_pyro as bp
        >>> from bara_pyro.methods import MethodConfig
        >>> from bara_pyro.methods.base import pair
        >>> build = pair(partial(bp.models.BaRA, form="gate"), bp.guides.WeibullGuide)
        >>> settings = MethodConfig(name="mine")  # no further settings
        >>> model, guide = build(bp.load_backbone("microworld"), 640, {"r": 4}, settings)
        >>> model.form, model.r, type(guide).__name__
        ('gate', 4, 'WeibullGuide')
    """

    def build(
        backbone: Backbone, num_data: int, adapter: AdapterOptions, config: MethodConfig
    ) -> tuple[M, G]:
        model = program(backbone, num_data, **given(program, config), **others(config), **adapter)
        return model, guide(model, **given(guide, config))

    return build


METHODS: Registry[Method[Any, Any, Any]] = Registry(
    "method", "bara_pyro.methods", ("bara_pyro.methods.*",), of=Method
)
"""Methods of this package, and those that installed packages provide as entry points."""


def register_method(method: Method[M, G, C]) -> Method[M, G, C]:
    """Add a method to the registry.

    Raises:
        ConfigError: the name is taken.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.methods import Method, MethodConfig
        >>> from bara_pyro.methods.base import pair, register_method
        >>> build = pair(bp.models.LoRA, bp.guides.DeltaGuide)
        >>> mine = register_method(Method("mine", "one line for `bara methods`", MethodConfig, build))
        >>> bp.train(method="mine", steps=1, limit=8, out="runs/mine").config.method.name
        'mine'
    """
    METHODS.register(method.name, method)
    return method


def method_config(value: Json | str, *, stored: bool = False) -> MethodConfig:
    """Return the validated settings of a method, given by its name or by its settings with the name.

    In a `stored` run settings without effect are accepted. An unknown method or setting, or an invalid value,
    raises a `ConfigError`.
    """
    data = {"name": value} if isinstance(value, str) else dict(value)
    name = data.get("name", DEFAULT_METHOD)
    method = METHODS.find(name)
    try:
        return method.config.model_validate(
            {**method.defaults, **data, "name": name}, context=STORED if stored else None
        )
    except ValidationError as error:
        for key in sorted(data.keys() - method.config.model_fields.keys()):
            if have := [n for n, other in METHODS.usable() if key in other.config.model_fields]:
                raise ConfigError(
                    f"The method {name!r} has no setting {key!r}: leave it out, or choose a method that has "
                    f"it ({', '.join(sorted(have))})."
                ) from error
        raise ConfigError(validation_sentence(error, method.config, ("method",))) from error


def build(
    config: MethodConfig, backbone: Backbone, num_data: int, adapter: AdapterOptions
) -> tuple[AdaptedLM, SiteGuide]:
    """Make the model and the guide of a method, for `num_data` training examples.

    Raises:
        ConfigError: model or guide has a persistent buffer, which runs do not save.
    """
    model, guide = METHODS[config.name].build(backbone, num_data, adapter, config)
    for part in (model, guide):
        saved = dict(part.named_parameters())
        if lost := [name for name in part.state_dict() if name not in saved]:
            raise ConfigError(
                f"The {type(part).__name__} of {config.name!r} has the buffer {lost[0]!r}, but runs save "
                "only parameters: make it a parameter (`frozen` if untrained), or use persistent=False."
            )
    return model, guide
