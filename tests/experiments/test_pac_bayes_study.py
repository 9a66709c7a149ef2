"""The study of bounds: what may change in the fit of Phi, what a bound is made of, what the section says."""

import math
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pytest
import torch
from pyro import poutine
from scipy import integrate, optimize, special, stats
from torch import Tensor

from bara_pyro.core.distributions import MeanWeibull
from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.data import batches
from bara_pyro.diagnostics.posterior import gibbs_draws
from bara_pyro.diagnostics.posterior.joint import evaluate_latents
from bara_pyro.errors import ConfigError
from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.loading import load_backbone
from bara_pyro.microworld import micro_task
from bara_pyro.runs.system import System
from experiments.engine.results import read_results
from experiments.studies.pac_bayes import study as gibbs
from experiments.studies.pac_bayes import study as pac_bayes

BOUNDED, SEED = pac_bayes.BOUNDED, 3


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return load_backbone("microworld")


def arguments(folder: Path, **changes: Any) -> Namespace:
    given = {"forms": ["bara-gate"], "sizes": [10], "seeds": 1, "steps": 3, "fit_steps": 2}
    paths = {"runs": folder / "runs", "out": folder}
    return Namespace(**{**given, **paths, "draws": 40, "rows": 6, **changes})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, backbone: Backbone) -> tuple[System, Any]:
    """A barely trained system, whose B is then given values as after training, and the second part."""
    folder = tmp_path_factory.mktemp("pac")
    system, second = pac_bayes.prepared("bara-gate", SEED, arguments(folder), backbone)
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weight in system.model.named_parameters():
            if name.endswith("lora_B"):
                weight.add_(0.1 * torch.randn_like(weight))
        gibbs.raw_phi(system.guide).add_(0.3 * torch.randn_like(gibbs.raw_phi(system.guide)))
    return system, second


# The split ----------------------------------------------------------------------------------------------


def test_the_split() -> None:
    rows = micro_task("micro-obqa").train
    first, second = pac_bayes.split_rows(rows, 1)
    assert len(first) == round(0.4 * len(rows))
    assert {r.id for r in first}.isdisjoint(r.id for r in second)
    assert sorted((r.id, r.question) for r in first + second) == sorted((r.id, r.question) for r in rows)
    own = {row.id: row for row in rows}
    assert all(row == own[row.id] for row in first)
    assert pac_bayes.split_rows(rows, 1) == (first, second)
    assert pac_bayes.split_rows(rows, 2)[0] != first
    # The answers of the second part are those of its truth, drawn anew: not the task's own.
    assert all(replace(row, label=own[row.id].label) == own[row.id] for row in second)
    unsure = [row for row in second if max(row.truth) < 1]
    changed = np.mean([row.label != own[row.id].label for row in unsure])
    expected = np.mean([1 - sum(p * p for p in row.truth) for row in unsure])
    assert changed == pytest.approx(expected, abs=4 * 0.5 / len(unsure) ** 0.5)
    mass = sum(row.truth[row.label] for row in unsure) / len(unsure)
    assert mass == pytest.approx(1 - expected, abs=4 * 0.5 / len(unsure) ** 0.5)


def test_the_first_part_does_not_depend_on_n(
    trained: tuple[System, Any], tmp_path: Path, backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pac_bayes, "train", lambda *_, **__: None)
    other, rest = pac_bayes.prepared("bara-gate", SEED, arguments(tmp_path, sizes=[700, 20]), backbone)
    system, second = trained
    assert other.task.train == system.task.train
    assert rest == second
    assert not {row.id for row in system.task.train} & {row.id for row in second}
    too_many = arguments(tmp_path, sizes=[2970])
    with pytest.raises(ConfigError, match="2970 rows for the bound and 6 for the true risk are more than"):
        pac_bayes.prepared("bara-gate", SEED, too_many, backbone)


# The divergence -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b"), [((0.7, 0.4), (1.3, 0.6)), ((2.0, 1.0), (0.5, 0.3)), ((1.1, 0.2), (1, 1))]
)
def test_weibull_kl(a: tuple[float, float], b: tuple[float, float]) -> None:
    def distribution(mean: float, kappa: float) -> Any:
        return stats.weibull_min(1 / kappa, scale=mean / special.gamma(1 + kappa))

    q, p = distribution(*a), distribution(*b)
    # Over u = log t, where both densities are smooth.
    kl, _ = integrate.quad(
        lambda u: q.pdf(math.exp(u)) * math.exp(u) * (q.logpdf(math.exp(u)) - p.logpdf(math.exp(u))), -60, 4,
        limit=400, points=[-8, -2, 0, 2],
    )  # fmt: skip
    distributions = [MeanWeibull(*torch.tensor(pair, dtype=torch.float64)) for pair in (a, b)]
    assert float(gibbs.weibull_kl(*distributions)) == pytest.approx(kl, rel=1e-6)
    assert float(gibbs.weibull_kl(distributions[0], distributions[0])) == pytest.approx(0, abs=1e-14)


