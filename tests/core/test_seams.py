"""Seams: likelihoods, distributions, joint guides, guides and methods with parameters of their own."""

from types import SimpleNamespace

import pyro
import pytest
import torch
from core_cases import backbone, bara_pair, make_batch, randomise
from pyro import distributions as dist
from pyro.distributions import TorchDistribution
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoDiagonalNormal, AutoLowRankMultivariateNormal, AutoNormal
from torch import Tensor, nn
from torch.testing import assert_close

import bara_pyro as bp
from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.core.from_uniform import from_uniform
from bara_pyro.core.likelihood import ClosedSet
from bara_pyro.core.posterior import PosteriorMean
from bara_pyro.core.prediction import predict, record
from bara_pyro.errors import ConfigError, MissingKLError
from bara_pyro.guides.delta import DeltaGuide
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.methods import METHODS, Method, MethodConfig, build
from bara_pyro.models.bara import BaRA
from bara_pyro.models.lora import LoRA
from bara_pyro.runs.writing import is_bara

N = 40_000


class Pooled(ClosedSet, nn.Module):
    """Answers from the mean of all hidden states."""

    def __init__(self, width: int) -> None:
        nn.Module.__init__(self)
        self.weight = nn.Parameter(torch.randn(3, width))

    def scores(self, hidden: Tensor, batch: object, head: object) -> Tensor:
        real = batch.attention_mask[..., None].float()  # type: ignore[attr-defined]
        return (hidden.float() * real).sum(-2, keepdim=True) / real.sum(-2, keepdim=True) @ self.weight.T


def alike_at_first() -> object:
    """Rows that share their first 40 tokens, which a forward would read once."""
    common = tuple(range(3, 3 + 12)) * 2
    return make_batch(
        tuple((*common[:24], *own) for own in ((5, 7, 9), (3, 4, 5), (11, 12, 8), (40, 41, 42)))
    )


def test_a_likelihood_that_looks_at_all_tokens_is_given_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bara_pyro.core.resuming.LEAST", 8)
    model = randomise(LoRA(backbone(), 4, r=2, likelihood=Pooled(16), target_modules=["v_proj"]))
    guide, batch = DeltaGuide(model), alike_at_first()
    with torch.no_grad(), PosteriorMean(guide):
        expected = model.forward(batch.questions(slice(0, 4))).double().log_softmax(-1)
    assert_close(predict(model, guide, batch, samples=0)[0], expected, atol=1e-5, rtol=0)


def test_a_layer_that_the_likelihood_never_runs_is_named() -> None:
    model = BaRA(backbone(), 4, r=2, form="gate", likelihood=Pooled(16), target_modules=["v_proj", "lm_head"])
    with pytest.raises(ConfigError, match="never uses the layer of the latent 'theta/lm_head'"):
        list(record(model, WeibullGuide(model), make_batch(), samples=1))


class Shifted(dist.Gamma):
    """0.5 more than a Gamma distribution."""

    def rsample(self, sample_shape: tuple[int, ...] = ()) -> Tensor:
        return super().rsample(torch.Size(sample_shape)) + 0.5


class Known(Shifted):
    """The same, and it says so."""

    def icdf(self, value: Tensor) -> Tensor:
        return 0.5 - torch.log1p(-value) / self.rate  # of concentration 1


def uniform(stream: int) -> Tensor:
    return torch.rand(N, generator=torch.Generator().manual_seed(stream))


def test_a_distribution_is_drawn_as_itself_and_not_as_its_parent() -> None:
    one = torch.ones(N)
    assert from_uniform(dist.Gamma(one, one), uniform).min() < 0.1
    with pytest.raises(ConfigError, match="A Shifted has no icdf"):
        from_uniform(Shifted(one, one), uniform)
    found = from_uniform(Known(one, one), uniform)
    assert found.min() > 0.5
    assert abs(float(found.mean()) - 1.5) < 5 / N**0.5
    for wrapped in (Known(one, one).mask(True), Known(one[0], one[0]).expand([N])):
        assert_close(from_uniform(wrapped, uniform), found)
    with pytest.raises(ConfigError, match="ZeroInflatedDistribution has no icdf"):
        from_uniform(dist.ZeroInflatedDistribution(dist.Poisson(one), gate=one / 2), uniform)


class Mixed(WeibullGuide):
    """Two log-normals, whose draw from the one or the other has no gradient."""

    def family(self, mean: Tensor, kappa: Tensor) -> TorchDistribution:
        loc = torch.stack([mean.log() - 0.5, mean.log() + 0.5], -1)
        parts = dist.LogNormal(loc, kappa.unsqueeze(-1).expand_as(loc))
        return dist.MixtureSameFamily(dist.Categorical(torch.ones_like(loc)), parts, validate_args=False)


