"""One estimate of the bound: its parts, and how they are logged."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from bara_pyro.core.latents import Site
from bara_pyro.core.program import AdaptedLM
from bara_pyro.errors import TrainingError


@dataclass
class ElboTerms:
    """One Monte Carlo estimate of the negative ELBO, with its parts.

    Attributes:
        loss: the negative ELBO of the whole data set, in nats, KL weights included.
        nll: the expected negative log-likelihood of the whole data set, in nats.
        kl: site -> KL(posterior || prior) in nats as it enters at weight 1 and without the data scale: the
            plain KL for a global site, the sum over the batch's rows and real tokens for a local one; 0 for
            one of weight 0, which is not computed. A site whose posterior is its prior (a dropout mask,
            random signs) is not listed.
        extra: site -> negative log-density of what else is observed (an auxiliary likelihood, a factor), with
            weight and scale left out as in `kl`.

    All carry the gradient.
    """

    loss: Tensor
    nll: Tensor
    kl: dict[str, Tensor]
    extra: dict[str, Tensor] = field(default_factory=dict)


def mean_terms(terms: list[ElboTerms]) -> ElboTerms:
    """Return the mean of several estimates, part by part."""
    return ElboTerms(
        loss=torch.stack([t.loss for t in terms]).mean(),
        nll=torch.stack([t.nll for t in terms]).mean(),
        kl={site: torch.stack([t.kl[site] for t in terms]).mean() for site in terms[0].kl},
        extra={site: torch.stack([t.extra[site] for t in terms]).mean() for site in terms[0].extra},
    )


def check_finite(loss: float, terms: ElboTerms) -> None:
    """Raise `TrainingError` where a loss is not finite, with the parts of its terms that are not."""
    if math.isfinite(loss):
        return
    sites = [f"KL of {site}" for site, kl in terms.kl.items() if not kl.isfinite()]
    sites += [site for site, value in terms.extra.items() if not value.isfinite()]
    where = ", ".join(sites) or "likelihood of y"
    raise TrainingError(
        f"The loss is {terms.loss.item()} ({where}): lower the learning rate, or set a clipping norm."
    )


class Part(NamedTuple):
    """One number of a bound: it is logged under `key`, divided by `share`."""

    key: str
    share: float
    value: Tensor


def parts_of(model: AdaptedLM, terms: ElboTerms, rows: int) -> list[Part]:
    """Return the numbers of a bound, on its device; see `per_example`."""
    n, latents = model.num_data, model.latents
    found = [Part("loss", n, terms.loss.detach()), Part("nll", n, terms.nll.detach())]
    sites = [("kl_", latents.sites[name], kl) for name, kl in terms.kl.items()]
    # What a program does not declare is taken for a factor of the whole.
    sites += [("", latents.auxiliary.get(name, Site(name)), v) for name, v in terms.extra.items()]
    return found + [
        Part(prefix + site.family, rows if site.local else 1, v.detach()) for prefix, site, v in sites
    ]


def logged(parts: Sequence[Part], numbers: Sequence[float]) -> dict[str, float]:
    """Return the sums of numbers by their parts' keys, each divided by its share."""
    sums: dict[str, float] = {}
    for part, number in zip(parts, numbers, strict=True):
        sums[part.key] = sums.get(part.key, 0.0) + number / part.share
    return sums


def per_example(model: AdaptedLM, terms: ElboTerms, rows: int) -> dict[str, float]:
    """Return the parts of a bound as they are logged.

    Args:
        model: the program.
        terms: of a batch.
        rows: in the batch.

    Returns:
        In nats per example `loss`, `nll` and what is local (`kl_theta`), in nats what is global (`kl_phi`).
    """
    parts = parts_of(model, terms, rows)
    # In one copy off the device, however many sites there are.
    return logged(parts, torch.stack([part.value for part in parts]).tolist())
