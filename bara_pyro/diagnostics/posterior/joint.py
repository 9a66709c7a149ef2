"""Log densities of latents and answers: log p(z) + log p(y | z) of a program, and log q(z) of a guide.

The checks of a posterior share this module. Densities are those of all rows together, without weights. They
equal the posterior's density up to a constant only if the program has no weights either (`check_target`).
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

from bara_pyro.core.guide import SiteGuide, check_guide
from bara_pyro.core.latents import Gates
from bara_pyro.core.likelihood import LIKELIHOOD
from bara_pyro.core.modules import distribution_of, value_of
from bara_pyro.core.noise import seeded
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError, DataError

# Draws times rows in a forward pass, for the small programs of these checks.
SEQUENCES = 512

Values = Mapping[str, Tensor]
"""Site -> draws: `S x modules x r` for phi, `S x B x T x r` for local gates (T = 1 at the answer head)."""


@dataclass(frozen=True)
class JointDraws:
    """S draws of all latents and their densities under program and guide."""

    values: dict[str, Tensor]  # site -> draws
    log_probs: Tensor  # float64, `S x B x C`: log-probabilities of the answers
    log_prior: Tensor  # float64, `S`: log p(z), nats
    log_likelihood: Tensor  # float64, `S`: log p(y | z) of all rows, nats
    log_posterior: Tensor  # float64, `S`: log q(z), nats; 0 without a guide


def gates_of(model: AdaptedLM) -> Gates:
    """Return the gates of a program; a `ConfigError` if it has none."""
    if model.gates is None:
        raise ConfigError(f"{type(model).__name__} has no gates: give a BaRA model.")
    return model.gates


def check_target(model: AdaptedLM, batch: Batch) -> dict[str, tuple[int, ...]]:
    """Return the shape of each latent of a program that is the untempered joint density of these rows.

    Raises:
        ConfigError: the program has no latents, `num_data` is not the number of rows, or a KL weight is not
            1.
        DataError: the rows have no labels.
    """
    if not model.latents:
        raise ConfigError(
            f"{type(model).__name__} has no latents and so no posterior: choose another method."
        )
    if batch.labels is None:
        raise DataError("The rows have no labels: give labelled rows.")
    if model.num_data != len(batch):
        raise ConfigError(
            f"num_data={model.num_data} for {len(batch)} rows would count each row "
            f"{model.num_data / len(batch):g} times: build the model with num_data={len(batch)}."
        )
    with torch.no_grad(), seeded(model.backbone.device, 0):
        trace = poutine.trace(model.forward).get_trace(batch)
    for name in model.latents.sites:
        weight = _weight(trace.nodes[name])
        if weight != 1:
            raise ConfigError(
                f"Site {name!r} has KL weight {weight:g}, which changes the posterior: build the model with "
                "KL weights (beta) of 1."
            )
    return {name: tuple(value_of(trace.nodes[name]).shape) for name in model.latents.sites}


def flat_gates(values: Values) -> Tensor:
    """Return the draws of all sites as one matrix, float64, `S x G`."""
    return torch.cat([value.flatten(1).double().cpu() for value in values.values()], dim=1)


def gate_names(model: AdaptedLM, batch: Batch) -> tuple[str, ...]:
    """Return the names of the gates in the order of `flat_gates`."""
    gates, units = gates_of(model), range(model.r)
    names = [f"{gates.phi}[{path}, {k}]" for path in gates.modules for k in units] if gates.phi else []
    rows = batch.ids or tuple(map(str, range(len(batch))))
    for target in model.targets if gates.theta else ():
        tokens = 1 if target.is_head else batch.input_ids.shape[1]
        site = gates.theta[target.path]
        names += [f"{site}[{row}, {t}, {k}]" for row in rows for t in range(tokens) for k in units]
    return tuple(names)


def check_lengths(model: AdaptedLM, batch: Batch) -> None:
    """Raise `DataError` if padding would have local gates, which the data do not determine."""
    if model.latents.local_sites and not model.counted(batch).all():
        raise DataError(
            "The rows have different lengths, and the data do not determine local gates of padding: give "
            "rows of equal length, or use latent='phi'."
        )


def _weight(site: Message) -> float:
    mask = site["mask"]
    # A weight of 0 is stored as a mask of False, combined with the mask of the tokens.
    off = mask is False or (isinstance(mask, Tensor) and not mask.any())
    return 0.0 if off else float(site["scale"])


@contextmanager
def fixed_weights(model: AdaptedLM) -> Iterator[None]:
    """Freeze the adapter weights while the block runs."""
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in learned:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in learned:
            parameter.requires_grad_(True)


def draw_latents(model: AdaptedLM, guide: SiteGuide, batch: Batch, samples: int, seed: int = 0) -> JointDraws:
    """Draw all latents from a guide for labelled rows, and return them with their densities.

    Raises:
        ConfigError: the guide belongs to another model, or `samples` is not positive.
    """
    check_guide(guide, model)
    with seeded(model.backbone.device, seed):
        return _collect(model, batch, samples, lambda part: guide.run(batch))


def evaluate_latents(model: AdaptedLM, batch: Batch, values: Values) -> JointDraws:
    """Return given latents with their densities under the program, for labelled rows."""

    def run(part: slice) -> tuple[Trace, None]:
        with poutine.trace() as recorder, _At({name: value[part] for name, value in values.items()}):
            model.forward(batch)
        return recorder.trace, None

    return _collect(model, batch, len(next(iter(values.values()))), run)


class _At(Messenger):
    """Sets latents to given draws, inside a plate of draws."""

    def __init__(self, values: Values) -> None:
        super().__init__()
        self.values = values

    def _pyro_sample(self, msg: Message) -> None:
        value = self.values.get(msg["name"] or "")
        if value is not None:
            # The plates of rows and tokens lie between the draws and the site's own batch dimensions.
            missing = (1,) * (2 - len(distribution_of(msg).batch_shape))
            msg["value"] = value.reshape(len(value), *missing, *value.shape[1:])
            msg["done"] = True


Run = Callable[[slice], tuple[Trace, Trace | None]]
"""Maps a slice of draws to the traces of program and guide."""


def _collect(model: AdaptedLM, batch: Batch, samples: int, run: Run) -> JointDraws:
    if samples < 1:
        raise ConfigError(f"samples is {samples}: give 1 or more.")
    step = max(1, SEQUENCES // len(batch))
    parts = []
    for first in range(0, samples, step):
        count = min(step, samples - first)
        with torch.no_grad(), pyro.plate("draws", count, dim=-3):
            traces = run(slice(first, first + count))
        with torch.no_grad():
            parts.append(_read(model, count, *traces))
    values, *densities = zip(*(vars(part).values() for part in parts), strict=True)
    return JointDraws(
        {name: torch.cat([part[name] for part in values]) for name in values[0]},
        *(torch.cat(density) for density in densities),
    )


def _read(model: AdaptedLM, count: int, program: Trace, posterior: Trace | None) -> JointDraws:
    """Sum the densities of one forward pass for each draw."""
    prior, likelihood, guide = (torch.zeros(count, dtype=torch.float64) for _ in range(3))
    latents, values = model.latents, {}
    for name, site in program.nodes.items():
        if site["type"] != "sample" or site_is_subsample(site):
            continue
        if name not in latents.sites:
            likelihood += _density(distribution_of(site), site, count)
            continue
        prior += _density(distribution_of(site), site, count)
        if posterior is not None:
            guide += _density(distribution_of(posterior.nodes[name]), site, count)
        value = value_of(site)
        global_site = latents.global_sites.get(name)
        values[name] = value.reshape(count, *(global_site.shape if global_site else value.shape[1:]))
    logits = distribution_of(program.nodes[LIKELIHOOD]).logits.squeeze(-2)
    return JointDraws(values, logits.double().log_softmax(-1).cpu(), prior, likelihood, guide)


def _density(fn: TorchDistribution, site: Message, count: int) -> Tensor:
    """Return the log density of a site for each draw without masked entries, float64."""
    density = scale_and_mask(fn.log_prob(value_of(site)), scale=1.0, mask=site["mask"])
    return density.double().reshape(count, -1).sum(-1).cpu()
