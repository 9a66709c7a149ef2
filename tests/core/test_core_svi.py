"""Our SVI: one optimiser over everything, accumulation, clipping, schedule, and what it refuses."""

import math

import pyro
import pytest
import torch
from core_cases import bara_pair, lora_pair, make_batch, trainer, unlabelled
from torch.testing import assert_close

import bara_pyro as bp
from bara_pyro.core.optimizers import adamw, linear_schedule, parameters
from bara_pyro.core.svi import SVI
from bara_pyro.errors import BackboneError, ConfigError, DataError, TrainingError
from bara_pyro.guides.delta import DeltaGuide
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.models.bara import BaRA
from bara_pyro.models.lora import LoRA

N = 12
HALVES = ([0], [1, 2, 3])  # unequal, and of unequal padding


def lora() -> tuple[LoRA, DeltaGuide]:
    torch.manual_seed(7)
    return lora_pair(num_data=N)


def bara(**options: object) -> tuple[BaRA, WeibullGuide]:
    return bara_pair(num_data=N, seed=7, form="gate", **{"beta_theta": 1.0, **options})


def sgd(pair: tuple, lr: float = 1.0) -> torch.optim.SGD:
    return torch.optim.SGD(parameters(*pair), lr=lr)


def snapshot(svi: SVI) -> list[torch.Tensor]:
    return [p.detach().clone() for p in svi.parameters]


def unchanged(svi: SVI, before: list[torch.Tensor]) -> bool:
    return all(torch.equal(p, q) for p, q in zip(svi.parameters, before, strict=True))


def test_accumulation_equals_one_batch_for_lora() -> None:
    results = []
    for batches in ([make_batch()], [make_batch(choose=rows) for rows in HALVES]):
        pair = lora()
        svi = SVI(*pair, sgd(pair))
        loss = svi.step(*batches)
        results.append((loss, svi.last, snapshot(svi)))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-6)
    assert results[0][1] == pytest.approx(results[1][1], rel=1e-5)
    for whole, parts in zip(results[0][2], results[1][2], strict=True):
        assert_close(parts, whole, rtol=1e-5, atol=1e-6)


def test_accumulation_equals_one_batch_for_the_divergences() -> None:
    # B = 0: the guide's gradient is that of the divergences, which have no noise; phi's is counted once.
    results = []
    for batches in ([make_batch()], [make_batch(choose=rows) for rows in HALVES]):
        pair = bara()
        svi = SVI(*pair, sgd(pair, 0.1))
        svi.step(*batches)
        results.append((svi.last, [p.detach().clone() for p in pair[1].parameters()]))
    for key in ("loss", "nll", "kl_phi", "kl_theta"):
        assert results[0][0][key] == pytest.approx(results[1][0][key], rel=1e-5), key
    for whole, parts in zip(results[0][1], results[1][1], strict=True):
        assert_close(parts, whole, rtol=1e-5, atol=1e-6)


def test_what_a_step_reports() -> None:
    pair = bara(beta_theta=0.01, beta_phi=0.5)
    svi = SVI(*pair, sgd(pair))
    loss = svi.step(make_batch())
    last = svi.last
    assert set(last) == {"loss", "nll", "kl_phi", "kl_theta", "grad_norm"}
    assert loss == pytest.approx(N * last["loss"])
    # Per example: the loss is nll + beta_theta kl_theta + beta_phi kl_phi / N.
    expected = last["nll"] + 0.01 * last["kl_theta"] + 0.5 * last["kl_phi"] / N
    assert last["loss"] == pytest.approx(expected, rel=1e-6)


def test_evaluate_loss_is_the_loss_of_a_step_and_changes_nothing() -> None:
    pair = bara()
    svi = SVI(*pair, sgd(pair))
    before = snapshot(svi)
    batches = [make_batch(choose=rows) for rows in HALVES]
    pyro.set_rng_seed(1)
    evaluated = svi.evaluate_loss(*batches)
    assert unchanged(svi, before)
    pyro.set_rng_seed(1)
    assert svi.step(*batches) == pytest.approx(evaluated, rel=1e-6)
    assert not unchanged(svi, before)


def test_the_parameter_store_stays_empty() -> None:
    pair = bara()
    svi = SVI(*pair, sgd(pair))
    svi.step(make_batch())
    svi.evaluate_loss(make_batch())
    assert len(pyro.get_param_store()) == 0


