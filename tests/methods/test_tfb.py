"""TFB: the rotation, the isotropic posterior, the two searches, and whole runs."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from core_cases import backbone, make_batch, mean_forward, randomise
from fit_cases import assert_runs_come_back, tiny_run
from method_cases import N, R, assert_stock_draws_agree, made, unflip
from pyro import poutine
from torch import Tensor
from torch.testing import assert_close

from bara_pyro.bisection import LARGEST, largest_feasible
from bara_pyro.core.prediction import predict
from bara_pyro.guides.delta import DeltaGuide
from bara_pyro.guides.posthoc import PosthocGuide
from bara_pyro.methods import method_config
from bara_pyro.methods.tfb import SEARCH, Noise, _search, anchor_split, published_search, rotate
from bara_pyro.models.lora import LoRA
from bara_pyro.models.posthoc import PosthocLoRA
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.system import System, build_system
from bara_pyro.runs.train import train

SIGMA = 0.3


def toy(flipout: bool = True) -> tuple[PosthocLoRA, PosthocGuide]:
    """A fitted pair, sigma = `SIGMA`."""
    model, guide = made("tfb")
    if not flipout:
        unflip(model)
    randomise(model)
    with torch.no_grad():
        for adapter in model.adapters.values():
            guide.scale(f"lora_A/{adapter.target.path}").copy_((SIGMA / rotate(adapter)).unsqueeze(-1))
    model.mark_fitted()
    return model, guide


def matrices(model: LoRA) -> list[tuple[Tensor, Tensor]]:
    return [(a.lora_B.detach().double(), a.lora_A.detach().double()) for a in model.adapters.values()]


def test_the_rotation_changes_no_answer() -> None:
    model = randomise(LoRA(backbone(), N, r=R))
    batch, guide = make_batch(), DeltaGuide(model)
    before, answers = [b @ a for b, a in matrices(model)], mean_forward(model, guide, batch)
    old = [b for b, _ in matrices(model)]
    values = [rotate(a) for a in model.adapters.values()]
    assert_close(mean_forward(model, guide, batch), answers, rtol=0, atol=1e-5)
    for d, b, product, (up, down) in zip(values, old, before, matrices(model), strict=True):
        assert_close(up @ down, product, rtol=0, atol=1e-6)
        assert np.allclose(np.linalg.svd(b.numpy(), compute_uv=False), d.numpy(), rtol=1e-6)
        assert_close(up.T @ up, d.square().diag(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("rows", "rank"), [(0, 0), (2, 2), (16, 3)])
def test_directions_that_were_not_trained_get_no_noise(rows: int, rank: int) -> None:
    """An answer head of which only the rows of C < r answers are trained, and a B that is still 0."""
    model = LoRA(backbone(), N, r=R, target_modules=["q_proj"])
    adapter = next(iter(model.adapters.values()))
    with torch.no_grad():
        adapter.lora_B[:rows] = torch.randn(rows, R)
    b, a = matrices(model)[0]
    d = rotate(adapter)
    up, down = matrices(model)[0]
    assert int((d > 0).sum()) == rank
    assert_close(up @ down, b @ a, rtol=0, atol=1e-6)
    guide_scale = torch.where(d > 0, SIGMA / d, 0.0)
    assert guide_scale.isfinite().all()
    assert not up[:, rank:].any()


def test_a_direction_that_is_a_sum_of_others_gets_no_noise() -> None:
    """Its singular value is 0 up to rounding, by which sigma must not be divided."""
    model = LoRA(backbone(), N, r=R, target_modules=["q_proj"])
    adapter = next(iter(model.adapters.values()))
    columns = torch.randint(-9, 10, (16, 2)).float()  # whole numbers, whose sums are exact
    with torch.no_grad():
        adapter.lora_B.copy_(torch.cat([columns, columns.sum(-1, keepdim=True)], -1))
    assert int((rotate(adapter) > 0).sum()) == 2


def test_a_layer_with_fewer_outputs_than_the_rank() -> None:
    model = randomise(LoRA(backbone(), N, r=10, target_modules=["v_proj"]))
    (b, a), d = matrices(model)[0], rotate(next(iter(model.adapters.values())))
    assert b.shape[0] == 8
    assert d.shape == (10,)
    assert not d[8:].any()
    up, down = matrices(model)[0]
    assert_close(up @ down, b @ a, rtol=0, atol=1e-6)


def test_the_full_weight_is_isotropic_in_the_span_of_b() -> None:
    """Every column of s B' dA has covariance (s sigma)^2 P, P the projection on the span of the old B."""
    before = randomise(PosthocLoRA(backbone(), N, r=R, random="A"))  # the same weights, not rotated
    model, guide = toy()
    for (b, _), adapter in zip(matrices(before), model.adapters.values(), strict=True):
        projection = b @ torch.linalg.pinv(b)
        distribution = guide.distribution(f"lora_A/{adapter.target.path}").base_dist
        up = adapter.scaling * adapter.lora_B.detach().double()
        covariance = up @ distribution.scale[:, 0].double().square().diag() @ up.T
        truth = (adapter.scaling * SIGMA) ** 2 * projection
        assert_close(covariance, truth, rtol=0, atol=1e-5 * float(truth.max()))
        assert (distribution.scale == distribution.scale[:, :1]).all()
    adapter, draws = next(iter(model.adapters.values())), 2000
    distribution = guide.distribution(f"lora_A/{adapter.target.path}")
    columns = (adapter.scaling * adapter.lora_B.detach() @ distribution.sample((draws,))).mT.flatten(0, 1)
    up = matrices(before)[0][0]
    truth = (adapter.scaling * SIGMA) ** 2 * (up @ torch.linalg.pinv(up))
    error = (columns.T.double().cov() - truth).abs().max() / truth.max()
    assert error < 6 * (2 / len(columns)) ** 0.5


