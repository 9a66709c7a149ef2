"""What a run cannot end with is said before it is trained; what stopped is treated as such."""

from pathlib import Path

import pytest
import torch
from app_cases import Bara, Place, assert_one_sentence, write_rows
from pyro import distributions as dist
from torch import Tensor

from bara_pyro.guides.families import FAMILIES
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.manifest import LOG, SPLIT_HALF_FOLDER
from bara_pyro.runs.system import build_system
from bara_pyro.runs.train import train


@pytest.mark.parametrize(
    ("method", "settings", "said"),
    [
        (
            "lora",
            {"adapter.distance_aware": True, "task.limit": 8},
            "8 training rows are too few for distance_aware",
        ),
        (
            "bara-gate",
            {"adapter.one_pass": True, "task.limit": 8},
            "8 training rows are too few for one_pass",
        ),
        ("temperature", {"adapter.one_pass": True}, "has no validation rows"),
        ("laplace", {"adapter.one_pass": True}, "the method 'laplace' has none that differ"),
        ("vbll", {"adapter.target_modules": ["lm_head"]}, "which the Bayesian last layer replaces"),
        ("bara", {"method.latent": "theta", "method.phi_prior": "lognormal"}, "latent=theta"),
        ("bara", {"method.latent": "phi", "method.theta_prior": "lognormal"}, "latent=phi"),
        ("bara", {"method.latent": "phi", "method.guide": "weibull-coupled"}, "use the guide 'weibull'"),
    ],
)
def test_refused_before_the_first_step(
    place: Place, tmp_path: Path, bara: Bara, method: str, settings: dict[str, object], said: str
) -> None:
    out = tmp_path / "run"
    assert_one_sentence(bara(*place.arguments(out, method, **settings)), said)
    assert not (out / LOG).exists()


def test_noise_is_not_fitted_to_replies(place: Place, tmp_path: Path, bara: Bara) -> None:
    told = [
        {"prompt": f"is the {thing} red ?", "completion": " yes"} for thing in ("fox", "hen", "cat", "owl")
    ]
    rows = write_rows(tmp_path / "replies.jsonl", told)
    out = tmp_path / "run"
    given = place.arguments(out, "tfb", **{"task.likelihood": "completion", "task.name": str(rows)})
    del given[given.index("--task") : given.index("--task") + 2]
    assert_one_sentence(bara(*given), "the model learns replies")
    assert not (out / LOG).exists()


def test_one_pass_stands_for_draws_that_are_fitted_after_training(place: Place, tmp_path: Path) -> None:
    system = build_system(place.config(method="tfb", adapter__one_pass=True, train__steps=8, train__lr=0.05))
    train(system, tmp_path / "run")
    assert system.corrections.one_pass is not None
    assert float(system.corrections.one_pass.weights.abs().max()) > 0
    rows = system.split("test")
    mean, drawn = draw(system, rows, 0), draw(system, rows, 5)
    assert not drawn[0].equal(drawn[1])
    assert draw(load_system(tmp_path / "run"), rows, 0).equal(mean)


class Undrawable(dist.LogNormal):
    """A distribution of its own, which training can draw from and prediction cannot."""

    def rsample(self, sample_shape: tuple[int, ...] = ()) -> Tensor:
        return 2 * super().rsample(torch.Size(sample_shape))


class Foreign(WeibullGuide):
    """A guide of somebody else's."""

    def family(self, mean: Tensor, kappa: Tensor) -> dist.TorchDistribution:
        return Undrawable(mean.log(), kappa)


class Discrete(WeibullGuide):
    """One whose draws have no gradient."""

    def family(self, mean: Tensor, kappa: Tensor) -> dist.TorchDistribution:
        return dist.Poisson(mean)


@pytest.mark.parametrize(
    ("guide", "said"),
    [
        (Foreign, "A Undrawable has no icdf"),
        (Discrete, "from a Poisson, which has no rsample"),
    ],
)
def test_a_guide_that_lacks_something_is_refused_before_a_step(
    place: Place, tmp_path: Path, bara: Bara, monkeypatch: pytest.MonkeyPatch, guide: type, said: str
) -> None:
    monkeypatch.setattr(FAMILIES, "_items", {**FAMILIES, "foreign": guide})
    settings = {"method.guide": "foreign", "train.sampled_kl": True}
    arguments = place.arguments(tmp_path / "run", "bara-gate", **settings)
    assert_one_sentence(bara(*arguments), said)
    assert not (tmp_path / "run" / "train_log.jsonl").exists()


