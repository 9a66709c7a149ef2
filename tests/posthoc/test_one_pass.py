"""One forward in place of many draws: the fit against a minimiser of its own, and where it applies."""

import math
from dataclasses import replace

import pytest
import torch
from core_cases import bara_pair, lora_pair, make_batch, unlabelled
from posthoc_cases import Evidence
from scipy import optimize
from torch import Tensor
from torch.testing import assert_close

from bara_pyro.core.likelihood import TextLikelihood
from bara_pyro.core.prediction import predict
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError, DataError
from bara_pyro.metrics import posterior_predictive
from bara_pyro.models.bara import BaRA
from bara_pyro.posthoc.correction import FEWEST
from bara_pyro.posthoc.corrections import Corrections
from bara_pyro.posthoc.one_pass import RIDGE, OnePass

WIDTH = 4


def toy(rows: int = 200) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities, states, and a target whose temperature goes with the first state."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(rows, 3, generator=generator, dtype=torch.float64)
    states = 1 + 3 * torch.randn(rows, WIDTH, generator=generator)
    scale = (-0.4 + 0.2 * states[:, :1].double() / 3).exp()
    return logits.log_softmax(-1), states, (logits * scale).log_softmax(-1)


def test_what_a_row_does_not_offer_is_not_fitted_to() -> None:
    """The same temperatures where rows say of an answer that they lack whatever they like."""
    log_probs, states, target = toy()
    missing = torch.zeros(200, 3, dtype=torch.bool)
    missing[::2, 2] = True
    found, told = [], []
    for noise in (0.0, 3.0):
        said = (target + noise * missing).masked_fill(missing, -math.inf).log_softmax(-1)
        one = OnePass(WIDTH)
        told.append(one.fit(Evidence(points_and_states=(log_probs, states), average=said)))
        found.append(one.weights.clone())
    assert torch.equal(*found)
    own = said.exp() * (said - one(log_probs, states).masked_fill(missing, -math.inf).log_softmax(-1))
    assert told[0]["kl_after"] == pytest.approx(float(own.masked_fill(missing, 0).sum(-1).mean()), rel=1e-4)
    assert told[0]["kl_after"] < 0.2 * told[0]["kl_before"]


def test_a_program_is_fitted_to_what_rows_offer() -> None:
    torch.manual_seed(0)
    model, guide = bara_pair("llama", form="gate")
    rows = [replace(make_batch(), labels=None, ids=tuple(f"{k}-{i}" for i in range(4))) for k in range(4)]
    offered = torch.ones(16, 3, dtype=torch.bool)
    offered[::2, 2] = False
    told = Corrections(model, one_pass=True).fit(model, guide, rows, samples=6, offered=offered)
    points = torch.cat([predict(model, guide, batch, samples=0)[0] for batch in rows])
    drawn = torch.cat([predict(model, guide, batch, samples=6) for batch in rows], dim=1)
    average = posterior_predictive(drawn.masked_fill(~offered, -math.inf).log_softmax(-1))
    points = points.masked_fill(~offered, -math.inf).log_softmax(-1)
    kl = (average.exp() * (average - points)).masked_fill(~offered, 0).sum(-1).mean()
    assert told["one_pass_kl_before"] == pytest.approx(float(kl), rel=1e-4)


def test_fit_by_scipy_on_features_of_a_loop() -> None:
    log_probs, states, target = toy(60)
    one = OnePass(WIDTH)
    told = one.fit(Evidence(points_and_states=(log_probs, states), average=target))
    mean, deviation = states.double().mean(0), states.double().std(0)
    rows = []
    for logits, state in zip(log_probs, states.double(), strict=True):
        p = logits.exp()
        size = math.sqrt(sum((float(z) - float(logits.mean())) ** 2 for z in logits) / 3)
        entropy = -sum(float(a) * math.log(float(a)) for a in p)
        rows.append([1.0, entropy, size, *((state - mean) / deviation).tolist()])
    phi = torch.tensor(rows, dtype=torch.float64)
    assert_close(one.features(log_probs, states), phi, rtol=1e-5, atol=1e-5)

    def objective(weights: object) -> float:
        u = torch.as_tensor(weights, dtype=torch.float64)
        found = (log_probs * (phi @ u).exp()[:, None]).log_softmax(-1)
        divergence = (target.exp() * (target - found)).sum(-1).mean()
        return float(divergence + RIDGE * (u**2).sum())

    best = optimize.minimize(objective, torch.zeros(phi.shape[1]).numpy(), method="BFGS", tol=1e-10)
    assert_close(one.weights.double(), torch.from_numpy(best.x), rtol=1e-3, atol=1e-4)
    found = one(log_probs, states)
    kl = (target.exp() * (target - found)).sum(-1).mean()
    assert told["kl_after"] == pytest.approx(float(kl), rel=1e-4)
    before = (target.exp() * (target - log_probs)).sum(-1).mean()
    assert told["kl_before"] == pytest.approx(float(before))
    assert told["kl_after"] < 0.5 * told["kl_before"]