@pytest.mark.parametrize("boundary", [3.7e-7, 0.00101, 42.0])
def test_the_search_ends_just_below_the_boundary(boundary: float) -> None:
    tried = []

    def feasible(sigma: float) -> bool:
        tried.append(sigma)
        return sigma <= boundary

    found = largest_feasible(feasible, 0.001)
    assert found in tried
    assert found <= boundary < 1.01 * found
    assert len(tried) < 25


def test_the_search_gives_up() -> None:
    assert largest_feasible(lambda sigma: True, 0.001) >= LARGEST
    assert largest_feasible(lambda sigma: False, 0.001) == 0.0


def test_the_published_search_returns_a_sigma_that_breaks_the_tolerance() -> None:
    # [1, 15], boundary 5.5: 8 no, 4.5 yes, 6.25 no, 5.375 yes, 5.8125 no.
    assert published_search(lambda s: s <= 5.5, 1, 15, 5) == 5.8125
    assert published_search(lambda s: True, 1, 15, 5) == 15


def fake(start: float) -> SimpleNamespace:
    """A loss that grows by sigma^2, on 50 rows."""
    return SimpleNamespace(start=start, change=lambda sigma: sigma**2, split=range(50))


def settings(**options: object) -> object:
    return method_config({"name": "tfb", **options})


@pytest.mark.parametrize(
    ("options", "start", "boundary"),
    [
        ({}, 0.5, 0.0015**0.5),
        ({"tolerance": 0.01}, 0.5, 0.005**0.5),
        ({}, 1e-9, 0.0003**0.5),  # known by heart: the floor of 0.1 nats counts
    ],
)
def test_what_is_allowed(options: dict, start: float, boundary: float) -> None:
    assert _search(fake(start), settings(**options)) == pytest.approx(boundary, rel=0.011)
    assert _search(fake(start), settings(**options)) <= boundary


class Falling(Noise):
    """A loss of 0.5 nats that noise lowers by sigma^2, as it does where the mean is too sure of itself."""

    def __init__(self) -> None:
        self.start = 0.5
        self.split = range(50)

    def nll(self, sigma: float) -> float:
        return 0.5 - sigma**2


def test_a_loss_that_falls_counts_as_one_that_rises() -> None:
    assert Falling().change(0.3) == pytest.approx(0.09)
    found = _search(Falling(), settings(tolerance=0.01))
    assert 0.99 < found / 0.005**0.5 <= 1.0


