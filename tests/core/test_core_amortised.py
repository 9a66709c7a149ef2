"""From a layer's input to a posterior, by hand; where training starts; parameter counts of the paper."""

import math

import pyro
import pytest
import torch
from core_cases import backbone, bara_pair, make_batch
from pyro.distributions import Gamma
from torch import Tensor
from torch.distributions import kl_divergence
from torch.nn import functional as F
from torch.testing import assert_close

from bara_pyro.cli.architectures import empty_backbone
from bara_pyro.core.distributions import KAPPA_MAX, KAPPA_MIN, MEAN_MIN, MeanWeibull
from bara_pyro.core.optimizers import adamw
from bara_pyro.guides.amortized import AmortizedGuide
from bara_pyro.guides.delta import DeltaGuide
from bara_pyro.guides.gamma import GammaGuide
from bara_pyro.guides.lognormal import LogNormalGuide
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.methods import build, method_config
from bara_pyro.models.bara import BaRA

R = 4
SITE = "theta/lm_head"
PRIOR = Gamma(1.0, 1.0)


def guide_of(family: type = WeibullGuide, **options: object) -> AmortizedGuide:
    return bara_pair(guide=family, r=R, fit=options)[1]


def posterior(guide: AmortizedGuide, x: Tensor) -> torch.distributions.Distribution:
    with guide:
        pyro.sample(SITE, PRIOR.expand([*x.shape[:-1], R]).to_event(1), infer={"input": x})
    return guide.get_traces()[1].nodes[SITE]["fn"]


def noise_level(q: torch.distributions.Distribution) -> Tensor:
    """kappa from the distribution: the coefficient of variation gives it for log-normal and Gamma."""
    base = q.base_dist
    return base.kappa if hasattr(base, "kappa") else base.variance.sqrt() / base.mean