def test_clipping_is_by_the_joint_norm() -> None:
    moves = []
    for clip in (None, 0.25, 1e6):
        pair = bara()
        svi = SVI(*pair, sgd(pair), clip_norm=clip)
        before = snapshot(svi)
        pyro.set_rng_seed(1)
        svi.step(make_batch())
        delta = [(p - q).flatten() for p, q in zip(svi.parameters, before, strict=True)]
        moves.append((torch.cat(delta).detach(), svi.last["grad_norm"]))
    (free, norm), (clipped, reported), (large, _) = moves
    assert norm > 0.5
    assert reported == pytest.approx(norm)  # the norm before clipping
    assert float(free.norm()) == pytest.approx(norm, rel=1e-5)
    assert_close(clipped, free * 0.25 / norm, rtol=1e-4, atol=1e-6)
    assert torch.equal(large, free)  # a gradient within the limit is left alone


@pytest.mark.parametrize(
    ("name", "value", "site"),
    [
        ("lora_B", math.nan, "theta/model.layers.0.self_attn.v_proj|likelihood of y|KL of theta"),
        ("sites.phi.weight", math.nan, "KL of phi"),
        ("1/self_attn/v_proj.weight", math.inf, r"KL of theta/model\.layers\.1\.self_attn\.v_proj"),
    ],
)
def test_a_loss_that_is_not_finite_stops_before_the_step(name: str, value: float, site: str) -> None:
    pair = bara()
    optim = adamw(*pair, 0.1)
    svi = SVI(*pair, optim, scheduler=linear_schedule(optim, 10))
    svi.step(make_batch())
    named = [item for module in pair for item in module.named_parameters()]
    with torch.no_grad():
        next(p for own, p in named if own.endswith(name))[0, 0] = value
    before, at = [p.detach().clone().nan_to_num(7.0) for p in svi.parameters], svi.scheduler.last_epoch
    with pytest.raises(TrainingError, match=site):
        svi.step(make_batch(choose=[0]), make_batch())
    after = [p.detach().nan_to_num(7.0) for p in svi.parameters]
    assert all(torch.equal(p, q) for p, q in zip(before, after, strict=True))
    assert svi.scheduler.last_epoch == at


def test_only_the_sites_at_fault_are_named() -> None:
    pair = bara(latent="phi", target_modules=["lm_head"])
    svi = trainer(pair, 0.1)
    with torch.no_grad():
        pair[0].adapters["lm_head"].lora_B[7] = math.nan  # row of an answer
    with pytest.raises(TrainingError, match=r"\(likelihood of y\)"):
        svi.step(make_batch())


def test_a_gradient_that_is_not_finite_names_its_parameter() -> None:
    pair = bara()
    svi = trainer(pair, 0.1)
    name, value = next((n, p) for n, p in pair[0].named_parameters() if "v_proj" in n)
    value.register_hook(lambda grad: grad * math.inf)
    before = snapshot(svi)
    with pytest.raises(TrainingError, match=name):
        svi.step(make_batch())
    assert unchanged(svi, before)


def test_linear_schedule_by_hand() -> None:
    value = torch.zeros(1, requires_grad=True)
    optim = torch.optim.SGD([value], lr=2.0)
    schedule = linear_schedule(optim, 10, warmup=0.4)
    rates = []
    for _ in range(11):
        rates.append(optim.param_groups[0]["lr"] / 2)
        optim.step()
        schedule.step()
    assert rates == pytest.approx([1 / 4, 2 / 4, 3 / 4, 1, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0])


@pytest.mark.parametrize(("steps", "warmup"), [(1, 0.06), (5, 0.0), (3, 1.0)])
def test_linear_schedule_at_its_ends(steps: int, warmup: float) -> None:
    optim = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule = linear_schedule(optim, steps, warmup)
    for _ in range(steps):
        assert 0 < optim.param_groups[0]["lr"] <= 1
        optim.step()
        schedule.step()


def test_a_step_uses_the_schedule() -> None:
    pair = bara()
    optim = sgd(pair, 1.0)
    svi = SVI(*pair, optim, scheduler=linear_schedule(optim, 4, warmup=0.5))
    rates = []
    for _ in range(4):
        rates.append(optim.param_groups[0]["lr"])
        svi.step(make_batch())
    assert rates == pytest.approx([0.5, 1, 1, 0.5])


def test_a_batch_without_labels_is_refused() -> None:
    pair = bara()
    svi = trainer(pair)
    before = snapshot(svi)
    with pytest.raises(DataError, match="no labels"):
        svi.step(unlabelled())
    assert unchanged(svi, before)


def test_evaluate_loss_refuses_what_a_step_refuses() -> None:
    pair = bara()
    svi = SVI(*pair, sgd(pair))
    with pytest.raises(ConfigError, match="received no batch"):
        svi.evaluate_loss()
    with bp.attached(pair), pytest.raises(BackboneError):
        svi.evaluate_loss(make_batch())
    lm = pair[0].backbone.lm
    lm.train()
    try:
        with pytest.raises(BackboneError, match="training mode"):
            svi.evaluate_loss(make_batch())
    finally:
        lm.eval()
