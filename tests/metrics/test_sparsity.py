"""Sparsity by module and over modules, against a loop over every gate."""

import pytest
import torch

from bara_pyro.metrics.sparsity import over_modules, sparsity_by_module

SEEDED = torch.Generator().manual_seed(0)
GATES = torch.rand(5, 4, 3, 6, generator=SEEDED) - 0.5  # draws, rows, modules, units


@pytest.mark.parametrize("ranks", [(), (6, 2, 4)], ids=["whole", "pruned"])
@pytest.mark.parametrize("tau", [0.1, 0.3])
def test_shares_are_those_of_a_loop(ranks: tuple[int, ...], tau: float) -> None:
    kept = ranks or (6, 6, 6)
    by_hand = [[abs(z) < tau for z in GATES[:, :, m, : kept[m]].flatten().tolist()] for m in range(3)]
    found = sparsity_by_module(GATES, tau, ranks)
    assert found.dtype == torch.float64
    assert found.tolist() == pytest.approx([100 * sum(closed) / len(closed) for closed in by_hand])
    together = [z for closed in by_hand for z in closed]
    assert over_modules(found, ranks) == pytest.approx(100 * sum(together) / len(together))


def test_a_gate_at_tau_is_open() -> None:
    assert sparsity_by_module(torch.tensor([0.5, -0.5, 0.25]).reshape(1, 1, 1, 3), 0.5).tolist() == [
        pytest.approx(100 / 3)
    ]
    assert sparsity_by_module(torch.full((1, 1, 1, 2), 0.1)).item() == 0.0  # tau is 0.1 unless given
