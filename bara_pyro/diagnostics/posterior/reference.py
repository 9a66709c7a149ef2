"""A reference posterior from NUTS on the program.

The adapter weights are fixed, so the only latents are the gates: Phi, and theta for every row and token. NUTS
(Hoffman and Gelman, JMLR 2014) samples their posterior without a guide. For few gates and rows it is exact up
to Monte Carlo error; a variational posterior is not.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pyro.infer import MCMC, NUTS
from scipy import stats
from torch import Tensor

from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.noise import noise_seed, seeded
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data.types import Batch
from bara_pyro.diagnostics.arviz.compat import arviz
from bara_pyro.diagnostics.posterior.joint import (
    Values,
    check_lengths,
    check_target,
    draw_latents,
    evaluate_latents,
    fixed_weights,
    flat_gates,
    gate_names,
    gates_of,
)
from bara_pyro.errors import ConfigError, DataError, TrainingError
from bara_pyro.metrics import posterior_predictive

MAX_LATENTS = 100
MIN_SAMPLES = 8  # a single chain is split in two, ArviZ splits again, and each piece needs a variance


@dataclass(frozen=True)
class Reference:
    """Draws from the posterior of G gates, ordered by chain."""

    values: dict[str, Tensor]  # site -> `S x` shape of the site; S = chains x draws
    log_probs: Tensor  # float64, `S x B x C`: log-probabilities of the answers
    names: tuple[str, ...]  # names of the G gates, ordered by site
    chains: int  # number of chains
    divergences: int  # number of divergent transitions after the warm-up; should be 0
    acceptance: tuple[float, ...]  # mean acceptance probability of each chain
    ess: Tensor  # float64, `G`: bulk effective sample size
    r_hat: Tensor  # float64, `G`: rank-normalized split R-hat (Vehtari et al. 2021); should be below 1.01

    @property
    def gates(self) -> Tensor:
        """The draws of all gates, float64, `S x G`."""
        return flat_gates(self.values)


def nuts(
    model: AdaptedLM,
    batch: Batch,
    *,
    samples: int = 500,
    warmup: int = 300,
    chains: int = 1,
    seed: int = 0,
    max_latents: int = MAX_LATENTS,
    max_tree_depth: int = 8,
    **kernel: Any,
) -> Reference:
    """Sample the posterior of the gates given labelled rows and fixed adapter weights, with Pyro's NUTS.

    Every leapfrog step needs a gradient of the language model, so use a tiny backbone, few rows and few
    gates. Gates are positive; Pyro samples their logarithms.

    Args:
        model: the program, with `num_data` equal to the number of rows and all KL weights 1.
        batch: the labelled rows. With local gates they must have equal lengths, because the data do not
            determine gates of padding.
        samples: number of draws in a chain after the warm-up.
        warmup: number of adaptation steps, which are discarded.
        chains: number of chains, run one after the other.
        seed: seed of the chains.
        max_latents: largest number of gates to accept.
        max_tree_depth: a draw takes at most `2 ** max_tree_depth` leapfrog steps.
        **kernel: other arguments of `pyro.infer.NUTS`, such as `target_accept_prob` and `full_mass`.

    Raises:
        ConfigError: the program has no gates or too many, a KL weight or `num_data` changes the posterior, or
            a number is out of range.
        DataError: the rows have no labels, or different lengths with local gates.
        TrainingError: a chain never moved.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.diagnostics.posterior.reference import nuts
        >>> backbone, task = bp.load_backbone("microworld"), bp.load_task("micro-wgs")
        >>> answers = bp.answer_token_ids(backbone.tokenizer, task.labels)
        >>> batch = bp.encode(task.train[:4], backbone.tokenizer).batch(range(4), answers)
        >>> model = bp.models.BaRA(backbone, num_data=4, latent="phi", r=2, target_modules=["lm_head"])
        >>> reference = nuts(model, batch, samples=12, warmup=8, max_tree_depth=2)  # too few to rely on
        >>> reference.names, reference.values["phi"].shape
        (('phi[lm_head, 0]', 'phi[lm_head, 1]'), torch.Size([12, 1, 2]))
    """
    gates_of(model)
    if samples < MIN_SAMPLES or warmup < 0 or chains < 1:
        raise ConfigError(
            f"samples={samples}, warmup={warmup}, chains={chains}: give at least {MIN_SAMPLES}, 0 and 1."
        )
    batch = batch.to(model.backbone.device)
    shapes = check_target(model, batch)
    check_lengths(model, batch)
    latents = sum(map(math.prod, shapes.values()))
    if latents > max_latents:
        raise ConfigError(
            f"{latents} gates exceed max_latents={max_latents}: adapt fewer modules, lower r, give fewer or "
            "shorter rows, or raise max_latents."
        )
    by_chain, divergences, acceptance = [], 0, []
    for chain in range(chains):
        sampler = NUTS(model.forward, max_tree_depth=max_tree_depth, **kernel)
        hidden = not sys.stderr.isatty()
        mcmc = MCMC(sampler, num_samples=samples, warmup_steps=warmup, disable_progbar=hidden)
        with fixed_weights(model), seeded(model.backbone.device, noise_seed(seed, f"chain/{chain}")):
            mcmc.run(batch)
        facts = mcmc.diagnostics()
        divergences += len(facts["divergences"]["chain 0"])
        acceptance.append(float(facts["acceptance rate"]["chain 0"]))
        by_chain.append(mcmc.get_samples())
    values = {name: torch.cat([chain[name] for chain in by_chain]).detach() for name in shapes}
    return reference_from(model, batch, values, chains, divergences, acceptance)


def reference_from(
    model: AdaptedLM,
    batch: Batch,
    values: Values,
    chains: int = 1,
    divergences: int = 0,
    acceptance: Sequence[float] = (),
) -> Reference:
    """Return a reference made of given posterior draws, ordered by chain; see `Reference`.

    Raises:
        TrainingError: a chain never moved.
    """
    gates = flat_gates(values).reshape(chains, -1, len(gate_names(model, batch)))
    if bool((gates.amax(1) == gates.amin(1)).any()):
        raise TrainingError("A chain never moved: use more warm-up steps or a smaller step size.")
    return Reference(
        dict(values),
        evaluate_latents(model, batch.to(model.backbone.device), values).log_probs,
        gate_names(model, batch),
        chains,
        divergences,
        tuple(acceptance),
        _chain_statistic("ess", gates),
        _chain_statistic("rhat", gates),
    )


def _chain_statistic(name: str, gates: Tensor) -> Tensor:
    """Return a statistic of ArviZ for each gate, from `chains x draws x G`."""
    if len(gates) == 1:  # R-hat compares chains: split a single chain in halves
        half = gates.shape[1] // 2
        gates = torch.stack([gates[0, :half], gates[0, -half:]])
    function = getattr(arviz(), name)
    return torch.tensor([float(function(gate.numpy())) for gate in gates.unbind(-1)], dtype=torch.float64)


INTERVAL = 0.9
KS_CRITICAL = 1.358  # critical value of Kolmogorov's distribution at 5 %


@dataclass(frozen=True)
class GateComparison:
    """The marginal distribution of a gate under the reference and a guide, with central 90 % intervals."""

    gate: str  # name of the gate
    mean: float  # mean of the reference
    low: float  # ends of the interval of the reference
    high: float
    guide_mean: float  # mean of the guide
    guide_low: float  # ends of the interval of the guide
    guide_high: float
    sd_ratio: float  # standard deviation of guide over reference; below 1 the guide is overconfident
    wasserstein: float  # 1-Wasserstein distance, in standard deviations of the reference
    ks: float  # Kolmogorov-Smirnov distance, from 0 to 1
    ks_noise: float  # 95 % quantile of `ks` if both distributions are equal


@dataclass(frozen=True)
class Comparison:
    """The comparison of a guide with the reference posterior."""

    gates: tuple[GateComparison, ...]
    ids: tuple[str, ...]  # identifiers of the B rows
    reference_probs: Tensor  # float64, `B x C`: posterior-predictive probabilities of the reference
    guide_probs: Tensor  # float64, `B x C`: those of the guide

    @property
    def largest_difference(self) -> float:
        """The largest difference between predicted probabilities, in percentage points."""
        return 100 * float((self.reference_probs - self.guide_probs).abs().max())


def compare_with_reference(
    model: AdaptedLM,
    guide: SiteGuide,
    reference: Reference,
    batch: Batch,
    *,
    samples: int = 2000,
    seed: int = 0,
) -> Comparison:
    """Compare a fitted guide with the reference posterior of the same rows, by gate and by prediction.

    Args:
        model: the program.
        guide: its fitted guide.
        reference: posterior draws from `nuts`.
        batch: the labelled rows that guide and reference were fitted to.
        samples: number of draws from the guide.
        seed: seed of these draws.

    Raises:
        ConfigError: a KL weight or `num_data` changes the posterior, or the guide belongs to another model.
        DataError: the rows are not those of the reference.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.diagnostics.posterior.reference import compare_with_reference, nuts
        >>> backbone, task = bp.load_backbone("microworld"), bp.load_task("micro-wgs")
        >>> answers = bp.answer_token_ids(backbone.tokenizer, task.labels)
        >>> batch = bp.encode(task.train[:4], backbone.tokenizer).batch(range(4), answers)
        >>> model = bp.models.BaRA(backbone, num_data=4, latent="phi", r=2, target_modules=["lm_head"])
        >>> reference = nuts(model, batch, samples=12, warmup=8, max_tree_depth=2)  # too few to rely on
        >>> guide = bp.guides.WeibullGuide(model)
        >>> found = compare_with_reference(model, guide, reference, batch, samples=40)
        >>> [gate.gate for gate in found.gates], found.guide_probs.shape
        (['phi[lm_head, 0]', 'phi[lm_head, 1]'], torch.Size([4, 2]))
    """
    batch = batch.to(model.backbone.device)
    check_target(model, batch)
    names = gate_names(model, batch)
    if names != reference.names or reference.log_probs.shape[1] != len(batch):
        raise DataError(
            f"The reference has {len(reference.names)} gates and {reference.log_probs.shape[1]} rows, the "
            f"model {len(names)} and {len(batch)}: give the model and the rows of the reference."
        )
    drawn = draw_latents(model, guide, batch, samples, seed)
    pairs = zip(names, reference.gates.T, flat_gates(drawn.values).T, reference.ess.tolist(), strict=True)
    return Comparison(
        tuple(_compare(*pair) for pair in pairs),
        batch.ids,
        posterior_predictive(reference.log_probs).exp(),
        posterior_predictive(drawn.log_probs).exp(),
    )


def _compare(name: str, reference: Tensor, guide: Tensor, ess: float) -> GateComparison:
    tails = torch.tensor([(1 - INTERVAL) / 2, (1 + INTERVAL) / 2], dtype=torch.float64)
    sd = float(reference.std())
    low, high = reference.quantile(tails).tolist()
    guide_low, guide_high = guide.quantile(tails).tolist()
    return GateComparison(
        name,
        mean=float(reference.mean()),
        low=low,
        high=high,
        guide_mean=float(guide.mean()),
        guide_low=guide_low,
        guide_high=guide_high,
        sd_ratio=float(guide.std()) / sd if len(guide) > 1 else math.nan,
        wasserstein=float(stats.wasserstein_distance(reference.numpy(), guide.numpy())) / sd,
        ks=float(stats.ks_2samp(reference.numpy(), guide.numpy(), method="asymp").statistic),
        ks_noise=KS_CRITICAL * math.sqrt(1 / ess + 1 / len(guide)),
    )
