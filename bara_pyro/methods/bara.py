"""BaRA and its variants: one program, one of four guides."""

from pydantic import Field, NonNegativeFloat, PositiveInt, field_validator

from bara_pyro.core.backbone import Backbone
from bara_pyro.core.defaults import default
from bara_pyro.core.priors import make_prior
from bara_pyro.core.program import AdapterOptions
from bara_pyro.guides.amortized import Activation, AmortizedGuide, Shape, Width
from bara_pyro.guides.families import FAMILIES
from bara_pyro.methods.base import Method, MethodConfig, register_method
from bara_pyro.methods.space import RATES, SearchSpace
from bara_pyro.models.bara import BaRA, Form, Latent
from bara_pyro.types import Json


class BaRAConfig(MethodConfig):
    """Settings of BaRA."""

    form: Form = Field(
        default(BaRA, "form"), description="'additive': B (Phi * theta); 'gate': B ((Phi * theta) * A x)"
    )
    latent: Latent = Field(default(BaRA, "latent"), description="'phi*theta', 'phi' or 'theta'")
    phi_prior: Json = Field(
        default(BaRA, "phi_prior"), validate_default=True, description="prior of Phi and its hyper-parameters"
    )
    theta_prior: Json = Field(
        default(BaRA, "theta_prior"),
        validate_default=True,
        description="prior of theta and its hyper-parameters",
    )
    beta_phi: NonNegativeFloat = Field(
        default(BaRA, "beta_phi"), description="weight of KL(Phi); 1 is the exact ELBO"
    )
    beta_theta: NonNegativeFloat = Field(
        default(BaRA, "beta_theta"), description="weight of KL(theta); 1 is the exact ELBO"
    )
    guide: str = Field("weibull", description="posterior family: 'weibull', 'gamma', 'lognormal', 'delta'")
    shape: Shape = Field(
        default(AmortizedGuide, "shape"),
        description="'kappa': softplus gives 1/k; 'k': softplus gives k (the text)",
    )
    shape_width: Width = Field(
        default(AmortizedGuide, "shape_width"), description="'vector' or 'scalar' noise level of a gate"
    )
    init_kappa: float = Field(
        default(AmortizedGuide, "init_kappa"),
        gt=0,
        description="noise level at the start; Algorithm 1: 0.693",
    )
    max_kappa: float = Field(
        default(AmortizedGuide, "max_kappa"),
        gt=0,
        description="largest noise level; 1 is that of a Gamma(1, b) prior",
    )
    random_kappa: bool = Field(
        default(AmortizedGuide, "random_kappa"),
        description="start with random noise levels, as the paper's Algorithm 1",
    )
    normalize_input: bool | None = Field(
        default(AmortizedGuide, "normalize_input"),
        description="divide what the amortiser sees by its root mean square; null: in the gate form; "
        "Algorithm 1: false",
    )
    activation: Activation = Field(
        default(AmortizedGuide, "activation"), description="of theta's mean: 'softplus', 'relu', 'topk'"
    )
    top_k: PositiveInt = Field(default(AmortizedGuide, "top_k"), description="gates left open by 'topk'")

    @field_validator("guide")
    @classmethod
    def _guide(cls, value: str) -> str:
        FAMILIES.find(value)
        return value

    @field_validator("phi_prior", "theta_prior", mode="before")
    @classmethod
    def _prior(cls, value: object) -> object:
        if not isinstance(value, str | dict):
            return value  # pydantic says what is wrong with it
        prior: Json = {"name": value} if isinstance(value, str) else {"name": "gamma", **value}
        # An unknown name or hyper-parameter is an error now, not after loading a model.
        make_prior(str(prior["name"]), **{key: prior[key] for key in prior if key != "name"})
        return prior


def _build(
    backbone: Backbone, num_data: int, adapter: AdapterOptions, config: BaRAConfig
) -> tuple[BaRA, AmortizedGuide]:
    model = BaRA(
        backbone,
        num_data,
        form=config.form,
        latent=config.latent,
        phi_prior=config.phi_prior,
        theta_prior=config.theta_prior,
        beta_phi=config.beta_phi,
        beta_theta=config.beta_theta,
        **adapter,
    )
    guide = FAMILIES[config.guide](
        model,
        shape=config.shape,
        shape_width=config.shape_width,
        init_kappa=config.init_kappa,
        max_kappa=config.max_kappa,
        random_kappa=config.random_kappa,
        normalize_input=config.normalize_input,
        activation=config.activation,
        top_k=config.top_k,
    )
    return model, guide


register_method(
    Method(
        "bara",
        "BaRA, additive form: y = W0 x + s B (Phi * theta) (arXiv 2606.29184)",
        BaRAConfig,
        _build,
        display="BaRA",
        order=14,
        tags=frozenset({"ours", "main", "short", "spread"}),
        search=SearchSpace(RATES, "method.init_kappa", (0.25, 0.8)),
    )
)
register_method(
    Method(
        "bara-gate",
        "BaRA, gate form: y = W0 x + s B ((Phi * theta) * (A x)) (arXiv 2606.29184)",
        BaRAConfig,
        _build,
        {"form": "gate"},
        display="BaRA gate",
        order=15,
        tags=frozenset({"ours", "main", "short", "spread"}),
        search=SearchSpace(RATES, "method.init_kappa", (0.25, 0.8)),
    )
)
