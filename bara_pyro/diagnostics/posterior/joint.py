"""The program as a density of latents and answers: log p(z) + log p(y | z), and log q(z) of a guide.

What the checks of a posterior share. Densities are those of all rows together and carry no weights, so that
they are the posterior's up to a constant only where the program weighs nothing either: `check_target`.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pyro
import torch
from pyro import poutine
from pyro.distributions import TorchDistribution
from pyro.distributions.util import scale_and_mask
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from pyro.poutine.trace_struct import Trace
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.likelihood import LIKELIHOOD
from bara_pyro.core.program import AdaptedLM
from bara_pyro.core.sites import law_of, value_of
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError, DataError

# Sequences a forward: draws times rows. For the small programs of these checks, not for training.
SEQUENCES = 512

Values = Mapping[str, Tensor]
"""Site -> draws: `S x modules x r` of phi, `S x B x T x r` of a local one (T = 1 at the answer head)."""


@dataclass(frozen=True)
class Draws:
    """S draws of all latents, and what program and guide say of them.

    Attributes:
        values: the draws by site.
        log_probs: float64, `S x B x C`: the answers' log-probabilities.
        log_prior: float64, `S`: log p(z), nats.
        log_likelihood: float64, `S`: log p(y | z) of all rows, nats.
        log_posterior: float64, `S`: log q(z), nats; 0 where no guide was asked.
    """

    values: dict[str, Tensor]
    log_probs: Tensor
    log_prior: Tensor
    log_likelihood: Tensor
    log_posterior: Tensor


def latent_names(model: AdaptedLM) -> tuple[str, ...]:
    """Return the program's latent sites, global ones first."""
    return tuple(model.latents.sites)


def check_target(model: AdaptedLM, batch: Batch) -> dict[str, tuple[int, ...]]:
    """Check that the program given these rows is an untempered joint density of exactly them.

    Returns:
        The shape of each latent.

    Raises:
        ConfigError: no latents; `num_data` is not the number of rows; a latent's KL weight is not 1.
        DataError: the rows have no labels.
    """
    names = latent_names(model)
    if not names:
        raise ConfigError(
            f"{type(model).__name__} has no latents, hence no posterior: choose another method."
        )
    if batch.labels is None:
        raise DataError("The rows have no labels: a posterior is given answers, so give labelled rows.")
    if model.num_data != len(batch):
        raise ConfigError(
            f"num_data={model.num_data} for {len(batch)} rows would count each row "
            f"{model.num_data / len(batch):g} times: build the model with num_data={len(batch)}."
        )
    with torch.no_grad(), seeded(model, 0):
        trace = poutine.trace(model.forward).get_trace(batch)
    for name in names:
        weight = _weight(trace.nodes[name])
        if weight != 1:
            raise ConfigError(
                f"Site {name!r} enters with weight {weight:g}, which makes another posterior: build the "
                "model with KL weights (beta) of 1."
            )
    return {name: tuple(value_of(trace.nodes[name]).shape) for name in names}


def _weight(site: Message) -> float:
    mask = site["mask"]
    # A weight of 0 is a mask of False, which the mask of the tokens has been joined to.
    off = mask is False or (isinstance(mask, Tensor) and not mask.any())
    return 0.0 if off else float(site["scale"])


@contextmanager
def seeded(model: AdaptedLM, seed: int) -> Iterator[None]:
    """Seed torch while the block runs, and leave the generators as they were."""
    device = model.backbone.device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


@contextmanager
def fixed_weights(model: AdaptedLM) -> Iterator[None]:
    """Take the adapters' weights out of training while the block runs."""
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in learned:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in learned:
            parameter.requires_grad_(True)


def draw(model: AdaptedLM, guide: SiteGuide, batch: Batch, samples: int, seed: int = 0) -> Draws:
    """Draw all latents from a guide given labelled rows, with their densities.

    Raises:
        ConfigError: the guide belongs to another model, or `samples` is not positive.
    """
    guide.check(model)
    with seeded(model, seed):
        return _collect(model, batch, samples, lambda part: guide.run(batch))


def evaluate(model: AdaptedLM, batch: Batch, values: Values) -> Draws:
    """Return what the program says of given latents, for labelled rows."""

    def run(part: slice) -> tuple[Trace, None]:
        with poutine.trace() as recorder, _At({name: value[part] for name, value in values.items()}):
            model.forward(batch)
        return recorder.trace, None

    return _collect(model, batch, len(next(iter(values.values()))), run)


class _At(Messenger):
    """Sets latents to given draws, within a plate of draws that stands outside."""

    def __init__(self, values: Values) -> None:
        super().__init__()
        self.values = values

    def _pyro_sample(self, msg: Message) -> None:
        value = self.values.get(msg["name"] or "")
        if value is not None:
            # The plates of rows and tokens stand between the draws and the site's own batch dimensions.
            missing = (1,) * (2 - len(law_of(msg).batch_shape))
            msg["value"] = value.reshape(len(value), *missing, *value.shape[1:])
            msg["done"] = True


Run = Callable[[slice], tuple[Trace, Trace | None]]
"""From the numbers of some draws to the traces of program and guide."""


def _collect(model: AdaptedLM, batch: Batch, samples: int, run: Run) -> Draws:
    if samples < 1:
        raise ConfigError(f"samples={samples} must be at least 1.")
    step = max(1, SEQUENCES // len(batch))
    parts = []
    for first in range(0, samples, step):
        part = slice(first, min(first + step, samples))
        count = part.stop - part.start
        with torch.no_grad(), pyro.plate("draws", count, dim=-3):
            traces = run(part)
        parts.append(_read(model, count, *traces))
    return Draws(
        {name: torch.cat([part.values[name] for part in parts]) for name in parts[0].values},
        *(
            torch.cat([getattr(part, field) for part in parts])
            for field in ("log_probs", "log_prior", "log_likelihood", "log_posterior")
        ),
    )


def _read(model: AdaptedLM, count: int, program: Trace, posterior: Trace | None) -> Draws:
    """Add up the densities of one forward by draw."""
    prior, likelihood, guide = (torch.zeros(count, dtype=torch.float64) for _ in range(3))
    sites, names, values = model.latents.global_sites, latent_names(model), {}
    for name, site in program.nodes.items():
        if site["type"] != "sample" or site_is_subsample(site):
            continue
        if name not in names:
            likelihood += _density(law_of(site), site, count)
            continue
        prior += _density(law_of(site), site, count)
        if posterior is not None:
            guide += _density(law_of(posterior.nodes[name]), site, count)
        value = value_of(site)
        shape = sites[name].shape if name in sites else value.shape[1:]
        values[name] = value.reshape(count, *shape)
    logits = law_of(program.nodes[LIKELIHOOD]).logits.squeeze(-2)
    return Draws(values, logits.double().log_softmax(-1).cpu(), prior, likelihood, guide)


def _density(fn: TorchDistribution, site: Message, count: int) -> Tensor:
    """Return a site's log-density by draw, its masked entries left out, float64."""
    found = scale_and_mask(fn.log_prob(value_of(site)), scale=1.0, mask=site["mask"])
    return found.double().reshape(count, -1).sum(-1).cpu()
