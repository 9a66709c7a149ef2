r"""Fit the linear map nearest to a module's local gates.

At the posterior mean, a module multiplies c(x) by Phi and B, with `c(x) = theta(x) * (A x)` in gate form and
`c(x) = theta(x) - centre` in additive form (centre is 0 unless the form is centred). A LoRA has `D x` in the
place of c(x). By least squares over the tokens of given rows,

    D = argmin  sum_x |c(x) - D x|^2 + ridge |D - D0|^2,

with D0 = diag(mean theta) A in gate form and 0 in additive form.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from bara_pyro.core.adapter import tapped
from bara_pyro.core.latents import Gates
from bara_pyro.core.modules import module_key
from bara_pyro.core.prediction import record
from bara_pyro.data import EncodedSplit, batches
from bara_pyro.runs.system import System

RIDGE = 1e-2  # times the inputs' mean square: the answer head often has fewer tokens than its width


@torch.no_grad()
def linear_gates(system: System, gates: Gates, rows: EncodedSplit) -> dict[str, Tensor]:
    """Return each module's D: path -> `rank x in_features`.

    Needs 8 bytes times the square of its width for each module.

    Args:
        system: a fitted BaRA with local gates.
        gates: the gates of its program.
        rows: rows whose tokens, without padding, D is fitted on.
    """
    down = down_projections(system) if gates.modulating else {}
    centre: float = getattr(system.model, "centre", 0.0)
    theta, squares, products = (dict.fromkeys(gates.theta, torch.zeros(())) for _ in range(3))
    tokens = dict.fromkeys(gates.theta, 0)
    for batch in batches(rows, system.answer_ids, system.config.predict.batch_size, by_length=True):
        with tapped(system.model.adapters.values()) as taps:
            for piece in record(system.model, system.guide, batch.to(system.backbone.device), samples=0):
                for path, site in gates.theta.items():
                    inputs, values = taps[path][0], piece.values[site]
                    real = piece.mask[:, -values.shape[1] :]
                    x, gate = (value[real].cpu().double() for value in (inputs, values))
                    theta[path] = theta[path] + gate.sum(0)
                    tokens[path] += len(x)
                    own = (
                        gate - centre if path not in down else gate[:, : len(down[path])] * (x @ down[path].T)
                    )
                    squares[path] = squares[path] + x.T @ x
                    products[path] = products[path] + own.T @ x
    means = {path: value / tokens[path] for path, value in theta.items()}
    start = {path: means[path][: len(value), None] * value for path, value in down.items()}
    return {path: _ridge(products[path], squares[path], start.get(path)).float() for path in theta}


def down_projections(system: System) -> Mapping[str, Tensor]:
    """Return each module's A (float64, on the CPU): path -> `rank x in_features`."""
    return {
        target.path: system.model.get_parameter(f"adapters.{module_key(target.path)}.lora_A").cpu().double()
        for target in system.model.targets
    }


def _ridge(products: Tensor, squares: Tensor, start: Tensor | None) -> Tensor:
    ridge = RIDGE * squares.diagonal().mean()
    regular = squares + ridge * torch.eye(len(squares), dtype=squares.dtype)
    target = products if start is None else products + ridge * start
    return torch.linalg.solve(regular, target, left=False)