class Own(WeibullGuide):
    """Somebody else's, and right."""


def test_a_guide_of_ones_own_learns_replies(
    place: Place, tmp_path: Path, bara: Bara, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"prompt": "is the fox red ?", "completion": " yes"} for _ in range(8)]
    monkeypatch.setattr(FAMILIES, "_items", {**FAMILIES, "own": Own})
    settings = {"method.guide": "own", "task.likelihood": "completion"}
    settings |= {"task.name": write_rows(tmp_path / "replies.jsonl", rows), "train.steps": 2}
    arguments = place.arguments(tmp_path / "run", "bara-gate", **settings)
    del arguments[arguments.index("--task") : arguments.index("--task") + 2]
    done = bara(*arguments)
    assert done.code == 0, done.err


def test_a_run_that_stopped_in_split_half_calibration_is_overwritten(
    place: Place, tmp_path: Path, bara: Bara
) -> None:
    """With few rows split-half calibration is the default; a lower rate may follow in the same folder."""
    out = tmp_path / "run"
    broken = place.arguments(out, "bara-gate", **{"adapter.calibrated": True, "train.lr": 1e30})
    assert_one_sentence(bara(*broken), "Split-half calibration stopped", "lower the learning rate")
    assert (out / SPLIT_HALF_FOLDER).is_dir()
    again = place.arguments(out, "bara-gate", **{"adapter.calibrated": True, "train.lr": 1e-3})
    assert_one_sentence(bara(*again), "already holds a run", "--overwrite")
    done = bara(*again, "--overwrite")
    assert done.code == 0, done.err
    assert not (out / SPLIT_HALF_FOLDER).exists()


def test_a_guide_that_no_lora_is_near_is_named(place: Place, tmp_path: Path, bara: Bara) -> None:
    out = tmp_path / "run"
    assert bara(*place.arguments(out, "bara-gate", **{"method.guide": "weibull-coupled"})).code == 0
    refused = bara("export", out, "--out", tmp_path / "lora")
    assert_one_sentence(refused, "The method 'bara-gate' with the guide 'weibull-coupled'", "'weibull'")


def test_laplace_of_layers_that_are_computed_again(place: Place, tmp_path: Path) -> None:
    """Its Jacobians take several backward passes through one graph."""
    found = []
    for again in (False, True):
        system = build_system(place.config(method="laplace", train__checkpointing=again, train__steps=3))
        train(system, tmp_path / str(again))
        found.append(draw(system, system.split("test"), 4))
    assert found[0].equal(found[1])


@pytest.mark.slow
@pytest.mark.usefixtures("small_pictures")
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"method.theta_prior": "halfcauchy"}, "PAC-Bayes bound"),
        ({"method.phi_prior": "halfcauchy"}, "No PAC-Bayes bound: Site"),
    ],
)
def test_a_posterior_without_a_divergence_is_looked_at(
    place: Place, tmp_path: Path, bara: Bara, settings: dict[str, object], said: str
) -> None:
    out = tmp_path / "run"
    trained = bara(*place.arguments(out, "bara-gate", **{**settings, "train.sampled_kl": True}))
    assert trained.code == 0, trained.err
    looked = bara("inspect", out, "--deep", "--rows", "8", "--samples", "3")
    assert looked.code == 0, looked.err
    assert said in (out / "report" / "index.html").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("small_pictures")
def test_a_point_is_looked_at(place: Place, tmp_path: Path, bara: Bara) -> None:
    """Gates that do not differ from draw to draw, and hardly from each other."""
    out = tmp_path / "run"
    settings = {"method.guide": "delta", "train.lr": 1e-5}
    assert bara(*place.arguments(out, "bara-gate", **settings)).code == 0
    looked = bara("inspect", out, "--deep", "--rows", "8", "--samples", "50")
    assert looked.code == 0, looked.err
