"""Parts of one ELBO estimate, and their units in logs."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from pyro.infer import JitTrace_ELBO, JitTraceMeanField_ELBO, Trace_ELBO
from pyro.poutine import trace
from pyro.poutine.trace_struct import Trace
from torch import Tensor

from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.latents import Site
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError, TrainingError

FLOAT64_SUM = 1_000_000  # more values than this are summed in float64: float32 would lose needed digits


@dataclass
class ElboTerms:
    """One Monte Carlo estimate of the negative ELBO, with its parts.

    Attributes:
        loss: the negative ELBO of the whole data set, in nats, KL weights included.
        nll: the expected negative log-likelihood of the whole data set, in nats.
        kl: site -> KL(posterior || prior) in nats, without its weight and the data scale: the plain KL for a
            global site, the sum over the batch's rows and real tokens for a local site. A KL of weight 0 is
            not computed and listed as 0. Sites whose posterior is their prior (dropout masks, random signs)
            are left out.
        extra: site -> negative log-density of other observed sites (an auxiliary likelihood, a factor), also
            without weight and scale.

    All tensors carry gradients.
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


def check_elbo(elbo: object) -> None:
    """Raise a `ConfigError` for what is neither None nor an ELBO of one pass, or records the program."""
    traced = isinstance(elbo, JitTrace_ELBO | JitTraceMeanField_ELBO)
    if traced or not (elbo is None or isinstance(elbo, Trace_ELBO)):
        raise ConfigError(f"The loss is a {type(elbo).__name__}: see docs/swap.md for what fits bp.SVI.")


def loss_alone(elbo: Trace_ELBO, model: AdaptedLM, guide: SiteGuide, batch: Batch) -> ElboTerms:
    """Return the loss of one of Pyro's ELBOs without its parts: `nll` is NaN, and `kl` is empty.

    Raises:
        ConfigError: the guide belongs to another model, or a parameter lies in Pyro's store.
    """
    guide.check(model)
    with trace(param_only=True) as seen:
        loss = elbo.differentiable_loss(model, guide, batch)
    check_stored(seen.trace, guide, {id(value) for part in (model, guide) for value in part.parameters()})
    return ElboTerms(loss, torch.full_like(loss, torch.nan), {})


def check_stored(seen: Trace, guide: SiteGuide, own: Collection[int] = ()) -> None:
    """Raise a `ConfigError` for a parameter in Pyro's store; `own` has the ids of those outside it."""
    for name, node in seen.nodes.items():
        if node["type"] == "param" and id(node["value"]) not in own:
            raise ConfigError(
                f"{type(guide).__name__} or its model uses pyro.param({name!r}), which this SVI cannot "
                "train: make it an nn.Parameter, or fit with pyro.infer.SVI."
            )


def check_finite(loss: float, terms: ElboTerms) -> None:
    """Raise a `TrainingError` that names the parts of a loss that are not finite, if there are any."""
    if math.isfinite(loss):
        return
    sites = [f"KL of {site}" for site, kl in terms.kl.items() if not kl.isfinite()]
    sites += [site for site, value in terms.extra.items() if not value.isfinite()]
    where = sites[0] if sites else "likelihood of y"
    more = f" and {len(sites) - 1} more" if len(sites) > 1 else ""
    # Registered KL terms are infinite for a posterior beyond the support of the prior, such as a Normal.
    beyond = ", or check that the guide draws only values that the prior allows"
    raise TrainingError(
        f"The loss is {terms.loss.item()} ({where}{more}): lower the learning rate, set a clipping norm"
        f"{beyond if any(kl == math.inf for kl in terms.kl.values()) else ''}."
    )


class Part(NamedTuple):
    """One part of a bound, logged under `key` as `value / share`."""

    key: str
    share: float
    value: Tensor


def parts_of(model: AdaptedLM, terms: ElboTerms, rows: int) -> list[Part]:
    """Return the parts of a bound as tensors on its device; see `per_example`."""
    n, latents = model.num_data, model.latents
    parts = [Part("loss", n, terms.loss.detach()), Part("nll", n, terms.nll.detach())]
    sites = [("kl_", latents.sites[name], kl) for name, kl in terms.kl.items()]
    # A site that the program does not declare counts as a global factor.
    sites += [("", latents.auxiliary.get(name, Site(name)), v) for name, v in terms.extra.items()]
    return parts + [
        Part(prefix + site.family, rows if site.local else 1, v.detach()) for prefix, site, v in sites
    ]


def logged(parts: Sequence[Part], numbers: Sequence[float]) -> dict[str, float]:
    """Return key -> sum of the numbers of its parts, each divided by its part's share."""
    sums: dict[str, float] = {}
    for part, number in zip(parts, numbers, strict=True):
        sums[part.key] = sums.get(part.key, 0.0) + number / part.share
    return sums


def per_example(model: AdaptedLM, terms: ElboTerms, rows: int) -> dict[str, float]:
    """Return the parts of a bound in the units of the logs.

    `loss`, `nll` and local parts (`kl_theta`) of a batch of `rows` rows are in nats per example, global parts
    (`kl_phi`) in nats.
    """
    parts = parts_of(model, terms, rows)
    # One copy off the device, whatever the number of sites.
    return logged(parts, torch.stack([part.value for part in parts]).tolist())


def total(values: Tensor, scale: Tensor | float) -> Tensor:
    """Return the scaled sum of values, a scalar."""
    dtype = torch.float64 if values.numel() > FLOAT64_SUM else values.dtype
    if isinstance(scale, Tensor) and scale.ndim:
        values, scale = values * scale, 1.0
    return values.sum(dtype=dtype) * scale
