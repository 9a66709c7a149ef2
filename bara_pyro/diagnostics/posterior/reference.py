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
from torch import Tensor

from bara_pyro.core.noise import noise_seed, seeded
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data.types import Batch
from bara_pyro.diagnostics.arviz.compat import arviz
from bara_pyro.diagnostics.posterior.joint import (
    Values,
    check_target,
    evaluate_latents,
    fixed_weights,
    gates_of,
)
from bara_pyro.errors import ConfigError, DataError, TrainingError

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


def check_lengths(model: AdaptedLM, batch: Batch) -> None:
    """Raise `DataError` if padding would have local gates, which the data do not determine."""
    if model.latents.local_sites and not model.counted(batch).all():
        raise DataError(
            "The rows have different lengths, and the data do not determine local gates of padding: give "
            "rows of equal length, or use latent='phi'."
        )


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