@pytest.mark.parametrize("family", [WeibullGuide, GammaGuide, LogNormalGuide])
@pytest.mark.parametrize("shape", ["kappa", "k"])
@pytest.mark.parametrize("width", ["vector", "scalar"])
def test_by_hand(family: type, shape: str, width: str) -> None:
    guide = guide_of(
        family, shape=shape, shape_width=width, init_kappa=0.5, max_kappa=KAPPA_MAX, random_kappa=True
    )
    x = torch.randn(2, 5, 16)
    q = posterior(guide, x)
    assert (q.batch_shape, q.event_shape) == ((2, 5), (R,))
    raw = x @ guide.sites[SITE].weight.T
    assert raw.shape[-1] == (2 * R if width == "vector" else R + 1)
    assert_close(q.base_dist.mean, F.softplus(raw[..., :R]), rtol=1e-5, atol=1e-6)
    start = 0.5 if shape == "kappa" else 2.0
    level = F.softplus(raw[..., R:] + math.log(math.expm1(start)))
    kappa = (level if shape == "kappa" else 1 / level).clamp(KAPPA_MIN, KAPPA_MAX).expand(2, 5, R)
    assert_close(noise_level(q), kappa, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("made_by", ["the guide", "the method"])
def test_the_noisiest_posterior_is_the_prior(made_by: str) -> None:
    """As far as noise goes: at its largest and at the prior's mean the KL to the exponential prior is 0."""
    built = (
        build(method_config("bara"), backbone(), 4, {"r": R})[1] if made_by == "the method" else guide_of()
    )
    assert isinstance(built, AmortizedGuide)
    with torch.no_grad():
        built.sites[SITE].weight.zero_()
        built.start[:R] = math.log(math.expm1(1.0))  # of the mean: 1, the prior's
        built.start[R:] = 50.0  # of the noise level: as large as it is let be
    q = posterior(built, torch.randn(3, 16)).base_dist
    assert_close(kl_divergence(q, PRIOR.expand([3, R])), torch.zeros(3, R), rtol=0, atol=1e-5)


@pytest.mark.parametrize("random_kappa", [False, True])
def test_where_it_starts(random_kappa: bool) -> None:
    guide = guide_of(init_kappa=0.3, random_kappa=random_kappa)
    x = torch.randn(50, 16)
    kappa = noise_level(posterior(guide, x))
    assert (kappa.std() > 0.01) == random_kappa
    if not random_kappa:
        assert_close(kappa, torch.full((50, R), 0.3))
    weight = guide.sites[SITE].weight.detach()
    rows = weight if random_kappa else weight[:R]
    assert_close(rows @ rows.T, torch.eye(len(rows)), rtol=0, atol=1e-5)
    phi = guide.get_posterior("phi", PRIOR).base_dist
    assert_close(phi.mean, torch.full((5, R), math.log(2)))
    assert_close(phi.kappa, torch.full((5, R), 0.3))


def test_a_normalised_input_has_no_size() -> None:
    x = torch.randn(50, 16)
    guide, plain = (guide_of(normalize_input=on, random_kappa=True) for on in (True, False))
    plain.sites[SITE].weight.data = guide.sites[SITE].weight.data
    q = posterior(guide, x).base_dist
    for got in (posterior(guide, 4 * x), posterior(plain, x / x.square().mean(-1, keepdim=True).sqrt())):
        assert_close((got.base_dist.mean, got.base_dist.kappa), (q.mean, q.kappa), rtol=1e-4, atol=1e-6)
    assert not torch.allclose(posterior(plain, 4 * x).base_dist.mean, q.mean)


def test_an_input_of_zeros_has_no_direction() -> None:
    guide = guide_of(normalize_input=True)
    x = torch.zeros(3, 16, requires_grad=True)
    q = posterior(guide, x).base_dist
    assert_close(q.mean, torch.full((3, R), math.log(2)))
    (q.mean.sum() + q.kappa.sum()).backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_what_is_normalised_by_default() -> None:
    for form, expected in (("additive", False), ("gate", True)):
        model, guide = bara_pair(r=R, form=form)
        assert guide.normalize_input is expected
        assert WeibullGuide(model, normalize_input=not expected).normalize_input is not expected


@pytest.mark.parametrize("family", [WeibullGuide, GammaGuide, LogNormalGuide])
def test_noise_is_capped_and_can_come_back(family: type) -> None:
    guide = guide_of(family, random_kappa=True, max_kappa=0.8)
    x = 10 * torch.randn(50, 16)
    kappa = noise_level(posterior(guide, x))
    assert float(kappa.detach().max()) == pytest.approx(0.8, abs=1e-5)
    assert (kappa > 0.799).float().mean() > 0.2
    # A loss that wants less noise still moves those at the cap.
    kappa[kappa > 0.799].sum().backward()
    assert guide.sites[SITE].weight.grad[R:].abs().sum() > 0


def test_noise_is_capped_where_the_shape_is_amortised() -> None:
    guide = guide_of(shape="k", random_kappa=True, max_kappa=0.8)
    kappa = noise_level(posterior(guide, 10 * torch.randn(50, 16)))
    assert float(kappa.detach().max()) == pytest.approx(0.8, abs=1e-5)


@pytest.mark.parametrize(("rows", "kappa"), [(80, 0.5), (2560, 0.5), (10240, 0.25), (10**6, 0.1)])
def test_noise_starts_by_the_number_of_rows(rows: int, kappa: float) -> None:
    """It falls with the square root of the rows, as the width of a posterior does, between its two ends."""
    model, _ = bara_pair(r=R, num_data=rows)
    for most in (1.0, 0.2):
        start = WeibullGuide(model, max_kappa=most).get_posterior("phi", PRIOR).base_dist.kappa
        assert_close(start, torch.full((5, R), min(kappa, most)))


def test_activations() -> None:
    x = torch.randn(50, 16)
    relu = guide_of(activation="relu")
    raw = x @ relu.sites[SITE].weight.T[:, :R]
    assert_close(posterior(relu, x).base_dist.mean, raw.clamp_min(MEAN_MIN))
    topk = guide_of(activation="topk", top_k=2)
    raw = x @ topk.sites[SITE].weight.T[:, :R]
    mean = posterior(topk, x).base_dist.mean.detach()
    for got, values in zip(mean, F.softplus(raw.detach()), strict=True):
        kept = values.sort().indices[-2:].tolist()
        expected = [values[i] if i in kept else MEAN_MIN for i in range(R)]
        assert_close(got, torch.tensor(expected), rtol=1e-5, atol=1e-9)
    # phi's mean is softplus in every case.
    assert_close(relu.get_posterior("phi", PRIOR).base_dist.mean, torch.full((5, R), math.log(2)))


def test_defaults_leave_noise_to_the_rows_and_four_gates_open() -> None:
    model, _ = bara_pair(r=8)
    guide = WeibullGuide(model, activation="topk")
    weight = guide.sites[SITE].weight
    assert not weight[8:].any()  # the initial noise level does not depend on the input
    mean = guide.posterior(weight, 8, torch.randn(20, 16)).base_dist.mean
    assert ((mean > MEAN_MIN).sum(-1) == 4).all()


@pytest.mark.parametrize("top_k", [1, R])
def test_as_few_gates_are_open_as_one_and_as_many_as_there_are(top_k: int) -> None:
    mean = posterior(guide_of(activation="topk", top_k=top_k), torch.randn(20, 16)).base_dist.mean
    assert ((mean > MEAN_MIN).sum(-1) == top_k).all()


def test_a_point_has_no_parameters_for_noise() -> None:
    assert {tuple(p.shape) for p in guide_of(DeltaGuide).parameters()} == {(5, R), (R, 16)}


def test_a_family_gets_a_noise_level_for_each_mean() -> None:
    """The smallest that is allowed, where one is shared by the entries of a gate."""
    shapes = []

    class Seen(WeibullGuide):
        def family(self, mean: Tensor, kappa: Tensor) -> MeanWeibull:
            shapes.append((mean.shape, kappa.shape))
            return super().family(mean, kappa)

    kappa = noise_level(
        posterior(guide_of(Seen, shape_width="scalar", init_kappa=KAPPA_MIN), torch.randn(5, 16))
    )
    assert shapes == [((5, R), (5, R))]
    assert_close(kappa, torch.full((5, R), KAPPA_MIN))


@pytest.mark.parametrize("activation", ["softplus", "relu", "topk"])
def test_the_posterior_of_given_parameters_by_hand(activation: str) -> None:
    """With an input it is a local gate's, whose mean has the activation; without one a global gate's."""
    guide = guide_of(activation=activation, top_k=2, init_kappa=0.3)
    x, weight = torch.randn(5, 1, 16), torch.randn(2 * R, 16)
    local = guide.posterior(weight, R, x)
    raw = x @ weight.T
    mean = raw[..., :R].clamp_min(MEAN_MIN) if activation == "relu" else F.softplus(raw[..., :R])
    if activation == "topk":
        for gates in mean[:, 0]:
            gates[gates.argsort()[:-2]] = MEAN_MIN
    offset = math.log(math.expm1(0.3))
    kappa = F.softplus(raw[..., R:] + offset).clamp(KAPPA_MIN, 1.0)
    assert (local.batch_shape, local.event_shape) == ((5, 1), (R,))
    assert_close((local.base_dist.mean, local.base_dist.kappa), (mean, kappa), rtol=1e-4, atol=1e-5)
    weights = torch.randn(2, 3, 2 * R)
    shared = guide.posterior(weights, R)
    mean = F.softplus(weights[..., :R])
    kappa = F.softplus(weights[..., R:] + offset).clamp(KAPPA_MIN, 1.0)
    assert (shared.batch_shape, shared.event_shape) == ((2, 3), (R,))
    assert_close((shared.base_dist.mean, shared.base_dist.kappa), (mean, kappa), rtol=1e-4, atol=1e-5)


def test_the_amortiser_has_a_rate_of_its_own() -> None:
    model, guide = bara_pair()
    groups = adamw(model, guide, 1e-3, local_lr_scale=0.2).param_groups
    rates = {id(p): group["lr"] for group in groups for p in group["params"]}
    for name, p in [*model.named_parameters(), *guide.named_parameters()]:
        assert rates.pop(id(p)) == pytest.approx(2e-4 if "theta" in name else 1e-3), name
    assert not rates


@pytest.mark.parametrize(("form", "share"), [("additive", 1.0), ("gate", 0.1)])
def test_gates_are_slow_by_default(form: str, share: float) -> None:
    *_, amortiser = adamw(*bara_pair(form=form), 1e-3).param_groups
    assert amortiser["lr"] == pytest.approx(1e-3 * share)


@pytest.mark.parametrize("options", [{}, {"latent": "phi"}, {"latent": "theta"}])
def test_a_rate_for_parts_that_are_not_there(options: dict) -> None:
    model, guide = bara_pair(guide=DeltaGuide, **options)
    held = [p for group in adamw(model, guide, 1e-3).param_groups for p in group["params"]]
    assert len(held) == len([*model.parameters(), *guide.parameters()])


# Per layer r (out) for B, in (2r) for the amortiser and 2r for phi; widths of Qwen2.5-7B's q, v and lm_head.
# A gate form adds r (in) for A; a scalar noise level takes r - 1 rows off the amortiser.
# Gate form and scalar noise level give the paper's 5.608 M exactly.
WIDTHS = [(3584, 3584), (3584, 512)] * 28 + [(3584, 152_064)]
COUNTS = [
    ("additive", "vector", sum(8 * o + 16 * i + 16 for i, o in WIDTHS)),
    ("gate", "scalar", sum(8 * o + 8 * i + 9 * i + 16 for i, o in WIDTHS)),
]


@pytest.mark.parametrize(("form", "width", "count"), COUNTS)
def test_parameter_counts_at_7b(form: str, width: str, count: int) -> None:
    model = BaRA(empty_backbone("qwen2.5-7b"), 10, r=8, form=form)
    guide = WeibullGuide(model, shape_width=width)
    assert len(model.targets) == 57
    assert sum(p.numel() for module in (model, guide) for p in module.parameters()) == count
    assert count == {"additive": 5_403_536, "gate": 5_607_824}[form]


def test_no_input_no_posterior() -> None:
    with pytest.raises(LookupError, match="local_sample"):
        guide_of().get_posterior(SITE, PRIOR)
    guide = guide_of()
    guide(make_batch())
    with pytest.raises(LookupError):  # the last layer's input is not kept
        _ = guide.input


@pytest.mark.parametrize("shape", ["kappa", "k"])
def test_a_raw_value_far_below_has_a_finite_gradient(shape: str) -> None:
    """softplus(-60) is 1e-26, and the gradient of its inverse 1e52."""
    guide = guide_of(shape=shape)
    raw = torch.tensor([-100.0, -60.0, -20.0, 0.0, 20.0, 60.0, 100.0, 0.0], requires_grad=True)
    q = guide.posterior(torch.cat([torch.zeros(2, R), raw.reshape(2, R)], dim=-1), R)
    kl_divergence(q, PRIOR.expand([2, R]).to_event(1)).sum().backward()
    assert raw.grad is not None
    assert raw.grad.isfinite().all()
    assert raw.grad[3] != 0
