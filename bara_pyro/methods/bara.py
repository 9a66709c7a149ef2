"""BaRA in its additive form (`bara`) and gate form (`bara-gate`), with a choice of guides."""

from functools import partial
from typing import Annotated, ClassVar, Self

from pydantic import Field, NonNegativeFloat, ValidationInfo, field_validator, model_validator

from bara_pyro.core.priors import PRIORS, make_prior
from bara_pyro.core.program import AdapterOptions
from bara_pyro.errors import ConfigError
from bara_pyro.guides.amortized import Activation, AmortizedGuide, Shape, Width, start_kappa
from bara_pyro.guides.families import FAMILIES
from bara_pyro.lm.backbone import Backbone
from bara_pyro.methods.base import Method, MethodConfig, Start, pair, register_method, setting
from bara_pyro.models.bara import BaRA, Form, Latent
from bara_pyro.settings import Unread
from bara_pyro.types import Json

OF_PHI, OF_THETA = Unread("latent", ("theta",)), Unread("latent", ("phi",))


class _Noiseless:
    """The names of the families without a noise level, also of families registered later."""

    def __contains__(self, guide: object) -> bool:
        return not FAMILIES.find(guide).noisy


OF_NOISE = Unread("guide", _Noiseless())


class BaRAMethodConfig(MethodConfig):
    """Settings of BaRA's additive form, `B (Phi * theta)`."""

    form: ClassVar[Form] = "additive"

    centred: bool = setting(
        BaRA, "centred", "additive form: subtract the prior mean, B (Phi * (theta - E[theta]))"
    )
    latent: Latent = setting(BaRA, "latent", "gates to use: 'phi*theta', 'phi' or 'theta'")
    phi_prior: Annotated[Json, OF_PHI] = setting(
        BaRA, "phi_prior", "prior of Phi: its name, or its name and hyperparameters", validate_default=True
    )
    theta_prior: Annotated[Json, OF_THETA] = setting(
        BaRA,
        "theta_prior",
        "prior of theta: its name, or its name and hyperparameters",
        validate_default=True,
    )
    beta_phi: Annotated[NonNegativeFloat, OF_PHI] = setting(
        BaRA, "beta_phi", "weight of KL(Phi); 1 is the exact ELBO"
    )
    beta_theta: Annotated[NonNegativeFloat, OF_THETA] = setting(
        BaRA, "beta_theta", "weight of KL(theta); 1 is the exact ELBO"
    )
    guide: str = Field("weibull", description=f"posterior family: {', '.join(FAMILIES)}")
    shape: Annotated[Shape, OF_NOISE] = setting(
        AmortizedGuide,
        "shape",
        "softplus output of the amortiser: 'kappa' is 1/k; 'k' is the shape k, as in the paper's text",
    )
    shape_width: Annotated[Width, OF_THETA, OF_NOISE] = setting(
        AmortizedGuide, "shape_width", "noise level: 'vector' for one per rank unit, or 'scalar' for one"
    )
    init_kappa: Annotated[float | None, OF_NOISE] = setting(
        AmortizedGuide,
        "init_kappa",
        "initial noise level; null: 0.5 for up to 2,560 training rows, then proportional to 1 / sqrt(rows); "
        "Algorithm 1 has 0.693",
        gt=0,
    )
    max_kappa: Annotated[float, OF_NOISE] = setting(
        AmortizedGuide, "max_kappa", "largest noise level; 1 is the noise level of a Gamma(1, b) prior", gt=0
    )
    random_kappa: Annotated[bool, OF_THETA, OF_NOISE] = setting(
        AmortizedGuide, "random_kappa", "start with random noise levels, as in the paper's Algorithm 1"
    )
    normalize_input: Annotated[bool | None, OF_THETA] = setting(
        AmortizedGuide,
        "normalize_input",
        "divide the amortiser's input by its root mean square; null: only in the gate form; Algorithm 1 "
        "does not",
    )
    activation: Annotated[Activation, OF_THETA] = setting(
        AmortizedGuide,
        "activation",
        "activation of theta's mean: 'softplus', 'relu' or 'topk' (keeps the four largest)",
    )

    def for_rows(self, rows: int) -> Self:
        """Return the settings with an explicit initial noise level, so that a saved run can be read back."""
        if self.init_kappa is not None or not FAMILIES[self.guide].noisy:
            return self
        return self.model_copy(update={"init_kappa": min(start_kappa(rows), self.max_kappa)})

    @model_validator(mode="after")
    def _coupled_to_something(self) -> Self:
        if self.guide == "weibull-coupled" and self.latent != "phi*theta":
            raise ConfigError(
                f"method.guide=weibull-coupled needs both Phi and theta, and latent={self.latent} has only "
                "one of them: use the guide 'weibull'."
            )
        return self

    @field_validator("guide")
    @classmethod
    def _guide(cls, value: str) -> str:
        FAMILIES.find(value)
        return value

    @field_validator("phi_prior", "theta_prior", mode="before")
    @classmethod
    def _prior(cls, value: object, info: ValidationInfo) -> object:
        if not isinstance(value, str | dict):
            raise ConfigError(
                f"method.{info.field_name}={value!r} is not a prior: give a name ({', '.join(PRIORS)}), or "
                "{name: ..., ...} with hyperparameters."
            )
        prior: Json = {"name": value} if isinstance(value, str) else {"name": "gamma", **value}
        # Fail on an unknown name or hyperparameter now, not after loading a model.
        make_prior(str(prior["name"]), **{key: prior[key] for key in prior if key != "name"})
        return prior


class BaRAGateConfig(BaRAMethodConfig):
    """Settings of BaRA's gate form, `B ((Phi * theta) * A x)`."""

    form: ClassVar[Form] = "gate"


def _build(
    backbone: Backbone, num_data: int, adapter: AdapterOptions, config: BaRAMethodConfig
) -> tuple[BaRA, AmortizedGuide]:
    return pair(partial(BaRA, form=config.form), FAMILIES[config.guide])(backbone, num_data, adapter, config)


def _around_given(model: BaRA, guide: AmortizedGuide) -> None:
    """Train only Phi, from the given adapter, which corresponds to Phi = 1."""
    model.requires_grad_(False)
    guide.centre(1.0)


# The default prior, Gamma(1, 1), has mean 1: its mean is the given adapter.
AROUND_GIVEN = Start(
    fixed={"method.latent": "phi"},
    presets={"train.lr": 0.02},
    begin=_around_given,
)

register_method(
    Method(
        "bara",
        "BaRA, additive form: y = W0 x + s B (Phi * theta) (arXiv 2606.29184)",
        BaRAMethodConfig,
        _build,
    )
)
register_method(
    Method(
        "bara-gate",
        "BaRA, gate form: y = W0 x + s B ((Phi * theta) * (A x)) (arXiv 2606.29184)",
        BaRAGateConfig,
        _build,
        start=AROUND_GIVEN,
    )
)
