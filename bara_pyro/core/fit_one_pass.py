"""Fit the one-pass predictive (`bara_pyro.posthoc.one_pass`) to rows that a program was trained on."""

from collections.abc import Iterable
from contextlib import nullcontext

import torch
from torch import Tensor

from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.prediction import predict
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data.batching import first_batches
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError
from bara_pyro.metrics import posterior_predictive

MOST, DRAWS = 512, 32


def check_one_pass(model: AdaptedLM, guide: SiteGuide, method: str = "this program") -> None:
    """Refuse what has no draws of latents to stand for; `method` is what the error calls it.

    Raises:
        ConfigError: there are no latents, or the guide's draws of them will not differ.
    """
    if not (model.latents and guide.stochastic_once_fitted):
        raise ConfigError(
            f"one_pass (--one-pass) stands for the average of many draws, and {method} has none that differ: "
            "leave it out."
        )


def fit_one_pass(
    model: AdaptedLM,
    guide: SiteGuide,
    batches: Iterable[Batch],
    *,
    samples: int = DRAWS,
    seed: int = 0,
    offered: Tensor | None = None,
) -> dict[str, float]:
    """Make the prediction with S = 0 stand for the average of draws; to be called when training is over.

    Args:
        model: the program, made with `one_pass=True`.
        guide: its fitted guide.
        batches: of training rows, of which the first `MOST` are looked at; labels are not.
        samples: number of draws to stand for.
        seed: of these.
        offered: in the order of these rows, which answers each one has to choose from, bool, `n x C`; None:
            all.

    Returns:
        See `bara_pyro.posthoc.one_pass.OnePass.fit`.

    Raises:
        ConfigError: the program is not made for it, or nothing differs between its draws, or not yet.
        DataError: there are too few rows.
    """
    if model.one_pass is None:
        raise ConfigError("This program has no one-pass predictive: make it with one_pass=True.")
    check_one_pass(model, guide)
    if not guide.stochastic:
        raise ConfigError(
            f"This {type(guide).__name__} has no draws yet: fit its posterior first, as the method does."
        )
    log_probs, states, done = [], [], 0
    average: list[Tensor] = []
    for batch in first_batches(batches, MOST):
        with model.one_pass.unfitted(), model.watched() as seen:
            log_probs.append(predict(model, guide, batch, samples=0)[0])
        states += seen
        # Not the noise of foreign rows, which S = 0 is to know nothing of.
        with nullcontext() if model.distance is None else model.distance.unfitted():
            drawn = predict(model, guide, batch, samples=samples, seed=seed)
        if offered is not None:
            drawn = drawn.masked_fill(~offered[done : done + len(batch)], -torch.inf).log_softmax(-1)
        average.append(posterior_predictive(drawn))
        done += len(batch)
    there = torch.cat(states).float()
    # What `predict` returns is on the CPU.
    points, averages = (torch.cat(values).to(there.device) for values in (log_probs, average))
    return model.one_pass.fit(points, there, averages)
