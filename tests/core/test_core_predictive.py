"""`pyro.infer.Predictive`, in sequence and in parallel, and our prediction: one distribution."""

import pyro
import pytest
import torch
from core_cases import bara_pair, lora_pair, make_batch, unlabelled
from pyro.infer import Predictive
from torch import Tensor

from bara_pyro.core.prediction import predict
from bara_pyro.guides.gamma import GammaGuide
from bara_pyro.guides.weibull import WeibullGuide

S = 300


def toy(form: str = "gate", guide: type = WeibullGuide, **options: object) -> tuple:
    return bara_pair(guide=guide, seed=2, scale=0.1, form=form, **options)


def returned(pair: tuple, samples: int, parallel: bool) -> Tensor:
    """Probabilities, `S x B x C`."""
    predictive = Predictive(
        pair[0], guide=pair[1], num_samples=samples, parallel=parallel, return_sites=("_RETURN",)
    )
    return predictive(unlabelled())["_RETURN"].double().exp().reshape(samples, 4, 3)


def agree(first: Tensor, second: Tensor) -> None:
    """Mean and variance over draws, each within 4.5 standard errors (24 numbers)."""

    def moments(p: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        square = (p - p.mean(0)).square()
        return p.mean(0), p.var(0) / len(p), square.mean(0), square.var(0) / len(p)

    a, b = moments(first), moments(second)
    assert ((a[0] - b[0]).abs() < 4.5 * (a[1] + b[1]).sqrt()).all()
    assert ((a[2] - b[2]).abs() < 4.5 * (a[3] + b[3]).sqrt()).all()


@pytest.mark.parametrize(("form", "guide"), [("gate", WeibullGuide), ("additive", GammaGuide)])
def test_three_roads_one_distribution(form: str, guide: type) -> None:
    pair = toy(form, guide)
    ours = predict(*pair, make_batch(), samples=2 * S).exp()
    assert (ours.std(0) > 5e-3).all()  # there is something to agree on
    pyro.set_rng_seed(5)
    parallel = returned(pair, 2 * S, parallel=True)
    sequential = returned(pair, S // 2, parallel=False)
    agree(ours, parallel)
    agree(ours, sequential)
    agree(parallel, sequential)


@pytest.mark.parametrize("latent", ["phi", "theta"])
def test_one_kind_of_latent(latent: str) -> None:
    pair = toy(latent=latent)
    pyro.set_rng_seed(6)
    agree(predict(*pair, make_batch(), samples=2 * S).exp(), returned(pair, 2 * S, parallel=True))


def test_rows_share_phi_and_not_theta() -> None:
    # The correlation of two rows over draws, which marginal moments do not see.
    pair = toy(latent="phi")
    pyro.set_rng_seed(7)
    same = unlabelled(rows=((5, 7, 9),) * 4)
    out = Predictive(pair[0], guide=pair[1], num_samples=20, parallel=True, return_sites=("_RETURN",))(same)
    p = out["_RETURN"].reshape(20, 4, 3)
    assert (p - p[:, :1]).abs().max() < 1e-5
    assert p.std(0).min() > 1e-4


@pytest.mark.parametrize("parallel", [False, True])
def test_the_answer_is_drawn_from_the_probabilities(parallel: bool) -> None:
    pair = toy()
    pyro.set_rng_seed(8)
    count = S if parallel else S // 3
    predictive = Predictive(pair[0], guide=pair[1], num_samples=count, parallel=parallel, return_sites=("y",))
    y = predictive(unlabelled())["y"].reshape(count, 4)
    counts = torch.nn.functional.one_hot(y, 3).double()
    draws = predict(*pair, make_batch(), samples=2 * S).exp()
    truth = draws.mean(0)
    # From the truth: a count of a rare answer is too skew to estimate its own error.
    error = (truth * (1 - truth) / count + draws.var(0) / (2 * S)).sqrt()
    assert ((counts.mean(0) - truth).abs() < 4.5 * error).all()


@pytest.mark.parametrize("parallel", [False, True])
def test_shapes_of_the_sites(parallel: bool) -> None:
    pair = toy()
    out = Predictive(pair[0], guide=pair[1], num_samples=5, parallel=parallel)(unlabelled())
    shapes = {name: tuple(value.shape) for name, value in out.items()}
    assert shapes["y"] == (5, 4, 1)
    assert shapes["phi"] == (5, 1, 5, 3)
    assert shapes["theta/model.layers.0.self_attn.q_proj"] == (5, 4, 7, 3)
    assert shapes["theta/lm_head"] == (5, 4, 1, 3)


@pytest.mark.parametrize("parallel", [False, True])
def test_a_program_without_latents(parallel: bool) -> None:
    model, _ = lora_pair()
    predictive = Predictive(model, num_samples=4, parallel=parallel, return_sites=("_RETURN", "y"))
    out = predictive(unlabelled())
    assert out["y"].shape == (4, 4, 1)
    with torch.no_grad():
        truth = model.forward(unlabelled())
    torch.testing.assert_close(out["_RETURN"].reshape(-1, 4, 3)[0], truth)