def test_divergence_from_the_models_prior_is_that_of_the_elbo(trained: tuple[System, Any]) -> None:
    system, second = trained
    batch = pac_bayes.part_of(system, second[:4]).split.batch(range(4), system.answer_ids)
    with torch.no_grad():
        terms = MeanFieldELBO().terms(system.model, system.guide, batch)
        found = gibbs.divergence(gibbs.posterior(system.guide), system.model.phi_prior)
    assert float(found) == pytest.approx(float(terms.kl["phi"]), rel=1e-5)
    assert float(found) > 1


# The fit ------------------------------------------------------------------------------------------------


def states(system: System) -> dict[str, Tensor]:
    """All that could be fitted, and the frozen language model."""
    parts = {"model": system.model, "guide": system.guide, "lm": system.backbone.lm}
    return {f"{k}.{name}": v.clone() for k, part in parts.items() for name, v in part.state_dict().items()}


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> list[str]:
    assert before.keys() == after.keys()
    return [name for name, value in before.items() if not torch.equal(value, after[name])]


def test_only_phi_is_fitted(trained: tuple[System, Any]) -> None:
    system, second = trained
    rows = pac_bayes.part_of(system, second[:10]).split
    before, phi = states(system), gibbs.raw_phi(system.guide)
    start = phi.detach().clone()
    gibbs.fit_phi(system, rows, system.model.phi_prior, 3, 0)
    assert changed(before, states(system)) == ["guide.sites.phi.weight"]
    assert len(before) > 50
    with torch.no_grad():
        phi.copy_(start)


