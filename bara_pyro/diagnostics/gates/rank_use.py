"""Where the rank goes: sparsity by module, the effective rank by row, and what it goes with."""

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
    """One adapted module."""

    module: str  # its path
    sparsity: dict[str, float]  # "phi", "theta", "psi" -> percent off
    rank: float  # mean effective rank over rows
    spread: float  # its standard deviation


class RankUse(Result):
    """How much of the rank is in use."""

    gates: bool  # whether there are gates; of LoRA these are activations `A x`
    tau: float  # threshold below which a gate is off
    r: int  # the rank
    draws: int  # that expectations are over
    modules: list[ModuleUse]  # in the model's order
    sparsity: dict[str, float]  # "phi", "theta", "psi" -> percent off, over all modules
    summary: RankSummary  # of the effective rank
    rows: list[float]  # effective rank of each row, mean over modules
    relations: list[RankCorrelation]  # of the effective rank to what is known of the rows
    readings: dict[str, dict[str, float]]  # the three readings of sparsity; none without gates
    support: SupportRelation | None  # None where there are not both gates


def rank_use(c: Context) -> RankUse | None:
    """Return where the rank goes; None for methods without gates or one `A x`."""
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
    """Relate the effective rank to how hard a row is, as far as that is known."""
    averaged = posterior_predictive(c.log_probs)
    wrong = (averaged.argmax(-1) != c.labels).double()
    found = [(ERROR, wrong), (ENTROPY, torch.special.entr(averaged.exp()).sum(-1))]
    true_entropy = torch.special.entr(c.truth).sum(-1)
    if int((~true_entropy.isnan()).sum()) > 2:
        found.insert(0, (TRUE_AMBIGUITY, true_entropy))
    return [relation(rank, values, name) for name, values in found] if len(rank) > 2 else []


def _readings(c: Context, gates: GateDraws) -> dict[str, dict[str, float]]:
    """Return the sparsity that each reading of the paper's definition gives."""
    found = {"expectation over draws": gate_sparsity(gates, c.options.tau).overall}
    for name, samples in (("one draw", 1), ("mean gate", 0)):
        found[name] = gate_sparsity(system_gates(c.system, c.rows, samples), c.options.tau).overall
    return found
