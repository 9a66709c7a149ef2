"""Simulation-based calibration: is the posterior right on average, over data that the program itself makes?

Draw gates and answers from the program, infer the gates from the answers, and rank the true gate among the
posterior's draws. Ranks are uniform if the posterior is exact (Talts et al., arXiv 1804.06788). Too sure a
posterior gives too many extreme ranks, too wide a one too few.

A posterior that ignores the answers and is the prior passes that test for every gate. Hence the rank of
the log-likelihood, too, which it does not pass (Modrak et al., Bayesian Analysis 2023).
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
    check_target,
    draw_latents,
    evaluate_latents,
    fixed_weights,
)
from bara_pyro.diagnostics.posterior.reference import check_lengths, flat_gates, gate_names, nuts
from bara_pyro.diagnostics.posterior.uniformity import ecdf_test, resamples_for
from bara_pyro.diagnostics.posterior.weighing import weighed_draws
from bara_pyro.errors import ConfigError

LOG_LIKELIHOOD = "log-likelihood"
CANDIDATES = 64  # draws that are weighed for each that is kept

Sampler = Callable[[Batch, int], Values]
"""From labelled rows and a seed to independent draws of every latent, always the same number L of them."""


@dataclass(frozen=True)
class Uniformity:
    """How even the ranks of one quantity are."""

    name: str  # of the quantity
    p: float  # probability of ranks as uneven as these if the posterior were exact
    rank: float  # mean rank as a share of the draws; 0.5 if exact
    spread: float  # variance of the ranks about the middle over that of uniform ones; above 1: too sure


@dataclass(frozen=True)
class Calibration:
    """Ranks of the truth in N simulations, of Q quantities: the gates and the log-likelihood."""

    names: tuple[str, ...]  # of the quantities
    ranks: Tensor  # long, `N x Q`: of the truth among the L draws, from 0 to L: see `rank_of_truth`
    draws: int  # L

    def uniformity(self, level: float = 0.95) -> tuple[Uniformity, ...]:
        """Return of each quantity a test of uniformity, and how its ranks differ from uniform ones.

        p-values are fine enough for a verdict at `level` on all quantities together.
        """
        share = (self.ranks.double() + 0.5) / (self.draws + 1)
        exact = (1 - 1 / (self.draws + 1) ** 2) / 12  # of a share that is uniform on so many places
        p = ecdf_test(self.ranks, self.draws, resamples_for(len(self.names), level))
        found = (p, share.mean(0), (share - 0.5).square().mean(0) / exact)
        return tuple(map(Uniformity, self.names, *(values.tolist() for values in found)))

    def uneven(self, level: float = 0.95) -> tuple[str, ...]:
        """Return the quantities whose ranks are not uniform, at `level` for all of them together."""
        worst = (1 - level) / len(self.names)  # Bonferroni
        return tuple(found.name for found in self.uniformity(level) if found.p < worst)


def sbc(
    model: AdaptedLM, batch: Batch, sampler: Sampler, *, simulations: int = 50, first: int = 0, seed: int = 0
) -> Calibration:
    """Run simulation-based calibration of a way to infer the gates, adapter weights fixed.

    Args:
        model: the program, `num_data` the number of rows and all KL weights 1.
        batch: the rows; their labels are not looked at.
        sampler: what is checked: `svi_sampler`, `nuts_sampler`, or anything that returns L independent draws.
        simulations: number N of data sets.
        first: number of the first one: 10 from 0 on and 10 from 10 on are the 20 from 0 on.
        seed: of the data sets, and of the seeds that the sampler is given.

    Raises:
        ConfigError: a program without gates, a weight or `num_data` that makes another posterior, or no
            simulations.
        DataError: rows of different length with local gates.

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
        raise ConfigError(f"simulations={simulations} must be at least 1.")
    names = (*gate_names(model, batch), LOG_LIKELIHOOD)
    batch = batch.to(model.backbone.device)
    check_lengths(model, batch)
    check_target(model, simulate(model, batch, seed)[1])
    ranks, draws = [], 0
    for number in range(first, first + simulations):
        own = noise_seed(seed, f"simulation/{number}")
        truth, labelled = simulate(model, batch, own)
        drawn = sampler(labelled, own)
        both = {name: torch.cat([value[None], drawn[name]]) for name, value in truth.items()}
        likelihood = evaluate_latents(model, labelled, both).log_likelihood
        quantities = torch.cat([flat_gates(both), likelihood[:, None]], dim=1)
        ranks.append(rank_of_truth(quantities[1:], quantities[0], noise_seed(own, "ties")))
        draws = len(quantities) - 1
    return Calibration(names, torch.stack(ranks), draws)