def known() -> list[Batch]:
    generator = torch.Generator().manual_seed(0)
    return [
        replace(
            make_batch(
                rows=[tuple(torch.randint(3, 50, (4,), generator=generator).tolist()) for _ in range(4)]
            ),
            labels=None,
            ids=tuple(f"{i}-{k}" for k in range(4)),
        )
        for i in range(8)
    ]


def test_without_draws_comes_near_the_average_of_draws() -> None:
    torch.manual_seed(0)
    pair = bara_pair("llama", scale=1.0, form="gate", fit={"init_kappa": 1.0})
    own = Corrections(pair[0], one_pass=True)
    rows, batch = known(), unlabelled()
    plain, drawn = own.predict(*pair, batch, samples=0), own.predict(*pair, batch, samples=8)
    assert_close(plain, predict(*pair, batch, samples=0), rtol=0, atol=0)
    told = own.fit(*pair, rows, samples=64)
    assert told["one_pass_rows"] == 32
    assert told["one_pass_kl_after"] < 0.7 * told["one_pass_kl_before"]
    assert_close(own.predict(*pair, batch, samples=8), drawn, rtol=0, atol=0)  # draws are what they were
    found = own.predict(*pair, batch, samples=0)
    assert not torch.allclose(found, plain)
    assert_close(found.exp().sum(-1), torch.ones(1, len(batch), dtype=torch.float64))
    assert_close(own.predict(*pair, batch, samples=0, memory_budget=1), found, rtol=1e-5, atol=1e-5)
    for i in range(len(batch)):  # whatever else is in the batch
        alone = own.predict(*pair, batch.questions(slice(i, i + 1)), samples=0)
        assert_close(alone[:, 0], found[:, i], rtol=1e-5, atol=1e-5)
    # On the rows of the fit, with other draws: still nearer to their average than the mean gates are.
    apart = []
    for row in rows:
        average = posterior_predictive(own.predict(*pair, row, samples=64, seed=1))
        apart.append((average.exp() * (average - own.predict(*pair, row, samples=0)[0])).sum(-1))
    assert float(torch.cat(apart).mean()) < 0.8 * told["one_pass_kl_before"]


def test_what_cannot_be_is_refused() -> None:
    pair, lora = bara_pair("llama"), lora_pair("llama")
    with pytest.raises(ConfigError, match="this program has none that differ"):
        Corrections(lora[0], one_pass=True).fit(*lora, known())
    with pytest.raises(ConfigError, match="One-pass predictions need answers of one token"):
        Corrections(BaRA(pair[0].backbone, 4, likelihood=TextLikelihood()), one_pass=True)
    with pytest.raises(DataError, match=f"4 training rows .* at least {FEWEST}"):
        Corrections(pair[0], one_pass=True).fit(*pair, known()[:1])


def test_a_second_fit_finds_what_the_first_found() -> None:
    pair = bara_pair("llama", scale=1.0, form="gate", num_data=32, fit={"init_kappa": 1.0})
    own = Corrections(pair[0], one_pass=True, distance_aware=True)
    first = own.fit(*pair, known(), samples=4)
    assert {"distance_radius", "one_pass_kl_after"} <= first.keys()
    assert own.fit(*pair, known(), samples=4) == pytest.approx(first)


def test_it_knows_nothing_of_the_noise_of_foreign_rows() -> None:
    """The fit is that without the noise, though here every row is a foreign one."""
    model, guide = bara_pair(num_data=64, seed=0, scale=0.5)
    batches = [make_batch() for _ in range(8)]
    alone, both = (Corrections(model, one_pass=True, distance_aware=aware) for aware in (False, True))
    for own in (alone, both):
        own.fit(model, guide, batches)
    both.distance.radius.zero_()
    assert both.distance.fitted
    both.fit(model, guide, batches)
    assert torch.equal(alone.one_pass.weights, both.one_pass.weights)
