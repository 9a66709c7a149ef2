"""Fit the noise of foreign rows (`bara_pyro.posthoc.distance`) to rows that a program was trained on."""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.prediction import predict
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data.batching import first_batches
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError

MOST = 4096  # rows that are looked at: a covariance of thousands is known well enough


def fit_distance(
    model: AdaptedLM,
    guide: SiteGuide,
    batches: Iterable[Batch],
    *,
    groups: Sequence[str] | None = None,
    offered: Tensor | None = None,
) -> dict[str, float]:
    """Make a fitted program's predictions distance-aware; to be called when training is over.

    Args:
        model: the program, made with `distance_aware=True`.
        guide: its fitted guide.
        batches: of training rows, of which the first `MOST` are looked at; labels are not.
        groups: in the order of these rows, the name of each one's group (`bara_pyro.data.clusters.together`),
            whose rows look nearer to one another than rows to come will be; None: each row is alone.
        offered: in the same order, which answers each row has to choose from, bool, `n x C`; None: all.

    Returns:
        See `bara_pyro.posthoc.distance.Distance.fit`.

    Raises:
        ConfigError: the program is not distance-aware.
        DataError: there are too few rows.
    """
    if model.distance is None:
        raise ConfigError("This program is not distance-aware: make it with distance_aware=True.")
    states, log_probs = [], []
    for batch in first_batches(batches, MOST):
        states.append(model.unadapted(batch))
        with nullcontext() if model.one_pass is None else model.one_pass.unfitted():
            log_probs.append(predict(model, guide, batch, samples=0)[0])
    points = torch.cat(log_probs)
    if offered is not None:
        points = points.masked_fill(~offered[: len(points)], -torch.inf)
    return model.distance.fit(torch.cat(states), points, None if groups is None else groups[: len(points)])