class Tossed(WeibullGuide):
    """Tosses a coin of its own before each site."""

    def get_posterior(self, name: str, prior: TorchDistribution) -> TorchDistribution:
        pyro.sample(f"coin/{name}", dist.Normal(0.0, 1.0), infer={"is_auxiliary": True})
        return super().get_posterior(name, prior)


def test_a_posterior_whose_draws_have_no_gradient_is_refused() -> None:
    """The likelihood would not reach it, and training would go on without a word."""
    model = bara_pair(latent="phi")[0]
    with pytest.raises(ConfigError, match="guide draws 'phi' from a MixtureSameFamily"):
        MeanFieldELBO(sampled_kl=True).terms(model, Mixed(model), make_batch())


def test_a_guide_that_samples_more_than_it_is_asked_for_is_refused() -> None:
    model = bara_pair(latent="phi")[0]
    with pytest.raises(ConfigError, match=r"Tossed\.get_posterior samples the additional site 'coin/phi'"):
        MeanFieldELBO().terms(model, Tossed(model), make_batch())


def test_a_divergence_of_weight_zero_is_neither_asked_for_nor_computed() -> None:
    """Nor is a prior for which there is none: with a weight it is refused."""
    for beta in (0.0, 1e-3):
        model = BaRA(backbone(), 4, r=2, form="gate", theta_prior="halfcauchy", beta_theta=beta)
        randomise(model)
        guide, batch = WeibullGuide(model), make_batch()
        if beta:
            with pytest.raises(MissingKLError, match="theta"):
                MeanFieldELBO().terms(model, guide, batch)
            continue
        terms = MeanFieldELBO().terms(model, guide, batch)
        thetas = {name: float(value) for name, value in terms.kl.items() if name.startswith("theta")}
        assert set(thetas.values()) == {0.0}
        assert_close(terms.loss, terms.nll + terms.kl["phi"])


@pytest.mark.parametrize("kind", [AutoDiagonalNormal, AutoLowRankMultivariateNormal, AutoNormal])
def test_the_distribution_of_a_joint_guide_counts(kind: type) -> None:
    """Latents that are functions of one site: its density is that of all of them."""
    pyro.clear_param_store()
    model, batch = bara_pair(num_data=4, r=2, seed=0, scale=0.3, latent="phi")[0], make_batch()
    guide = kind(model, init_scale=0.5)
    guide(batch)
    losses = []
    for elbo in (Trace_ELBO(), MeanFieldELBO()):  # all that is drawn is weighed at the draw: the same numbers
        torch.manual_seed(0)
        losses.append([elbo.loss(model, guide, batch) for _ in range(5)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    pyro.clear_param_store()


def test_a_stock_guide_is_a_sentence() -> None:
    model = bara_pair(latent="phi")[0]
    guide = AutoNormal(model)
    with pytest.raises(ConfigError, match=r"^AutoNormal is not a `SiteGuide`"):
        predict(model, guide, make_batch())
    with pytest.raises(ConfigError, match=r"^AutoNormal is not a `SiteGuide`"), bp.attached((model, guide)):
        pass


class Spread(WeibullGuide):
    """A guide with a parameter that belongs to no site."""

    def __init__(self, model: BaRA) -> None:
        super().__init__(model)
        self.log_spread = nn.Parameter(torch.tensor(-2.0))


def test_a_guide_with_parameters_of_its_own_is_no_adapter_of_pefts() -> None:
    model = bara_pair()[0]
    for guide, fits in ((WeibullGuide(model), True), (Spread(model), False)):
        assert is_bara(SimpleNamespace(model=model, guide=guide)) is fits  # type: ignore[arg-type]


def test_a_buffer_that_no_run_keeps_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Kept(DeltaGuide):
        def __init__(self, model: LoRA, persistent: bool) -> None:
            super().__init__(model)
            self.register_buffer("scale", torch.ones(()), persistent=persistent)

    for persistent in (True, False):
        monkeypatch.setitem(
            METHODS._items,
            "kept",
            Method(
                "kept",
                "with a buffer",
                MethodConfig,
                lambda lm, rows, how, config, p=persistent: ((m := LoRA(lm, rows, **how)), Kept(m, p)),
            ),
        )
        if persistent:
            with pytest.raises(ConfigError, match="has the buffer 'scale', but runs save"):
                build(MethodConfig(name="kept"), backbone(), 4, {})
        else:
            build(MethodConfig(name="kept"), backbone(), 4, {})
