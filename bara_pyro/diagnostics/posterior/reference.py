"""The reference posterior: NUTS on the program itself.

The adapters' weights are fixed, so that the latents are the gates alone: Phi, and theta of every row and
token. NUTS (Hoffman and Gelman, JMLR 2014) samples their posterior without a guide; on a few gates and rows
it is exact up to its Monte Carlo error, which a variational posterior is not.
"""

import math
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
MIN_SAMPLES = 8  # ArviZ splits a chain, we split a single one before, and a piece needs a variance


@dataclass(frozen=True)
class Reference:
    """Draws from the posterior of the G gates, chain after chain."""

    values: dict[str, Tensor]  # site -> `S x` its shape; S = chains x draws
    log_probs: Tensor  # float64, `S x B x C`: the answers' log-probabilities
    names: tuple[str, ...]  # of the G gates, sites one after the other
    chains: int  # how many chains
    divergences: int  # number of divergent transitions after the warm-up; any is a warning
    acceptance: tuple[float, ...]  # mean acceptance probability of each chain
    ess: Tensor  # float64, `G`: bulk effective sample size
    r_hat: Tensor  # float64, `G`: rank-normalised split R-hat (Vehtari et al. 2021); above 1.01 is a warning

    @property
    def gates(self) -> Tensor:
        """The draws of all gates, float64, `S x G`."""
        return flat_gates(self.values)


def flat_gates(values: Values) -> Tensor:
    """Return the draws of all sites side by side, float64, `S x G`."""
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
    """Sample the posterior of the gates given labelled rows, adapter weights fixed, by Pyro's NUTS.

    A gradient of the language model a leapfrog step: for a tiny backbone, few rows and few gates. Gates live
    on the positive reals; Pyro samples their logarithms.

    Args:
        model: the program, `num_data` the number of rows and all KL weights 1.
        batch: the rows; of one length where there are local gates, since padding has gates that nothing
            determines.
        samples: draws a chain after the warm-up.
        warmup: steps that adapt and are thrown away.
        chains: run one after the other.
        seed: of the chains.
        max_latents: refuse more gates than this.
        max_tree_depth: at most 2 to this power leapfrog steps a draw.
        **kernel: other arguments of `pyro.infer.NUTS`, such as `target_accept_prob` and `full_mass`.

    Raises:
        ConfigError: a program without gates, a weight or `num_data` that makes another posterior, too many
            gates, or numbers out of range.
        DataError: no labels, or rows of different length with local gates.
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
            f"samples={samples}, warmup={warmup} and chains={chains} must be at least {MIN_SAMPLES}, 0 and 1."
        )
    batch = batch.to(model.backbone.device)
    shapes = check_target(model, batch)
    check_lengths(model, batch)
    latents = sum(map(math.prod, shapes.values()))
    if latents > max_latents:
        raise ConfigError(
            f"{latents} gates are more than max_latents={max_latents}: adapt fewer modules, lower r, give "
            "fewer or shorter rows, or raise the limit."
        )
    found, divergences, acceptance = [], 0, []
    for chain in range(chains):
        sampler = NUTS(model.forward, max_tree_depth=max_tree_depth, **kernel)
        mcmc = MCMC(sampler, num_samples=samples, warmup_steps=warmup, disable_progbar=True)
        with fixed_weights(model), seeded(model.backbone.device, noise_seed(seed, f"chain/{chain}")):
            mcmc.run(batch)
        said = mcmc.diagnostics()
        divergences += len(said["divergences"]["chain 0"])
        acceptance.append(float(said["acceptance rate"]["chain 0"]))
        found.append(mcmc.get_samples())
    values = {name: torch.cat([chain[name] for chain in found]).detach() for name in shapes}
    return reference_from(model, batch, values, chains, divergences, acceptance)


def check_lengths(model: AdaptedLM, batch: Batch) -> None:
    """Raise `DataError` where padding would have local gates, which nothing determines."""
    if model.latents.local_sites and not model.counted(batch).all():
        raise DataError(
            "The rows have different lengths, and nothing determines the local gates of padding: give rows "
            "of one length, or sample latent='phi'."
        )


def reference_from(
    model: AdaptedLM,
    batch: Batch,
    values: Values,
    chains: int = 1,
    divergences: int = 0,
    acceptance: Sequence[float] = (),
) -> Reference:
    """Return a reference from posterior draws by site, chain after chain: of a sampler, a file, exact ones.

    Raises:
        TrainingError: a chain never moved.
    """
    gates = flat_gates(values).reshape(chains, -1, len(gate_names(model, batch)))
    if bool((gates.amax(1) == gates.amin(1)).any()):
        raise TrainingError("A chain never moved: give it more warm-up steps, or a smaller step size.")
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
    """Return ArviZ's statistic of that name by gate, of `chains x draws x G`."""
    if len(gates) == 1:  # R-hat compares chains: of one chain its halves
        half = gates.shape[1] // 2
        gates = torch.stack([gates[0, :half], gates[0, -half:]])
    function = getattr(arviz(), name)
    return torch.tensor([float(function(gate.numpy())) for gate in gates.unbind(-1)], dtype=torch.float64)
