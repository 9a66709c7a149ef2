"""Use of the rank: sparsity by module, effective rank by row, and its correlations."""

import torch
from torch import Tensor

from bara_pyro.core.gate_draws import GateDraws
from bara_pyro.diagnostics.context import Context
from bara_pyro.diagnostics.gates.rank import (
    RankCorrelation,
    RankSummary,
    SupportRelation,
    effective_rank,
    rank_summary,
    relation,
    support_relation,
)
from bara_pyro.diagnostics.gates.sparsity import gate_sparsity
from bara_pyro.diagnostics.result import Result
from bara_pyro.metrics import posterior_predictive
from bara_pyro.runs.evaluate import system_gates

TRUE_AMBIGUITY, ERROR, ENTROPY = "true ambiguity (entropy of the true answer)", "error", "predicted entropy"


class ModuleUse(Result):
    """Sparsity and effective rank of one adapted module."""

    module: str  # path of the module
    sparsity: dict[str, float]  # "phi", "theta", "psi" -> percentage of gates that are off
    rank: float  # mean effective rank over rows
    spread: float  # standard deviation of the effective rank over rows


class RankUse(Result):
    """How much of the rank a run uses."""

    gates: bool  # False for LoRA, whose activations `A x` take the place of gates
    tau: float  # a gate below this threshold is off
    r: int  # rank of the adapters
    draws: int  # number of draws that percentages are averaged over
    modules: list[ModuleUse]  # in the model's order
    sparsity: dict[str, float]  # "phi", "theta", "psi" -> percentage off, over all modules
    summary: RankSummary  # summary of the effective rank
    rows: list[float]  # effective rank of each row, mean over modules
    relations: list[RankCorrelation]  # correlations of the effective rank with properties of the rows
    readings: dict[str, dict[str, float]]  # sparsity by each of three definitions; empty without gates
    support: SupportRelation | None  # None without both kinds of gates


def rank_use(c: Context) -> RankUse | None:
    """Return how much of the rank a run uses; None for methods with neither gates nor activations `A x`."""
    if c.gates is None:
        return None
    tau = c.options.tau
    expected, rank = gate_sparsity(c.gates, tau), effective_rank(c.gates, tau)
    both = c.has_gates and c.gates.phi is not None and c.gates.theta is not None
    return RankUse(
        gates=c.has_gates,
        tau=tau,
        r=c.system.model.r,
        draws=len(c.gates.log_probs),
        modules=[
            ModuleUse(
                module=path,
                sparsity={name: float(values[i]) for name, values in expected.by_module.items()},
                rank=float(rank[:, i].mean()),
                spread=float(rank[:, i].std()) if len(rank) > 1 else 0.0,
            )
            for i, path in enumerate(expected.modules)
        ],
        sparsity=expected.overall,
        summary=rank_summary(rank),
        rows=rank.mean(dim=1).tolist(),
        relations=_relations(c, rank),
        readings=_readings(c, c.gates) if c.has_gates else {},
        support=support_relation(c.gates, tau, tau) if both else None,
    )


def _relations(c: Context, rank: Tensor) -> list[RankCorrelation]:
    """Correlate the effective rank of rows with error, predicted entropy and (if known) true ambiguity."""
    averaged = posterior_predictive(c.log_probs)
    wrong = (averaged.argmax(-1) != c.labels).double()
    targets = [(ERROR, wrong), (ENTROPY, torch.special.entr(averaged.exp()).sum(-1))]
    true_entropy = torch.special.entr(c.truth).sum(-1)
    if int((~true_entropy.isnan()).sum()) > 2:
        targets.insert(0, (TRUE_AMBIGUITY, true_entropy))
    return [relation(rank, values, name) for name, values in targets] if len(rank) > 2 else []


def _readings(c: Context, gates: GateDraws) -> dict[str, dict[str, float]]:
    """Return the sparsity by each interpretation of the paper's definition."""
    readings = {"expectation over draws": gate_sparsity(gates, c.options.tau).overall}
    for name, samples in (("one draw", 1), ("mean gate", 0)):
        readings[name] = gate_sparsity(system_gates(c.system, c.rows, samples), c.options.tau).overall
    return readings
