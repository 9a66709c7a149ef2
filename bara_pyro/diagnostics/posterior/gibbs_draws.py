"""Draws of the Gibbs predictor, which uses new draws of the global gates for every row."""

from dataclasses import replace

import pyro
import torch
from pyro.distributions import Distribution
from torch import Tensor

from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.noise import seeded
from bara_pyro.core.posterior import Posterior
from bara_pyro.data import EncodedSplit, batches
from bara_pyro.data.labels import among_offered
from bara_pyro.runs.system import System

SEQUENCES = 128  # the most draws times rows in a forward pass


class EachRowItsOwn(Posterior):
    """Independent draws of Phi for every row (`draws` each), which define the Gibbs predictor."""

    def __init__(self, guide: SiteGuide, draws: int, rows: int) -> None:
        super().__init__(guide)
        self.shape = (draws, rows)

    def value(self, name: str, fn: Distribution) -> Tensor:
        """Return draws of Phi (`draws x rows x modules x r`) or theta (`draws x rows x T x r`)."""
        return fn.sample(self.shape if name in self.guide.model.latents.global_sites else ())


def gibbs_draws(system: System, split: EncodedSplit, total: int, seed: int) -> Tensor:
    """Return log-probabilities (float64, `S x n x C`) under S n >= `total` independent draws of Phi.

    The draws of `core.prediction.predict` are shared by all rows and would give only S independent ones.

    Args:
        system: the run.
        split: the n rows.
        total: smallest number of independent draws.
        seed: seed of the draws.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.diagnostics.posterior.gibbs_draws import gibbs_draws
        >>> run = bp.train(task="micro-wgs", method="bara-gate", steps=2, limit=8, out="runs/first")
        >>> gibbs_draws(run, run.split("test"), total=20, seed=0).shape  # 3 draws for each row
        torch.Size([3, 8, 2])
    """
    draws = -(-total // len(split))
    pieces = [min(SEQUENCES, draws - first) for first in range(0, draws, SEQUENCES)]
    by_batch = []
    with torch.no_grad(), seeded(system.model.backbone.device, seed):
        for batch in batches(split, system.answer_ids, max(1, SEQUENCES // draws)):
            unlabelled = replace(batch, labels=None).to(system.backbone.device)
            parts = []
            for size in pieces:
                with pyro.plate("draws", size, dim=-3), EachRowItsOwn(system.guide, size, len(batch)):
                    parts.append(system.model.forward(unlabelled).double().log_softmax(-1).cpu())
            by_batch.append(torch.cat(parts))
    return among_offered(torch.cat(by_batch, dim=1), split.offered)
