"""Compare a guide with the reference posterior, gate by gate and in its predictions."""

import math
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data.types import Batch
from bara_pyro.diagnostics.posterior.joint import check_target, draw_latents
from bara_pyro.diagnostics.posterior.reference import Reference, flat_gates, gate_names
from bara_pyro.errors import DataError
from bara_pyro.metrics import posterior_predictive

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
        >>> from bara_pyro.diagnostics.posterior.comparison import compare_with_reference
        >>> from bara_pyro.diagnostics.posterior.reference import nuts
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