def test_what_published_code_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _search(fake(0.5), settings(recipe="reproduction")) == 0.015
    monkeypatch.setattr("bara_pyro.methods.tfb.HALVINGS", 20)
    monkeypatch.setattr("bara_pyro.methods.tfb.HIGH", 1.0)
    found = _search(fake(0.5), settings(recipe="reproduction"))
    assert found == pytest.approx((50 * 0.0015) ** 0.5, rel=1e-3)
    assert found > (50 * 0.0015) ** 0.5


def anchor_nll(system: System, samples: int) -> float:
    """NLL of the training rows, in numpy: minus the log of the mean probability of the answer."""
    split = system.split("train")
    drawn = draw(system, split, samples, seed=SEARCH).numpy()
    right = np.exp(drawn)[:, range(len(split)), list(split.labels)].mean(0)
    return -np.log(right).mean()


def set_sigma(system: System, factor: float) -> None:
    with torch.no_grad():
        for site in system.model.latents.global_sites:
            system.guide.scale(site).mul_(factor)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds a finished run in `whole`."""
    folder = tmp_path_factory.mktemp("tfb")
    assert_runs_come_back(tiny_run(folder, {"name": "tfb"}), folder)
    return folder


def fitted_run(folder: Path, **options: object) -> tuple[System, dict[str, float]]:
    """A trained system and its fitted.json."""
    system = build_system(tiny_run(folder, {"name": "tfb", **options}))
    train(system, folder / "run")
    return system, json.loads((folder / "run" / "fitted.json").read_text())


def test_a_run_finds_the_largest_feasible_sigma(folder: Path) -> None:
    system = load_system(folder / "whole")
    fitted = json.loads((folder / "whole" / "fitted.json").read_text())
    assert fitted == json.loads((folder / "cut" / "fitted.json").read_text())
    start, end = anchor_nll(system, 0), anchor_nll(system, 10)
    assert fitted["anchor_rows"] == len(system.split("train"))
    assert fitted["nll_0"] == pytest.approx(start, rel=1e-9)
    assert fitted["nll_sigma"] == pytest.approx(end, rel=1e-9)
    allowed = 0.003 * start
    assert start > 0.1
    assert 0.5 * allowed < abs(end - start) <= allowed
    set_sigma(system, 1.05)
    assert abs(anchor_nll(system, 10) - start) > allowed
    for adapter in system.model.adapters.values():
        d = adapter.lora_B.detach().norm(dim=0)  # of the columns of U D
        scale = system.guide.scale(f"lora_A/{adapter.target.path}").squeeze(-1) / 1.05
        assert_close(scale[d > 0] * d[d > 0], torch.full_like(d[d > 0], fitted["sigma"]), rtol=1e-4, atol=0)


def test_anchor_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bara_pyro.methods.tfb.ANCHOR_ROWS", 7)
    system, fitted = fitted_run(tmp_path)
    split = system.split("train")
    part = anchor_split(split)
    rows = [split.ids.index(row_id) for row_id in part.ids]
    assert fitted["anchor_rows"] == len(rows) == len(set(rows)) == 7
    assert part.labels == tuple(split.labels[row] for row in rows)
    assert part.token_ids == tuple(split.token_ids[row] for row in rows)
    monkeypatch.setattr("bara_pyro.methods.tfb.ANCHOR_ROWS", len(split))
    assert anchor_split(split) is split
    right = draw(system, part, 0)[0, range(7), list(part.labels)]
    assert fitted["nll_0"] == pytest.approx(-float(right.mean()), rel=1e-9)


def test_a_point_until_it_is_fitted() -> None:
    model, guide = made("tfb")
    randomise(model)
    assert not guide.stochastic
    trace = poutine.trace(model.forward).get_trace(make_batch())
    assert trace.stochastic_nodes + trace.observation_nodes == ["data", "tokens", "y"]
    out = predict(model, guide, make_batch(), samples=4)
    assert torch.equal(out, predict(model, guide, make_batch(), samples=0).expand(4, -1, -1))
    drawn = predict(*toy(), make_batch(), samples=4)
    assert drawn.std(0).min() > 1e-3


def test_stock_predictive() -> None:
    assert_stock_draws_agree(toy(), parallel=True)
