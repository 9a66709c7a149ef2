"""The same model in Python and on the command line: one default for each setting."""

import inspect

import pytest
import torch
from core_cases import backbone

from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.core.optimizers import adamw, linear_schedule
from bara_pyro.core.prediction import predict
from bara_pyro.core.program import AdaptedLM
from bara_pyro.core.svi import SVI
from bara_pyro.errors import ConfigError
from bara_pyro.guides.delta import DeltaGuide
from bara_pyro.guides.families import FAMILIES
from bara_pyro.methods import METHODS, build, method_config
from bara_pyro.methods.base import given
from bara_pyro.runs.config import RunConfig
from bara_pyro.runs.sections import AdapterConfig, PredictConfig, TrainConfig
from bara_pyro.runs.system import adapter_options
from bara_pyro.types import default

PLAIN = (int, float, str, bool, tuple, type(None))


def required(made: object) -> dict[str, object]:
    """The arguments without a default, as they were given: of a program that serves several methods."""
    signature = inspect.signature(type(made)).parameters
    given = {"weights": "random"}
    names = [n for n, p in signature.items() if p.default is p.empty and p.kind is p.KEYWORD_ONLY]
    values = {given.get(name, name): value for name, value in vars(made).items()}
    if "random" in names:
        values["random"] = "".join(weight[-1] for weight in values["random"])
    return {name: values[name] for name in names}


def described(made: torch.nn.Module) -> dict[str, object]:
    out = {
        k: v for k, v in vars(made).items() if not k.startswith(("_", "adapters")) and isinstance(v, PLAIN)
    }
    priors = {k: str(v) for k, v in vars(made).items() if "prior" in k}
    sizes = {k: (tuple(v.shape), v.requires_grad) for k, v in made.named_parameters()}
    return {**out, **priors, **sizes, "weights": str(getattr(made, "weights", None))}


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_method_is_its_program_and_guide(name: str) -> None:
    config = method_config(name)
    model, guide = build(config, backbone(), 4, adapter_options(RunConfig()))
    form = {"form": "gate"} if name == "bara-gate" else {}
    # What several methods share and each sets in its own way is no default of any.
    shared = {"flipout": model.flipout} if getattr(model, "flipout", False) else {}
    if name == "laplace":
        shared["beta"] = model.beta  # no prior while training
    by_row = {"by_row": True} if name == "tfb" else {}
    twin = type(model)(backbone(), 4, **{**required(model), **form, **shared})
    assert described(twin) == described(model)
    assert described(type(guide)(twin, **by_row)) == described(guide)


def test_a_noise_level_of_a_family_without_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FAMILIES, "_items", dict(FAMILIES))
    FAMILIES.register("still", type("Still", (DeltaGuide,), {}))
    assert method_config({"name": "bara-gate", "guide": "still", "activation": "relu"}).guide == "still"
    with pytest.raises(ConfigError, match=r"init_kappa=0\.3 has no effect with method\.guide=still"):
        method_config({"name": "bara-gate", "guide": "still", "init_kappa": 0.3})


@pytest.mark.parametrize("name", [name for name in FAMILIES if FAMILIES[name].noisy])
def test_every_family_takes_the_settings_of_its_guide(name: str) -> None:
    """Also one whose constructor passes options on: they were left out of it."""
    settings = {
        "shape": "k",
        "shape_width": "scalar",
        "max_kappa": 0.7,
        "init_kappa": 0.3,
        "activation": "relu",
    }
    config = method_config({"name": "bara-gate", "guide": name, **settings})
    assert given(FAMILIES[name], config).items() >= settings.items()
    guide = build(config, backbone(), 4, adapter_options(RunConfig()))[1]
    assert (guide.shape, guide.max_kappa, guide.activation) == ("k", 0.7, "relu")


def test_the_helpers_agree_with_the_sections() -> None:
    pairs = [
        (AdapterConfig(), [(AdaptedLM, n) for n in ("r", "lora_alpha", "target_modules")]),
        (
            TrainConfig(),
            [
                (adamw, "local_lr_scale"),
                (adamw, "weight_decay"),
                (linear_schedule, "warmup"),
                (SVI, "clip_norm"),
                (SVI, "autocast"),
                (MeanFieldELBO, "sampled_kl"),
            ],
        ),
        (PredictConfig(), [(predict, "memory_budget"), (predict, "seed")]),
    ]
    for section, found in pairs:
        for function, name in found:
            assert getattr(section, name) == default(function, name)
    assert default(predict, "samples") in PredictConfig().samples


def test_what_has_no_default_is_said() -> None:
    for name in ("backbone", "colour"):
        with pytest.raises(LookupError, match=name):
            default(AdaptedLM, name)
