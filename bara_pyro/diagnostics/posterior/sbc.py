"""Simulation-based calibration: check a posterior on data simulated from the program.

Draw gates and answers from the program, infer the gates from the answers, and rank the true gate among the
posterior draws. The ranks are uniform if the posterior is exact (Talts et al., arXiv 1804.06788). A posterior
that is too narrow gives too many extreme ranks, one that is too wide too few.

A posterior equal to the prior ignores the answers but passes this test for every gate. The log-likelihood is
therefore ranked as well, which detects this case (Modrak et al., Bayesian Analysis 2023).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from pyro import poutine
from torch import Tensor

from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.likelihood import LIKELIHOOD
from bara_pyro.core.modules import value_of
from bara_pyro.core.noise import noise_seed, seeded
from bara_pyro.core.optimizers import adamw, linear_schedule
from bara_pyro.core.program import AdaptedLM
from bara_pyro.core.svi import SVI
from bara_pyro.data.types import Batch
from bara_pyro.diagnostics.posterior.joint import (
    Values,
    check_lengths,
    check_target,
    draw_latents,
    evaluate_latents,
    fixed_weights,
    flat_gates,
    gate_names,
)
from bara_pyro.diagnostics.posterior.uniformity import ecdf_test, resamples_for
from bara_pyro.errors import ConfigError

LOG_LIKELIHOOD = "log-likelihood"

Sampler = Callable[[Batch, int], Values]
"""Maps labelled rows and a seed to L independent draws of every latent, with a fixed L."""


@dataclass(frozen=True)
class Uniformity:
    """The uniformity of the ranks of one quantity."""

    name: str  # name of the quantity
    p: float  # p-value of the hypothesis that the posterior is exact
    rank: float  # mean rank as a share of the draws; 0.5 for an exact posterior
    spread: float  # variance of ranks about the middle over that of uniform ranks; above 1: too narrow


@dataclass(frozen=True)
class Calibration:
    """Ranks of the truth in N simulations, for Q quantities: the gates and the log-likelihood."""

    names: tuple[str, ...]  # names of the quantities
    ranks: Tensor  # long, `N x Q`: rank of the truth among L draws, from 0 to L (see `rank_of_truth`)
    draws: int  # number L of draws

    def uniformity(self, level: float = 0.95) -> tuple[Uniformity, ...]:
        """Return a test of uniformity for each quantity, with the mean and spread of its ranks.

        p-values are resolved finely enough for a decision at `level` on all quantities together.
        """
        share = (self.ranks.double() + 0.5) / (self.draws + 1)
        exact = (1 - 1 / (self.draws + 1) ** 2) / 12  # variance of a discrete uniform share
        p = ecdf_test(self.ranks, self.draws, resamples_for(len(self.names), level))
        results = (p, share.mean(0), (share - 0.5).square().mean(0) / exact)
        return tuple(map(Uniformity, self.names, *(values.tolist() for values in results)))

    def uneven(self, level: float = 0.95) -> tuple[str, ...]:
        """Return the quantities with ranks that are not uniform, at `level` for all quantities together."""
        worst = (1 - level) / len(self.names)  # Bonferroni
        return tuple(test.name for test in self.uniformity(level) if test.p < worst)


def sbc(
    model: AdaptedLM, batch: Batch, sampler: Sampler, *, simulations: int = 50, first: int = 0, seed: int = 0
) -> Calibration:
    """Run simulation-based calibration of an inference method for the gates, with fixed adapter weights.

    Args:
        model: the program, with `num_data` equal to the number of rows and all KL weights 1.
        batch: the rows; their labels are not used.
        sampler: the method to check: `svi_sampler`, or a function that returns L independent draws.
        simulations: number N of simulated data sets.
        first: index of the first data set. Simulations 0..9 and 10..19 together equal simulations 0..19.
        seed: seed of the data sets and of the sampler's seeds.

    Raises:
        ConfigError: the program has no gates, a KL weight or `num_data` changes the posterior, or
            `simulations` is below 1.
        DataError: the rows have different lengths with local gates.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.diagnostics.posterior.sbc import sbc, svi_sampler
        >>> backbone, task = bp.load_backbone("microworld"), bp.load_task("micro-wgs")
        >>> answers = bp.answer_token_ids(backbone.tokenizer, task.labels)
        >>> batch = bp.encode(task.train[:4], backbone.tokenizer).batch(range(4), answers)
        >>> model = bp.models.BaRA(backbone, num_data=4, latent="phi", r=2, target_modules=["lm_head"])
        >>> sampler = svi_sampler(model, bp.guides.WeibullGuide(model), steps=4, draws=7)
        >>> found = sbc(model, batch, sampler, simulations=3)  # far too few to rely on
        >>> found.names, found.ranks.shape, int(found.ranks.max()) <= found.draws
        (('phi[lm_head, 0]', 'phi[lm_head, 1]', 'log-likelihood'), torch.Size([3, 3]), True)
    """
    if simulations < 1:
        raise ConfigError(f"simulations is {simulations}: give 1 or more.")
    names = (*gate_names(model, batch), LOG_LIKELIHOOD)
    batch = batch.to(model.backbone.device)
    check_lengths(model, batch)
    check_target(model, simulate(model, batch, seed)[1])
    ranks, draws = [], 0
    for number in range(first, first + simulations):
        own_seed = noise_seed(seed, f"simulation/{number}")
        truth, labelled = simulate(model, batch, own_seed)
        drawn = sampler(labelled, own_seed)
        both = {name: torch.cat([value[None], drawn[name]]) for name, value in truth.items()}
        likelihood = evaluate_latents(model, labelled, both).log_likelihood
        quantities = torch.cat([flat_gates(both), likelihood[:, None]], dim=1)
        ranks.append(rank_of_truth(quantities[1:], quantities[0], noise_seed(own_seed, "ties")))
        draws = len(quantities) - 1
    return Calibration(names, torch.stack(ranks), draws)


def rank_of_truth(draws: Tensor, truth: Tensor, seed: int = 0) -> Tensor:
    """Return the number of draws below the truth (long, `Q`), with ties broken at random.

    Random tie-breaking is needed if draws can equal the truth: for gates that float32 rounds to the same
    value, or a likelihood that does not depend on the gates (Säilynoja et al., 2022). `draws` are `L x Q`,
    and the truth is `Q`; the seed breaks ties.

    Examples:
        >>> import torch
        >>> rank_of_truth(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([2.5])).tolist()
        [2]
    """
    equal = (draws == truth).sum(0)
    lot = torch.rand(equal.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (draws < truth).sum(0) + (lot.to(equal.device) * (equal + 1)).long()


def simulate(model: AdaptedLM, batch: Batch, seed: int) -> tuple[dict[str, Tensor], Batch]:
    """Draw latents and answers from the program; return the latents by site and the labelled rows."""
    with torch.no_grad(), seeded(model.backbone.device, seed):
        trace = poutine.trace(model.forward).get_trace(replace(batch, labels=None))
    values = {name: value_of(trace.nodes[name]) for name in model.latents.sites}
    return values, replace(batch, labels=value_of(trace.nodes[LIKELIHOOD]).squeeze(-1))


def fit_guide(
    model: AdaptedLM,
    guide: SiteGuide,
    batch: Batch,
    *,
    steps: int,
    lr: float = 0.03,
    sampled_kl: bool = False,
) -> SVI:
    """Fit a guide to labelled rows with fixed adapter weights, starting from its current parameters.

    Args:
        model: the program.
        guide: the guide to fit.
        batch: the labelled rows.
        steps: number of steps.
        lr: initial learning rate, which falls linearly.
        sampled_kl: allow a one-draw estimate of the KL if a pair of distributions has no analytic KL.

    Returns:
        The SVI object after the last step.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.diagnostics.posterior.sbc import fit_guide
        >>> backbone, task = bp.load_backbone("microworld"), bp.load_task("micro-wgs")
        >>> answers = bp.answer_token_ids(backbone.tokenizer, task.labels)
        >>> batch = bp.encode(task.train[:4], backbone.tokenizer).batch(range(4), answers)
        >>> model = bp.models.BaRA(backbone, num_data=4, latent="phi", r=2, target_modules=["lm_head"])
        >>> guide = bp.guides.WeibullGuide(model)
        >>> svi = fit_guide(model, guide, batch, steps=20)
        >>> svi.last["kl_phi"] < 0.5  # untrained adapters: the posterior equals the prior
        True
    """
    with fixed_weights(model):
        optim = adamw(model, guide, lr)
        loss = MeanFieldELBO(sampled_kl=sampled_kl)
        svi = SVI(model, guide, optim, loss, scheduler=linear_schedule(optim, steps))
        for _ in range(steps):
            svi.step(batch)
    return svi


def svi_sampler(
    model: AdaptedLM,
    guide: SiteGuide,
    *,
    steps: int = 200,
    lr: float = 0.03,
    draws: int = 63,
    sampled_kl: bool = False,
) -> Sampler:
    """Return a sampler that fits the guide to each simulated data set and returns L = `draws` draws from it.

    Every fit starts from the current parameters of the guide, which are restored afterwards. A guide that was
    fitted to one simulated data set beforehand needs fewer steps. With too few steps the posterior does not
    look calibrated.

    Args:
        model: the program.
        guide: the guide to fit.
        steps: number of steps of each fit.
        lr: initial learning rate, which falls to 0.
        draws: number L of draws.
        sampled_kl: as for `fit_guide`.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.diagnostics.posterior.sbc import svi_sampler
        >>> backbone, task = bp.load_backbone("microworld"), bp.load_task("micro-wgs")
        >>> answers = bp.answer_token_ids(backbone.tokenizer, task.labels)
        >>> batch = bp.encode(task.train[:4], backbone.tokenizer).batch(range(4), answers)
        >>> model = bp.models.BaRA(backbone, num_data=4, latent="phi", r=2, target_modules=["lm_head"])
        >>> sample = svi_sampler(model, bp.guides.WeibullGuide(model), steps=4, draws=7)
        >>> sample(batch, 0)["phi"].shape
        torch.Size([7, 1, 2])
    """
    start = {name: value.detach().clone() for name, value in guide.named_parameters()}

    def sample(batch: Batch, seed: int) -> Mapping[str, Tensor]:
        try:
            with seeded(model.backbone.device, noise_seed(seed, "fit")):
                fit_guide(model, guide, batch, steps=steps, lr=lr, sampled_kl=sampled_kl)
            return draw_latents(model, guide, batch, draws, noise_seed(seed, "draws")).values
        finally:
            with torch.no_grad():
                for name, value in guide.named_parameters():
                    value.copy_(start[name])

    return sample


def too_sure(sampler: Sampler, factor: float = 0.3) -> Sampler:
    """Return a sampler that should fail the test: draws shrunk towards their mean by `factor`."""

    def sample(batch: Batch, seed: int) -> Mapping[str, Tensor]:
        drawn = sampler(batch, seed)
        return {name: torch.lerp(value.mean(0, keepdim=True), value, factor) for name, value in drawn.items()}

    return sample
