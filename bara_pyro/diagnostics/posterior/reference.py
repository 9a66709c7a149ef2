"""The reference posterior: NUTS on the BaRA program itself.

The adapters' weights are fixed, so that the latents are the gates alone: Phi, and theta of every row and
token. NUTS (Hoffman and Gelman, JMLR 2014) samples their posterior without a guide; on a few gates and rows
it is exact up to its Monte Carlo error, which a variational posterior is not.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from pyro.infer import MCMC, NUTS
from torch import Tensor

from bara_pyro.core.prediction import noise_seed
from bara_pyro.data.types import Batch
from bara_pyro.diagnostics.posterior.joint import Values, check_target, evaluate, fixed_weights, seeded
from bara_pyro.errors import ConfigError, DataError, TrainingError
from bara_pyro.models.bara import BaRA
from bara_pyro.report import Column, Table

MAX_LATENTS = 100
MIN_SAMPLES = 8  # ArviZ splits a chain, we split a single one before, and a piece needs a variance


@dataclass(frozen=True)
class Reference:
    """Draws from the posterior of the G gates, chain after chain.

    Attributes:
        values: site -> `S x` its shape; S = chains x draws.
        log_probs: float64, `S x B x C`: the answers' log-probabilities.
        names: of the G gates, sites one after the other.
        chains: how many chains.
        divergences: number of divergent transitions after the warm-up; any is a warning.
        acceptance: mean acceptance probability of each chain.
        ess: float64, `G`: bulk effective sample size.
        r_hat: float64, `G`: rank-normalised split R-hat (Vehtari et al. 2021); above 1.01 is a warning.
    """

    values: dict[str, Tensor]
    log_probs: Tensor
    names: tuple[str, ...]
    chains: int
    divergences: int
    acceptance: tuple[float, ...]
    ess: Tensor
    r_hat: Tensor

    @property
    def gates(self) -> Tensor:
        """The draws of all gates, float64, `S x G`."""
        return flat_gates(self.values)

    def table(self) -> Table:
        """Return a row a gate: posterior mean, standard deviation, ESS and R-hat."""
        columns = (
            Column("gate", "gate"),
            *(Column(key, key, format=".3f") for key in ("mean", "sd")),
            Column("ess", "ESS", format=".0f"),
            Column("r_hat", "R-hat", format=".3f"),
        )
        found = (self.gates.mean(0), self.gates.std(0), self.ess, self.r_hat)
        keys = [column.key for column in columns]
        rows = [
            dict(zip(keys, (name, *numbers), strict=True))
            for name, *numbers in zip(self.names, *(v.tolist() for v in found), strict=True)
        ]
        caption = f"NUTS: {self.chains} chains, {len(self.gates)} draws, {self.divergences} divergences"
        return Table(columns, rows, caption)


def flat_gates(values: Values) -> Tensor:
    """Return the draws of all sites side by side, float64, `S x G`."""
    return torch.cat([value.flatten(1).double().cpu() for value in values.values()], dim=1)


def gate_names(model: BaRA, batch: Batch) -> tuple[str, ...]:
    """Return the names of the gates in the order of `flat_gates`."""
    gates, units = model.gates, range(model.r)
    names = [f"{gates.phi}[{path}, {k}]" for path in gates.modules for k in units] if gates.phi else []
    rows = batch.ids or tuple(map(str, range(len(batch))))
    for target in model.targets if gates.theta else ():
        tokens = 1 if target.is_head else batch.input_ids.shape[1]
        site = gates.theta[target.path]
        names += [f"{site}[{row}, {t}, {k}]" for row in rows for t in range(tokens) for k in units]
    return tuple(names)


def nuts(
    model: BaRA,
    batch: Batch,
    *,
    samples: int = 500,
    warmup: int = 300,
    chains: int = 1,
    seed: int = 0,
    max_latents: int = MAX_LATENTS,
    target_accept: float = 0.8,
    step_size: float = 1.0,
    adapt_step_size: bool = True,
    adapt_mass_matrix: bool = True,
    full_mass: bool = False,
    max_tree_depth: int = 8,
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
        target_accept: acceptance probability that the step size is adapted to.
        step_size: at the start.
        adapt_step_size: to `target_accept`, during the warm-up.
        adapt_mass_matrix: to the scales of the gates' logarithms, during the warm-up.
        full_mass: and to their correlations.
        max_tree_depth: at most 2 to this power leapfrog steps a draw.

    Raises:
        ConfigError: not BaRA, a weight or `num_data` that makes another posterior, too many gates, or
            numbers out of range.
        DataError: no labels, or rows of different length with local gates.
        TrainingError: a chain never moved.
    """
    if model.gates is None:
        raise ConfigError(f"NUTS samples the gates of BaRA, not {type(model).__name__}: give a BaRA model.")
    if samples < MIN_SAMPLES or warmup < 0 or chains < 1:
        raise ConfigError(
            f"samples={samples}, warmup={warmup} and chains={chains} must be at least {MIN_SAMPLES}, 0 and 1."
        )
    batch = batch.to(model.backbone.device)
    shapes = check_target(model, batch)
    check_lengths(model, batch)
    _check_size(sum(math.prod(shape) for shape in shapes.values()), max_latents)
    found, divergences, acceptance = [], 0, []
    for chain in range(chains):
        kernel = NUTS(
            model.forward,
            step_size=step_size,
            adapt_step_size=adapt_step_size,
            adapt_mass_matrix=adapt_mass_matrix,
            full_mass=full_mass,
            target_accept_prob=target_accept,
            max_tree_depth=max_tree_depth,
        )
        mcmc = MCMC(kernel, num_samples=samples, warmup_steps=warmup, disable_progbar=True)
        with fixed_weights(model), seeded(model, noise_seed(seed, f"chain/{chain}")):
            mcmc.run(batch)
        said = mcmc.diagnostics()
        divergences += len(said["divergences"]["chain 0"])
        acceptance.append(float(said["acceptance rate"]["chain 0"]))
        found.append(mcmc.get_samples())
    values = {name: torch.cat([chain[name] for chain in found]).detach() for name in shapes}
    return reference_from(model, batch, values, chains, divergences, tuple(acceptance))


