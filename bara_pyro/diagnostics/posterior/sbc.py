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
from matplotlib.figure import Figure
from pyro import poutine
from torch import Tensor

from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.likelihood import LIKELIHOOD
from bara_pyro.core.prediction import noise_seed
from bara_pyro.core.sites import value_of
from bara_pyro.core.svi import SVI, adamw, linear_schedule
from bara_pyro.data.types import Batch
from bara_pyro.diagnostics.posterior.joint import (
    Values,
    check_target,
    draw,
    evaluate,
    fixed_weights,
    latent_names,
    seeded,
)
from bara_pyro.diagnostics.posterior.reference import check_lengths, flat_gates, gate_names, nuts
from bara_pyro.diagnostics.posterior.uniformity import band, chi_square, ecdf, ecdf_test
from bara_pyro.errors import ConfigError
from bara_pyro.models.bara import BaRA
from bara_pyro.report import Column, Table
from bara_pyro.report.style import GREY, dress, legend_of, line_style, new_figure

LOG_LIKELIHOOD = "log-likelihood"

Sampler = Callable[[Batch, int], Values]
"""From labelled rows and a seed to independent draws of every latent, always the same number L of them."""


@dataclass(frozen=True)
class Calibration:
    """Ranks of the truth in N simulations, of Q quantities: the gates and the log-likelihood.

    Attributes:
        names: of the quantities.
        ranks: long, `N x Q`: how many of the L draws are below the truth, from 0 to L.
        draws: L.
    """

    names: tuple[str, ...]
    ranks: Tensor
    draws: int

    def histogram(self, bins: int | None = None) -> Tensor:
        """Return the counts of ranks in bins of equal width, long, `Q x bins`.

        Args:
            bins: must divide L + 1; by default the most that leave five simulations a bin.

        Raises:
            ConfigError: `bins` does not divide L + 1.
        """
        total = self.draws + 1
        fits = [k for k in range(2, total + 1) if total % k == 0 and len(self.ranks) >= 5 * k]
        bins = bins or max(fits, default=2 if total % 2 == 0 else total)
        if total % bins:
            raise ConfigError(f"bins={bins} must divide the number of ranks, {total}.")
        which = self.ranks.T // (total // bins)
        return torch.zeros(len(self.names), bins, dtype=torch.long).scatter_add_(
            1, which, torch.ones_like(which)
        )

    def p_values(self) -> Tensor:
        """Return of each quantity the probability of ranks as uneven as these if the posterior were exact."""
        return ecdf_test(self.ranks, self.draws)

    def uneven(self, level: float = 0.95) -> tuple[str, ...]:
        """Return the quantities whose ranks are not uniform, at `level` for all of them together."""
        worst = (1 - level) / len(self.names)  # Bonferroni
        return tuple(n for n, p in zip(self.names, self.p_values().tolist(), strict=True) if p < worst)

    def table(self) -> Table:
        """Return a row a quantity: tests of uniformity, and how the ranks differ from uniform ones."""
        columns = (
            Column("name", "quantity"),
            Column("ecdf", "ECDF test", "p", ".3f"),
            Column("chi", "chi-square", "p", ".3f"),
            Column("rank", "mean rank", "0.5 if exact"),
            Column("spread", "rank variance", "1 if exact, above: too sure"),
        )
        share = (self.ranks.double() + 0.5) / (self.draws + 1)
        found = {
            "ecdf": self.p_values(),
            "chi": chi_square(self.histogram()),
            "rank": share.mean(0),
            "spread": (share - 0.5).square().mean(0) * 12,
        }
        rows = [
            {"name": name, **{key: float(values[i]) for key, values in found.items()}}
            for i, name in enumerate(self.names)
        ]
        return Table(columns, rows, f"{len(self.ranks)} simulations, {self.draws} draws each")

    def figure(self, level: float = 0.95) -> Figure:
        """Draw the ranks' distribution functions minus the uniform one.

        A quantity whose posterior is exact lies in the band everywhere with probability `level`.
        """
        share = torch.arange(1, self.draws + 1).double() / (self.draws + 1)
        low, high = band(len(self.ranks), self.draws, level)
        figure = new_figure(5.6, 3.8)
        axes = figure.add_subplot()
        label = f"{level:.0%} band"
        axes.fill_between(share, low - share, high - share, color=GREY, alpha=0.25, linewidth=0, label=label)
        for i, (name, line) in enumerate(zip(self.names, ecdf(self.ranks, self.draws), strict=True)):
            axes.step(share, line - share, where="post", linewidth=1.4, label=name, **line_style(i))
        dress(axes, "Rank of the truth (share of draws)", "ECDF minus uniform")
        legend_of(figure, loc="outside right upper")
        return figure