def test_the_fit_minimises_nll_and_kl_over_n(
    trained: tuple[System, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first gradient: of the mean NLL, the noise being that of the seed, and of KL / n."""
    system, second = trained
    rows = pac_bayes.part_of(system, second[: gibbs.FIT_BATCH]).split  # one batch is all the rows
    phi, seen = gibbs.raw_phi(system.guide), []
    start = phi.detach().clone()
    monkeypatch.setattr(gibbs.AdamW, "step", lambda self, *_: seen.append(phi.grad.clone()))
    with torch.no_grad():
        learned = gibbs.posterior(system.guide)
        elsewhere = MeanWeibull(1.5 * learned.mean, 0.8 * learned.kappa)
    for prior in (system.model.phi_prior, learned, elsewhere):
        gibbs.fit_phi(system, rows, prior, 1, 0)
    assert torch.equal(phi, start)  # no step was taken
    # At its own posterior the divergence is least: what is left is the gradient of the NLL, the same for all.
    for grad, prior in ((seen[0], system.model.phi_prior), (seen[2], elsewhere)):
        distribution = gibbs.posterior(system.guide)
        if isinstance(prior, MeanWeibull):
            kl = gibbs.weibull_kl(distribution, prior).sum()
        else:  # Gamma(1, 1), by -entropy - E log p = -entropy + mean
            kl = (distribution.mean - distribution.entropy()).sum()
        (expected,) = torch.autograd.grad(kl / len(rows), [phi])
        torch.testing.assert_close(grad - seen[1], expected, rtol=1e-3, atol=1e-6)
        assert expected.abs().max() > 0.01


# Draws and risks ----------------------------------------------------------------------------------------


def test_each_row_has_draws_of_its_own(trained: tuple[System, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    system, second = trained
    split = pac_bayes.part_of(system, second[:3]).split
    batch = next(batches(split, system.answer_ids, 3))
    own = gibbs_draws.EachRowItsOwn(system.guide, 4, 3)
    with torch.no_grad(), poutine.trace() as recorder, pyro.plate("draws", 4, dim=-3), own:
        log_probs = system.model.forward(replace(batch, labels=None)).double()
    nodes = recorder.trace.nodes
    phi = nodes["phi"]["value"]
    assert phi.shape[:2] == (4, 3)
    assert len(torch.unique(phi)) == phi.numel()
    # Each row alone, given its own gates.
    for row in range(3):
        values = {name: nodes[name]["value"][:, row : row + 1] for name in system.model.latents.local_sites}
        alone = split.take([row]).batch([0], system.answer_ids)
        found = evaluate_latents(system.model, alone, {"phi": phi[:, row], **values}).log_probs
        torch.testing.assert_close(found[:, 0], log_probs[:, row], rtol=0, atol=1e-5)
    drawn = gibbs_draws.gibbs_draws(system, split, 10, 0)
    assert drawn.shape == (4, 3, 4)  # 12 draws are the least multiple of three rows that is 10 or more
    assert not torch.equal(drawn[0], drawn[1])
    monkeypatch.setattr(gibbs_draws, "SEQUENCES", 3)
    pieces = gibbs_draws.gibbs_draws(system, split, 21, 0)  # seven draws a row, in pieces of three
    assert pieces.shape == (7, 3, 4)
    assert len(torch.unique(pieces[..., 0])) == 21


def losses(draws: Tensor, label: int, loss: str) -> Tensor:
    """A loss by draw and row where the answer is `label`, written out."""
    p = draws.exp()
    if loss == "zero-one":
        return (p.argmax(-1) != label).double()
    if loss == "drawn-answer":
        return 1 - p[..., label]
    return -(0.01 + (1 - p.shape[-1] * 0.01) * p[..., label]).log()


@pytest.mark.parametrize("loss", BOUNDED)
def test_true_risk(loss: str) -> None:
    torch.manual_seed(1)
    draws = torch.randn(5, 7, 3, dtype=torch.float64).log_softmax(-1)
    truth = torch.rand(7, 3, dtype=torch.float64)
    truth /= truth.sum(-1, keepdim=True)
    by_row = [
        sum(float(truth[i, c]) * float(losses(draws[:, i], c, loss).mean()) for c in range(3))
        for i in range(7)
    ]
    found = gibbs.risk(draws, truth, loss)
    assert found["mean"] == pytest.approx(np.mean(by_row))
    assert found["error"] == pytest.approx(np.std(by_row, ddof=1) / 7**0.5)


def root(q: float, budget: float) -> float:
    """The largest p with kl(q || p) <= budget."""

    def kl(p: float) -> float:
        return float(special.rel_entr(q, p) + special.rel_entr(1 - q, 1 - p))

    return optimize.brentq(lambda p: kl(p) - budget, q, 1 - 1e-15, xtol=1e-14)


def test_an_entry(trained: tuple[System, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system, second = trained
    kept: list[Tensor] = []
    make = gibbs_draws.gibbs_draws

    def noted(*given: Any) -> Tensor:
        kept.append(make(*given))
        return kept[-1]

    monkeypatch.setattr(pac_bayes, "gibbs_draws", noted)
    before = states(system)
    found = pac_bayes.arms(system, second, 40, SEED, arguments(tmp_path, draws=160))
    assert changed(before, states(system)) == []
    assert list(found) == ["prior", "informed", "held-out", "usual"]
    assert 0 < found["informed"]["kl"] < 1 < found["prior"]["kl"] != found["usual"]["kl"]
    assert found["held-out"]["kl"] == 0
    labels = torch.tensor([row.label for row in second[:40]])
    first_of_arm = {"prior": 0, "informed": 3, "held-out": 6, "usual": 6}  # each: the n rows, own, test
    for arm, place in first_of_arm.items():
        draws, own = kept[place], kept[place + 1]
        assert draws.shape[:2] == (4, 40)
        count = 200 if arm == "usual" else 160
        budget = math.log(2 * math.sqrt(40) / 0.045) + found[arm]["kl"]
        budget = math.log(1 / 0.045) if arm == "held-out" else budget
        for loss in BOUNDED:
            numbers = found[arm]["losses"][loss]
            scale = math.log(100) if loss == "smoothed-nll" else 1
            mean = np.mean([losses(draws[:, i], int(y), loss).mean() for i, y in enumerate(labels)]) / scale
            drawn = root(mean, math.log(2 / 0.005) / count)
            assert numbers["measured"] == pytest.approx(scale * mean)
            assert numbers["drawn"] == pytest.approx(scale * drawn, abs=1e-6)
            assert numbers["bound"] == pytest.approx(scale * root(drawn, budget / 40), abs=1e-6)
            assert numbers["own"]["mean"] < numbers["bound"]
        truth = torch.tensor([row.truth for row in second[-6:]], dtype=torch.float64)
        top = own.exp().mean(0).argmax(-1)
        expected = 1 - truth.gather(1, top[:, None]).mean()
        assert found[arm]["average"]["own"]["mean"] == pytest.approx(float(expected))
    assert found["usual"]["losses"]["zero-one"]["test"] == found["held-out"]["losses"]["zero-one"]["test"]


# Going on -----------------------------------------------------------------------------------------------


def test_entries_are_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[str, int]] = []

    def prepared(form: str, seed: int, *_: Any) -> tuple[str, None]:
        done.append((form, seed))
        return form, None

    def arms(form: str, _: None, n: int, *__: Any) -> dict[str, Any]:
        if n == 20:
            raise KeyboardInterrupt
        done.append((form, n))
        return {}

    monkeypatch.setattr(pac_bayes, "load_backbone", lambda _: None)
    monkeypatch.setattr(pac_bayes, "prepared", prepared)
    monkeypatch.setattr(pac_bayes, "arms", arms)
    args = arguments(tmp_path, sizes=[10, 20])
    with pytest.raises(KeyboardInterrupt):
        pac_bayes.run(args)
    assert done == [("bara-gate", 0), ("bara-gate", 10)]
    done.clear()
    pac_bayes.run(arguments(tmp_path, sizes=[10, 30]))
    assert done == [("bara-gate", 0), ("bara-gate", 30)]
    pac_bayes.run(arguments(tmp_path, sizes=[10, 30]))
    assert len(done) == 2
    assert list(read_results("pac_bayes", args.out).entries) == ["bara-gate 10 0", "bara-gate 30 0"]
    with pytest.raises(ConfigError, match="holds results with steps=3, not 4"):
        pac_bayes.run(arguments(tmp_path, steps=4))
