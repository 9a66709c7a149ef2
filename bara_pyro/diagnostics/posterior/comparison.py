"""How far a guide is from the reference posterior: gate by gate, and in what is predicted."""

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
from bara_pyro.diagnostics.posterior.weighing import weighed_draws
from bara_pyro.errors import DataError
from bara_pyro.metrics import posterior_predictive

INTERVAL = 0.9
CANDIDATES = 5  # draws that are weighed for each that is kept
KS_CRITICAL = 1.358  # of Kolmogorov's distribution at 5 %


@dataclass(frozen=True)
class GateComparison:
    """One gate's marginal under the reference and under a guide: means and central 90 % intervals."""

    gate: str
    mean: float  # of the reference
    low: float
    high: float
    guide_mean: float
    guide_low: float
    guide_high: float
    sd_ratio: float  # of the guide over that of the reference; below 1 the guide is too sure
    wasserstein: float  # 1-Wasserstein distance, in standard deviations of the reference
    ks: float  # Kolmogorov-Smirnov distance, from 0 to 1
    ks_noise: float  # what `ks` stays below in 95 % of cases where both distributions are one


@dataclass(frozen=True)
class Comparison:
    """A guide beside the reference."""

    gates: tuple[GateComparison, ...]
    ids: tuple[str, ...]  # of the B rows
    reference_probs: Tensor  # float64, `B x C`: posterior-predictive probabilities
    guide_probs: Tensor

    @property
    def largest_difference(self) -> float:
        """The largest difference between two predicted probabilities, percentage points."""
        return 100 * float((self.reference_probs - self.guide_probs).abs().max())


def compare_with_reference(
    model: AdaptedLM,
    guide: SiteGuide,
    reference: Reference,
    batch: Batch,
    *,
    samples: int = 2000,
    seed: int = 0,
    weighed: bool = False,
) -> Comparison:
    """Set a fitted guide beside the reference posterior of the same rows, gate by gate and in predictions.

    Args:
        model: the program.
        guide: its fitted guide.
        reference: draws from the posterior, of `nuts`.
        batch: the labelled rows that both were given.
        samples: draws from the guide.
        seed: of those draws.
        weighed: take five times as many, and keep `samples` of them by their importance weights
            (`bara_pyro.diagnostics.posterior.weighing`).

    Raises:
        ConfigError: weights or `num_data` that make another posterior, or a guide of another model; a guide
            that is a point, which cannot be weighed.
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
            f"model {len(names)} and {len(batch)}: give the model and the rows that it was sampled for."
        )
    drawn, effective = draw_latents(model, guide, batch, samples, seed), float(samples)
    if weighed:
        size = CANDIDATES * samples
        found = weighed_draws(model, guide, batch, samples=samples, candidates=size, seed=seed)
        # Draws that are kept twice tell once: two sources of chance, the candidates' weights and the choice.
        drawn, effective = found.draws, 1 / (1 / found.effective + 1 / samples)
    pairs = zip(names, reference.gates.T, flat_gates(drawn.values).T, reference.ess.tolist(), strict=True)
    return Comparison(
        tuple(_compare(*pair, effective) for pair in pairs),
        batch.ids,
        posterior_predictive(reference.log_probs).exp(),
        posterior_predictive(drawn.log_probs).exp(),
    )


def _compare(name: str, reference: Tensor, guide: Tensor, ess: float, own_ess: float) -> GateComparison:
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
        ks_noise=KS_CRITICAL * math.sqrt(1 / ess + 1 / own_ess),
    )