def sbc(
    model: BaRA, batch: Batch, sampler: Sampler, *, simulations: int = 50, first: int = 0, seed: int = 0
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
        ConfigError: a weight or `num_data` that makes another posterior, or no simulations.
        DataError: rows of different length with local gates.
    """
    if simulations < 1:
        raise ConfigError(f"simulations={simulations} must be at least 1.")
    batch = batch.to(model.backbone.device)
    check_lengths(model, batch)
    check_target(model, simulate(model, batch, seed)[1])
    ranks = []
    for number in range(first, first + simulations):
        own = noise_seed(seed, f"simulation/{number}")
        truth, labelled = simulate(model, batch, own)
        drawn = sampler(labelled, own)
        both = {name: torch.cat([truth[name][None], drawn[name]]) for name in latent_names(model)}
        likelihood = evaluate(model, labelled, both).log_likelihood
        quantities = torch.cat([flat_gates(both), likelihood[:, None]], dim=1)
        ranks.append((quantities[1:] < quantities[0]).sum(0))
    names = (*gate_names(model, batch), LOG_LIKELIHOOD)
    return Calibration(names, torch.stack(ranks), len(quantities) - 1)


def simulate(model: BaRA, batch: Batch, seed: int) -> tuple[dict[str, Tensor], Batch]:
    """Draw gates from the prior and answers from the program; return the gates by site, and labelled rows."""
    with torch.no_grad(), seeded(model, seed):
        trace = poutine.trace(model.forward).get_trace(replace(batch, labels=None))
    values = {name: value_of(trace.nodes[name]) for name in latent_names(model)}
    return values, replace(batch, labels=value_of(trace.nodes[LIKELIHOOD]).squeeze(-1))


def fit_guide(model: BaRA, guide: SiteGuide, batch: Batch, *, steps: int, lr: float = 0.03) -> SVI:
    """Fit a guide to labelled rows, adapter weights fixed, from where it stands; return the optimiser."""
    with fixed_weights(model):
        optim = adamw(model, guide, lr)
        svi = SVI(model, guide, optim, scheduler=linear_schedule(optim, steps))
        for _ in range(steps):
            svi.step(batch)
    return svi


def svi_sampler(
    model: BaRA, guide: SiteGuide, *, steps: int = 200, lr: float = 0.03, draws: int = 63
) -> Sampler:
    """Return a sampler that fits the guide to each simulated data set and draws from it.

    Every fit starts where the guide stands now: one that was fitted to one simulated data set beforehand
    saves the way there each time. It is left there in the end.

    Args:
        model: the program.
        guide: the family to check.
        steps: optimiser steps a simulation; too few show as a posterior that is not calibrated.
        lr: learning rate at the start, which falls to 0.
        draws: L; 63 makes 64 ranks, which many numbers of bins divide.
    """
    start = {name: value.detach().clone() for name, value in guide.named_parameters()}

    def reset() -> None:
        with torch.no_grad():
            for name, value in guide.named_parameters():
                value.copy_(start[name])

    def sample(batch: Batch, seed: int) -> Mapping[str, Tensor]:
        try:
            with seeded(model, noise_seed(seed, "fit")):
                fit_guide(model, guide, batch, steps=steps, lr=lr)
            return draw(model, guide, batch, draws, noise_seed(seed, "draws")).values
        finally:
            reset()

    return sample


def nuts_sampler(model: BaRA, *, draws: int = 63, thin: int = 4, warmup: int = 200) -> Sampler:
    """Return the control that has to pass: every `thin`-th draw of a NUTS chain."""

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
