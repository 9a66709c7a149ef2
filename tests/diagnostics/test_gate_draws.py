"""Draws of the gates: those that prediction averages over, in the places of their modules and rows."""

import pytest
import torch
from core_cases import backbone, hooked_forward, make_batch, randomise
from gate_cases import ONE_TOKEN, forward_with_gates, mean_gates, toy
from torch import Tensor
from torch.testing import assert_close

from bara_pyro.core.gate_draws import chosen_modules, gate_draws
from bara_pyro.core.prediction import predict
from bara_pyro.errors import ConfigError, DataError
from bara_pyro.guides.prior import PriorGuide
from bara_pyro.models.ensemble import Ensemble
from bara_pyro.models.lora import LoRA

S = 7


@pytest.mark.parametrize("form", ["additive", "gate"])
def test_the_gates_give_the_predictions(form: str) -> None:
    # Of rows of one token the last token's gates are all there are: put into a plain forward, they must
    # give the log-probabilities that were drawn with them.
    model, guide = toy(form=form)
    batch = make_batch(ONE_TOKEN)
    draws = gate_draws(model, guide, [batch], samples=S, seed=3)
    assert torch.equal(draws.log_probs, predict(model, guide, batch, samples=S, seed=3))
    for s in range(S):
        assert_close(
            forward_with_gates(model, batch, draws.psi[s]).double(), draws.log_probs[s], rtol=0, atol=1e-5
        )


def test_the_mean_gate() -> None:
    model, guide = toy(form="gate")
    batch = make_batch()
    draws = gate_draws(model, guide, [batch], samples=0)
    phi, theta = mean_gates(model, guide, batch)
    assert_close(draws.phi, phi[None], rtol=0, atol=1e-5)
    assert_close(draws.theta, theta[None], rtol=0, atol=1e-5)
    assert_close(draws.psi, (phi * theta)[None], rtol=0, atol=1e-5)


def test_rows_in_batches_and_in_pieces() -> None:
    model, guide = toy()
    whole = gate_draws(model, guide, [make_batch()], samples=S)
    parts = [make_batch(choose=[2]), make_batch(choose=[0, 3]), make_batch(choose=[1])]
    for budget in (None, 1):
        cut = gate_draws(model, guide, parts, samples=S, memory_budget=budget)
        assert cut.ids == ("c", "a", "d", "b")
        assert torch.equal(cut.phi, whole.phi)
        assert_close(cut.theta, whole.theta[:, [2, 0, 3, 1]], rtol=0, atol=1e-5)
        assert_close(cut.log_probs, whole.log_probs[:, [2, 0, 3, 1]], rtol=0, atol=1e-5)


def test_chosen_modules_are_those_of_the_whole() -> None:
    model, guide = toy()
    paths = [target.path for target in model.targets]
    chosen = [paths[4], paths[1]]
    part = gate_draws(model, guide, [make_batch()], samples=S, modules=chosen)
    whole = gate_draws(model, guide, [make_batch()], samples=S)
    assert part.modules == (paths[1], paths[4])  # in the model's order
    assert torch.equal(part.phi, whole.phi[:, [1, 4]])
    assert torch.equal(part.theta, whole.theta[:, :, [1, 4]])
    with pytest.raises(ConfigError, match="'nowhere'"):
        chosen_modules(model, ["nowhere"])


@pytest.mark.parametrize(("latent", "missing"), [("phi", "theta"), ("theta", "phi")])
def test_one_kind_of_gate(latent: str, missing: str) -> None:
    model, guide = toy(latent=latent)
    draws = gate_draws(model, guide, [make_batch()], samples=S)
    other = "theta" if missing == "phi" else "phi"
    assert getattr(draws, missing) is None
    assert torch.equal(draws.psi.squeeze(1), getattr(draws, other))


def test_activations_of_lora() -> None:
    torch.manual_seed(0)
    model = randomise(LoRA(backbone(), 4, r=3), 0.2)
    draws = gate_draws(model, PriorGuide(model), [make_batch()], samples=S)
    paths = [target.path for target in model.targets]
    last: dict[str, Tensor] = {}

    def change(path: str, x: Tensor) -> Tensor:
        adapter = model.adapters[path.replace(".", "/")]
        activation = x @ adapter.lora_A.T
        last[path] = activation[:, -1]
        return 16.0 / 3 * activation @ adapter.lora_B.T

    with torch.no_grad():
        log_probs = hooked_forward(make_batch(), model.backbone.lm, paths, "lm_head", change)
    assert draws.phi is None
    assert_close(draws.theta[0], torch.stack([last[p] for p in paths], dim=1), rtol=0, atol=1e-5)
    assert_close(draws.log_probs[0], log_probs.double(), rtol=0, atol=1e-5)
    assert torch.equal(draws.psi, draws.theta)


def test_what_cannot_be_drawn() -> None:
    model, guide = toy()
    with pytest.raises(DataError, match="No rows"):
        gate_draws(model, guide, [])
    ensemble = Ensemble(backbone(), 4, r=2, members=2)
    with pytest.raises(ConfigError, match="Ensemble has neither gates"):
        gate_draws(ensemble, PriorGuide(ensemble), [make_batch()])


def test_nothing_is_left_on_the_model() -> None:
    model = LoRA(backbone(), 4, r=2)
    gate_draws(model, PriorGuide(model), [make_batch()])
    assert all(adapter.tap is None for adapter in model.adapters.values())