def check_lengths(model: BaRA, batch: Batch) -> None:
    """Raise `DataError` where padding would have local gates, which nothing determines."""
    if model.latents.local_sites and not model.counted(batch).all():
        raise DataError(
            "The rows have different lengths, and nothing determines the local gates of padding: give rows "
            "of one length, or sample latent='phi'."
        )


def _check_size(latents: int, most: int) -> None:
    if latents > most:
        raise ConfigError(
            f"{latents} gates are more than max_latents={most}: adapt fewer modules, lower r, give fewer or "
            "shorter rows, or raise the limit."
        )


def reference_from(
    model: BaRA,
    batch: Batch,
    values: Values,
    chains: int = 1,
    divergences: int = 0,
    acceptance: Sequence[float] = (),
) -> Reference:
    """Return a reference from posterior draws, chain after chain: of a sampler, a file, or an exact method.

    Args:
        model: the program that the draws belong to.
        batch: its labelled rows.
        values: draws by site.
        chains: how many chains of equal length they are of.
        divergences: how many the sampler reported.
        acceptance: mean acceptance probability of each chain.

    Raises:
        TrainingError: a chain never moved.
    """
    gates = flat_gates(values).reshape(chains, -1, len(gate_names(model, batch)))
    if bool((gates.amax(1) == gates.amin(1)).any()):
        raise TrainingError("A chain never moved: give it more warm-up steps, or a smaller step size.")
    return Reference(
        dict(values),
        evaluate(model, batch.to(model.backbone.device), values).log_probs,
        gate_names(model, batch),
        chains,
        divergences,
        tuple(acceptance),
        _chain_statistic("ess", gates),
        _chain_statistic("rhat", gates),
    )


def _chain_statistic(name: str, gates: Tensor) -> Tensor:
    """Return ArviZ's statistic of that name by gate, of `chains x draws x G`."""
    import arviz  # takes a second

    if len(gates) == 1:  # R-hat compares chains: of one chain its halves
        half = gates.shape[1] // 2
        gates = torch.stack([gates[0, :half], gates[0, -half:]])
    function = getattr(arviz, name)
    return torch.tensor([float(function(gate.numpy())) for gate in gates.unbind(-1)], dtype=torch.float64)
