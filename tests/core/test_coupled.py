"""theta that sees the draw of Phi: a plain loop, its KL by sampling, nothing new where c is 0."""

import math
from pathlib import Path

import pytest
import torch
from core_cases import bara_pair, make_batch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.core.optimizers import adamw
from bara_pyro.core.prediction import predict, record
from bara_pyro.core.svi import SVI
from bara_pyro.errors import ConfigError
from bara_pyro.extras.hub.peft.layer import guide_of
from bara_pyro.guides.coupled import CoupledWeibullGuide
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.runs.config import load_config
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.system import build_system
from bara_pyro.runs.train import train

R = 3
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "lm_head"]
RANKS = {"model.layers.0.self_attn.q_proj": 2}


def pair(guide: type = CoupledWeibullGuide, coupling: float = 0.0, **options: object) -> tuple:
    torch.manual_seed(2)
    model, made = bara_pair(r=R, guide=guide, target_modules=TARGETS, scale=0.3, move=0.1, **options)
    if guide is CoupledWeibullGuide:
        spread = torch.linspace(-coupling, coupling, made.coupling.numel())
        with torch.no_grad():
            made.coupling.copy_(spread.view_as(made.coupling))
    return model, made


def loss(model: object, guide: object, seed: int = 3) -> Tensor:
    torch.manual_seed(seed)
    return MeanFieldELBO().terms(model, guide, make_batch()).loss


@pytest.mark.parametrize("form", ["additive", "gate"])
def test_without_coupling_it_is_the_guide_of_independent_factors(form: str) -> None:
    options = {"form": form, "fit": {"init_kappa": 0.2}}
    found, plain = pair(**options), pair(WeibullGuide, **options)
    with torch.no_grad():
        plain[1].load_state_dict(found[1].state_dict(), strict=False)
        plain[0].load_state_dict(found[0].state_dict())
    assert torch.equal(loss(*found), loss(*plain))
    assert torch.equal(predict(*found, make_batch(), samples=3), predict(*plain, make_batch(), samples=3))


@pytest.mark.parametrize("ranks", [{}, RANKS], ids=["one rank", "a smaller rank"])
@pytest.mark.parametrize("form", ["additive", "gate"])
def test_the_distribution_of_theta_by_a_plain_loop(form: str, ranks: dict) -> None:
    """Each unit's mean is softplus(a z + c log Phi), for three draws at once, whoever shares its input."""
    model, guide = pair(form=form, coupling=1.5, rank_pattern=ranks)
    distributions: dict[str, Tensor] = {}
    plain = guide.get_posterior

    def noted(name: str, prior: object) -> object:
        distribution = plain(name, prior)
        if name in model.latents.local_sites:
            distributions[name] = distribution.mean
            inputs[name] = guide.input
        return distribution

    inputs: dict[str, Tensor] = {}
    guide.get_posterior = noted
    [piece] = record(model, guide, make_batch(), samples=3, memory_budget=2**30)
    phi = piece.values["phi"].reshape(3, len(model.targets), R)
    for place, (name, site) in enumerate(model.latents.local_sites.items()):
        x, rank = inputs[name], site.shape[-1]
        z = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) if guide.normalize_input else x
        weight = guide._raw[name].weight
        for unit in range(rank):
            raw = torch.stack(
                [
                    z[s] @ weight[unit] + guide.coupling[place, unit] * phi[s, place, unit].log()
                    for s in range(3)
                ]
            )
            assert_close(distributions[name][..., unit].expand_as(raw), F.softplus(raw), rtol=2e-4, atol=1e-6)


@pytest.mark.slow
def test_the_divergence_is_that_of_sampling() -> None:
    """Analytic KL given Phi, averaged over Phi, is the mean of log q - log p, within 4 standard errors."""
    model, guide = pair(form="gate", coupling=0.8, beta_phi=1.0, beta_theta=1.0)
    analytic, sampled = [], []
    for seed in range(300):
        torch.manual_seed(seed)
        with torch.no_grad():
            program, posterior = guide.run(make_batch())
            analytic.append(
                float(sum(kl for kl in MeanFieldELBO().terms(model, guide, make_batch()).kl.values()))
            )
        total = 0.0
        for name in model.latents.sites:
            at, of = posterior.nodes[name], program.nodes[name]
            both = at["fn"].log_prob(at["value"]) - of["fn"].log_prob(at["value"])
            mask = of["mask"] if isinstance(of["mask"], Tensor) else torch.ones(())
            total += float((both * mask).sum() * of["scale"])
        sampled.append(total)
    gap = torch.tensor(sampled).mean() - torch.tensor(analytic).mean()
    error = math.hypot(
        torch.tensor(sampled).std() / math.sqrt(300), torch.tensor(analytic).std() / math.sqrt(300)
    )
    assert abs(gap) < 4 * error
    assert error < 0.05 * abs(float(torch.tensor(analytic).mean()))  # so that a KL without Phi's would show


def test_theta_without_phi_is_refused() -> None:
    model, guide = pair()
    site = next(iter(model.latents.local_sites))
    guide._inputs.append((torch.zeros(1, 2, 16), None))
    with pytest.raises(LookupError, match=f"{site} was sampled without Phi"):
        guide.get_posterior(site, None)


def test_the_gradient_of_the_coupling_is_that_of_differences() -> None:
    model, guide = pair(form="gate", coupling=0.5, beta_theta=1.0)
    loss(model, guide).backward()
    step = 1e-2
    for place in [(0, 0), (2, 1), (4, 2)]:
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                guide.coupling[place] += sign * step
                values.append(float(loss(model, guide)))
                guide.coupling[place] -= sign * step
        assert float(guide.coupling.grad[place]) == pytest.approx(
            (values[0] - values[1]) / (2 * step), rel=0.05, abs=2e-3
        )


@pytest.mark.parametrize("latent", ["phi", "theta"])
def test_where_there_is_nothing_to_couple(latent: str) -> None:
    found, plain = pair(latent=latent), pair(WeibullGuide, latent=latent)
    with torch.no_grad():
        plain[1].load_state_dict(found[1].state_dict(), strict=False)
        plain[0].load_state_dict(found[0].state_dict())
    assert not found[1].coupling.numel()
    assert torch.equal(loss(*found), loss(*plain))
    adamw(*found, 0.03).step()


def test_it_learns_its_coupling() -> None:
    model, guide = pair(form="gate", beta_theta=1.0)
    svi = SVI(model, guide, adamw(model, guide, 0.03))
    torch.manual_seed(0)
    for _ in range(3):
        svi.step(make_batch())
    assert (guide.coupling != 0).any()


SETTINGS = {
    "method": "bara-gate",
    "method.guide": "weibull-coupled",
    "task.name": "micro-wgs",
    "train.steps": 4,
    "task.limit": 24,
}


def test_a_run_of_it(tmp_path: Path) -> None:
    """Trained and read back; no adapter of PEFT's."""
    system = build_system(load_config(overrides=SETTINGS))
    train(system, tmp_path / "run")
    with torch.no_grad():
        system.guide.coupling.uniform_(-1, 1)
    again = load_system(tmp_path / "run")
    assert isinstance(again.guide, CoupledWeibullGuide)
    first = system.model.targets[0].path
    assert "BARA_PYRO_BARA-GATE" in (tmp_path / "run" / "adapter_config.json").read_text()
    with pytest.raises(ConfigError, match="weibull-coupled"):
        guide_of(system.config.method, 8, first, 8, 128)
