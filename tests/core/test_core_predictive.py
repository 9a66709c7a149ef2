"""`pyro.infer.Predictive`, in sequence and in parallel, and our prediction: one distribution."""

import pyro
import pytest
import torch
from core_cases import backbone, bara_pair, lora_pair, make_batch, randomise, unlabelled
from pyro import poutine
from pyro.infer import Predictive, WeighedPredictive
from pyro.infer.autoguide import AutoDelta, AutoNormal
from torch import Tensor

from bara_pyro.core.likelihood import CompletionLikelihood, TextLikelihood
from bara_pyro.core.prediction import predict
from bara_pyro.data.replies import EncodedReply, reply_batch
from bara_pyro.data.split import with_texts
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError
from bara_pyro.guides.gamma import GammaGuide
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.models.bara import BaRA
from bara_pyro.models.gaussian_lora import GaussianLoRA
from bara_pyro.models.lora import LoRA
from bara_pyro.models.scalabl import ScalaBL
from bara_pyro.models.vbll import VBLL

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
@pytest.mark.slow
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


PROGRAMS = {
    "gate phi": lambda: BaRA(backbone(), 4, r=2, form="gate", latent="phi", phi_prior="lognormal"),
    "additive phi": lambda: BaRA(backbone(), 4, r=2, form="additive", latent="phi"),
    "both": lambda: BaRA(backbone(), 4, r=2, form="gate"),
    "centred": lambda: BaRA(backbone(), 4, r=2, centred=True),
    "theta": lambda: BaRA(backbone(), 4, r=2, form="gate", latent="theta"),
    "scalabl": lambda: ScalaBL(backbone(), 4, r=2),
    "weights": lambda: GaussianLoRA(backbone(), 4, r=2, random="AB", prior_scale=0.2),
    "last layer": lambda: VBLL(backbone(), 4, r=2, answers=4),
}


@pytest.mark.parametrize("samples", [1, 3, 4, 5])
@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_draw_in_parallel_is_the_same_draw_alone(kind: str, samples: int) -> None:
    """Also where there are as many rows as draws, whose shapes Pyro's guides then confuse."""
    model = randomise(PROGRAMS[kind](), 0.25)
    guide = AutoNormal(model, init_scale=0.5)
    guide(make_batch())
    parts = Predictive(model, guide=guide, num_samples=samples, parallel=True)
    trace = parts.get_vectorized_trace(unlabelled())
    draws = trace.nodes["_RETURN"]["value"].reshape(samples, 4, 3)
    for draw in range(samples):
        values = {name: trace.nodes[name]["value"][draw] for name in model.latents.sites}
        values = {
            name: value.reshape(model.latents.sites[name].shape)
            for name, value in values.items()
            if not model.latents.sites[name].local
        } | {name: value for name, value in values.items() if model.latents.sites[name].local}
        with torch.no_grad():
            alone = poutine.condition(model.forward, data=values)(unlabelled())
        torch.testing.assert_close(draws[draw], alone, rtol=0, atol=5e-5)
    if samples > 1:
        assert draws.std(0).max() > 1e-3


def test_a_value_for_each_row_of_what_rows_share_is_refused() -> None:
    model, _ = toy(latent="phi")
    several = torch.ones(4, 5, 3)
    with pytest.raises(ConfigError, match=r"4 values.* 1 draws"):
        poutine.condition(model.forward, data={"phi": several})(unlabelled())
    given = Predictive(model, posterior_samples={"phi": several * torch.arange(1, 5)[:, None, None]})
    sequential = given(unlabelled())["y"]
    assert sequential.shape == (4, 4, 1)


def labelled_batches() -> dict[str, tuple[object, Batch]]:
    plain = make_batch()
    texts = with_texts(plain, [row.tolist() for row in plain.input_ids], [[[7, 8], [3], [50, 2]]] * 4)
    replies = reply_batch([[EncodedReply((5, 7), (9, 11, 4), "a")], [EncodedReply((3,), (4, 8), "b")]])
    return {
        "answer": (None, plain),
        "texts": (TextLikelihood(), texts),
        "completion": (CompletionLikelihood(), replies),
    }


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("guide", [WeibullGuide, AutoNormal, AutoDelta, None])
@pytest.mark.parametrize("kind", ["answer", "texts", "completion"])
@pytest.mark.slow
def test_labels_are_not_given_for_predictions(kind: str, guide: type | None, parallel: bool) -> None:
    likelihood, batch = labelled_batches()[kind]
    model = randomise(BaRA(backbone(), 4, r=2, form="gate", latent="phi", likelihood=likelihood), 0.1)
    known = batch.targets if kind == "completion" else batch.labels.unsqueeze(-1)
    made = None if guide is None else guide(model)
    how = {"num_samples": 30, "parallel": parallel, "return_sites": ("y",)}
    found = Predictive(model, guide=made, **how)(batch)["y"]
    assert found.shape == (30, *known.shape)
    wrong = (found != known).any(0)
    asked = batch.scored if kind == "completion" else torch.ones_like(wrong)
    assert wrong[asked].any()
    # The same as of rows whose answers nobody knows.
    pyro.set_rng_seed(2)
    first = Predictive(model, guide=made, **how)(batch)["y"]
    pyro.set_rng_seed(2)
    assert torch.equal(Predictive(model, guide=made, **how)(batch.unlabelled())["y"], first)


def test_given_posterior_samples_predict_too_and_weights_look_at_labels() -> None:
    model, guide = toy(latent="phi")
    draws = {"phi": torch.rand(40, 5, 3)}
    found = Predictive(model, posterior_samples=draws)(make_batch())["y"].reshape(40, 4)
    assert (found != make_batch().labels).any(0).all()
    weighed = WeighedPredictive(model, guide=guide, num_samples=50)(make_batch())
    with torch.no_grad():
        log_probs = [
            poutine.condition(model.forward, data={"phi": phi})(make_batch())
            for phi in weighed.samples["phi"].reshape(50, 5, 3)
        ]
    likelihood = torch.stack(log_probs)[:, torch.arange(4), make_batch().labels].sum(-1)
    nodes = [guide.posterior(guide.sites["phi"].weight, 3), torch.distributions.Gamma(1.0, 1.0)]
    phi = weighed.samples["phi"].reshape(50, 5, 3)
    gap = nodes[1].log_prob(phi).sum((-1, -2)) - nodes[0].log_prob(phi).sum(-1)
    torch.testing.assert_close(weighed.log_weights, (likelihood + gap).detach(), rtol=1e-4, atol=1e-3)


def test_a_program_without_gates_predicts_rows_with_labels() -> None:
    model = randomise(LoRA(backbone(), 4, r=2), 0.3)
    found = Predictive(model, num_samples=60)(make_batch())["y"].reshape(60, 4)
    assert (found != make_batch().labels).any()