def rank_of_truth(draws: Tensor, truth: Tensor, seed: int = 0) -> Tensor:
    """Return how many of the draws are below the truth, long, `Q`; of those that equal it a number by lot.

    Without the lot an exact posterior with a mass at a point would fail: gates that a small number of float32
    cannot tell apart, a likelihood that does not depend on them (Säilynoja et al., 2022).

    Args:
        draws: `L x Q`.
        truth: `Q`.
        seed: of the lot.

    Examples:
        >>> import torch
        >>> rank_of_truth(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([2.5])).tolist()
        [2]
    """
    equal = (draws == truth).sum(0)
    lot = torch.rand(equal.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (draws < truth).sum(0) + (lot.to(equal.device) * (equal + 1)).long()


def simulate(model: AdaptedLM, batch: Batch, seed: int) -> tuple[dict[str, Tensor], Batch]:
    """Draw latents from the prior and answers from the program; return them by site, and labelled rows."""
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
    """Fit a guide to labelled rows, adapter weights fixed, from where it stands; return the optimiser.

    `sampled_kl` allows an estimate by one draw where a pair of distributions has no KL by formula.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.diagnostics.posterior.sbc import fit_guide
        >>> backbone, task = bp.load_backbone("microworld"), bp.load_task("micro-wgs")
        >>> answers = bp.answer_token_ids(backbone.tokenizer, task.labels)
        >>> batch = bp.encode(task.train[:4], backbone.tokenizer).batch(range(4), answers)
        >>> model = bp.models.BaRA(backbone, num_data=4, latent="phi", r=2, target_modules=["lm_head"])
        >>> guide = bp.guides.WeibullGuide(model)
        >>> svi = fit_guide(model, guide, batch, steps=20)
        >>> svi.last["kl_phi"] < 0.5  # adapters that change nothing yet: the posterior is the prior
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
    weighed: bool = False,
    sampled_kl: bool = False,
) -> Sampler:
    """Return a sampler that fits the guide to each simulated data set and makes L = `draws` draws from it.

    Where they are weighed, L of 64 times as many are kept by their importance weights
    (`bara_pyro.diagnostics.posterior.weighing`). `sampled_kl` is that of `fit_guide`.

    Every fit starts where the guide stands now: one that was fitted to one simulated data set beforehand
    saves the way there each time. It is left there in the end. Too few steps show as a posterior that is not
    calibrated; the learning rate falls to 0.

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
            own = noise_seed(seed, "draws")
            if not weighed:
                return draw_latents(model, guide, batch, draws, own).values
            size = CANDIDATES * draws
            return weighed_draws(model, guide, batch, samples=draws, candidates=size, seed=own).draws.values
        finally:
            with torch.no_grad():
                for name, value in guide.named_parameters():
                    value.copy_(start[name])

    return sample


def nuts_sampler(model: AdaptedLM, *, draws: int = 63, thin: int = 4, warmup: int = 200) -> Sampler:
    """Return the control that has to pass: every `thin`-th draw of a NUTS chain.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.diagnostics.posterior.sbc import nuts_sampler
        >>> backbone, task = bp.load_backbone("microworld"), bp.load_task("micro-wgs")
        >>> answers = bp.answer_token_ids(backbone.tokenizer, task.labels)
        >>> batch = bp.encode(task.train[:4], backbone.tokenizer).batch(range(4), answers)
        >>> model = bp.models.BaRA(backbone, num_data=4, latent="phi", r=2, target_modules=["lm_head"])
        >>> sample = nuts_sampler(model, draws=8, thin=1, warmup=4)
        >>> sample(batch, 0)["phi"].shape
        torch.Size([8, 1, 2])
    """

    def sample(batch: Batch, seed: int) -> Mapping[str, Tensor]:
        found = nuts(model, batch, samples=draws * thin, warmup=warmup, seed=seed)
        return {name: value[thin - 1 :: thin] for name, value in found.values.items()}

    return sample


def too_sure(sampler: Sampler, factor: float = 0.3) -> Sampler:
    """Return the control that has to fail: a sampler's draws, `factor` times as far from their mean."""

    def sample(batch: Batch, seed: int) -> Mapping[str, Tensor]:
        found = sampler(batch, seed)
        return {name: torch.lerp(value.mean(0, keepdim=True), value, factor) for name, value in found.items()}

    return sample
