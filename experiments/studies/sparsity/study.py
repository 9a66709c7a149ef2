"""Sparsity of Phi, theta and their product by rank and layer: the paper's table and its four panels.

    python -m experiments sparsity
    python -m experiments sparsity --model FOLDER --tasks arc_challenge --data-dir FOLDER --seeds 1

Trains LoRA and both forms of BaRA at each rank (the scaling alpha / r stays at 2) with the settings that the
search chose at r = 8, and looks at the value projections at the last token of test rows. Three readings of
BaRA's gates are given: one draw, the mean gate, and the expectation over draws.
"""

import math
from argparse import Namespace
from typing import Any

import torch
from torch import Tensor

from bara_pyro.core.gate_draws import GateDraws
from bara_pyro.data import EncodedSplit, first_rows
from bara_pyro.diagnostics.gates.rank import effective_rank, rank_summary, relation
from bara_pyro.diagnostics.gates.sparsity import gate_sparsity, sparsity_curve
from bara_pyro.metrics import posterior_predictive
from bara_pyro.runs.evaluate import system_gates, true_probabilities
from bara_pyro.runs.system import System
from experiments.engine.arguments import experiment_parser
from experiments.engine.methods import tagged
from experiments.engine.read_off import about_runs, read_off
from experiments.engine.search import chosen_job
from experiments.page.spec import entry_study
from experiments.studies.sparsity.section import QUESTION, facts, parts

RANKS = (8, 16, 32, 64)
READINGS = {"draw": 1, "mean": 0, "expectation": 20}
TAUS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)


def look(system: System, args: Namespace) -> dict[str, Any]:
    """Return what the gates of a fitted system do on test rows.

    Returns:
        `layers`: paths of the modules looked at; per reading `overall` and `by_module` percentages of phi,
        theta and psi; `curve`: those of the expectation at each of `TAUS`; `rank`: mean and spreads of the
        effective rank (units), and its rank correlation over rows with `entropy` (true, of the answer) and
        `error`.
    """
    rows = first_rows(system.split("test"), args.rows)
    modules = [t.path for t in system.model.targets if t.path.rsplit(".", 1)[-1] == args.module]
    found: dict[str, Any] = {"layers": modules}
    gates = {
        reading: system_gates(system, rows, samples, modules=modules or None)
        for reading, samples in READINGS.items()
    }
    found |= {reading: _percent(draws, args.tau) for reading, draws in gates.items()}
    draws = gates["expectation"]
    found["curve"] = {k: v.tolist() for k, v in sparsity_curve(draws, TAUS).items()}
    rank = effective_rank(draws, args.tau)
    found["rank"] = {**vars(rank_summary(rank)), **_relations(system, rows, draws, rank)}
    return found


def _relations(system: System, rows: EncodedSplit, draws: GateDraws, rank: Tensor) -> dict[str, float | None]:
    """Return Spearman's correlation of the effective rank of rows with how hard they are; None if unknown."""
    averaged = posterior_predictive(draws.log_probs)
    entropy = torch.special.entr(true_probabilities(system, rows, "test")).sum(-1)
    wrong = (averaged.argmax(-1) != torch.tensor(rows.labels)).double()
    found = {}
    for name, values in (("entropy", entropy), ("error", wrong)):
        known = int((~values.isnan()).sum()) > 2
        rho = relation(rank, values, name).rho if known else math.nan
        found[name] = None if math.isnan(rho) else rho
    return found


def _percent(draws: GateDraws, tau: float) -> dict[str, Any]:
    found = gate_sparsity(draws, tau)
    by_module = {name: values.tolist() for name, values in found.by_module.items()}
    return {"overall": found.overall, "by_module": by_module}


def main() -> None:
    """Train what is missing, look, write."""
    methods = tagged("reference", "ours")
    parser = experiment_parser(__doc__, runs="runs/study", methods=methods, tasks=("micro-arcc",), seeds=1)
    add = parser.add_argument
    add("--ranks", metavar="R", type=int, nargs="+", default=list(RANKS), help="default: %(default)s")
    add("--tau", type=float, default=0.1, help="threshold; default: %(default)s, the paper's")
    add("--rows", type=int, default=256, help="test rows to look at; default: %(default)s")
    add("--module", default="v_proj", help="last name of the modules to look at; default: %(default)s")
    args = parser.parse_args()
    jobs = {
        (method, r, task, seed): chosen_job(
            args, method, task, seed, {"adapter.r": r, "adapter.lora_alpha": 2.0 * r}
        )
        for seed in range(args.seeds)
        for task in args.tasks
        for method in args.methods
        for r in args.ranks
    }
    draws = READINGS["expectation"]
    about = about_runs(args, "tau", "module", "rows", taus=list(TAUS), draws=draws)
    read_off("sparsity", jobs, ("method", "r", "task", "seed"), look, about, args)


STUDY = entry_study("Sparsity", QUESTION, main, parts, facts=facts, order=20)
