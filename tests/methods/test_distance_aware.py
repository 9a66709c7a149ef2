"""Every method can be distance-aware, whatever its predictive; training knows nothing of it."""

from dataclasses import replace

import pytest
import torch
from core_cases import make_batch, randomise
from method_cases import ALPHA, UNLABELLED, N, R, backbone, svi_of
from torch.testing import assert_close

from bara_pyro.core.fit_distance import fit_distance
from bara_pyro.core.prediction import predict
from bara_pyro.methods import METHODS, build, method_config

# Rows that end alike, unlike those of `UNLABELLED`.
KNOWN = [
    replace(make_batch(rows=[(3 + 4 * i + k, 20, 21, 22) for k in range(4)]), labels=None) for i in range(6)
]


def pair(method: str, *, distance_aware: bool):  # type: ignore[no-untyped-def]
    """A method's pair with adapters that change something."""
    torch.manual_seed(0)
    adapter = {"r": R, "lora_alpha": ALPHA, "target_modules": None, "distance_aware": distance_aware}
    model, guide = build(method_config(method), backbone(), N, adapter)
    randomise(model)
    return model, guide


@pytest.mark.parametrize("method", sorted(METHODS))
def test_foreign_rows_get_draws_that_disagree(method: str) -> None:
    plain, aware = pair(method, distance_aware=False), pair(method, distance_aware=True)
    told = fit_distance(*aware, KNOWN)
    assert told["rows"] == 24
    before, after = (predict(*p, UNLABELLED, samples=6) for p in (plain, aware))
    assert_close(after.exp().sum(-1), torch.ones_like(after[..., 0]))
    times, rest = divmod(len(after), len(before))  # members of an ensemble take several draws each
    assert times * len(before) >= 6
    assert rest == 0
    changed = (after - before.repeat_interleave(times, 0)).abs().amax((0, -1)) > 1e-6
    outside = aware[0].distance.directions(aware[0].unadapted(UNLABELLED)).abs().sum(-1) > 0
    assert outside.any()
    assert changed.tolist() == outside.tolist()
    point = [predict(*p, UNLABELLED, samples=0) for p in (plain, aware)]
    assert_close(*point, rtol=0, atol=0)


@pytest.mark.parametrize("method", ["lora", "bara-gate", "blob"])
def test_training_is_the_same_to_the_bit(method: str) -> None:
    weights = []
    for distance_aware in (False, True):
        both = pair(method, distance_aware=distance_aware)
        svi = svi_of(method, both)
        torch.manual_seed(1)
        for _ in range(3):
            svi.step(make_batch())
        weights.append({n: p.detach().clone() for m in both for n, p in m.named_parameters()})
    assert weights[0].keys() == {n for n in weights[1] if not n.startswith("distance.")}
    for name, value in weights[0].items():
        assert_close(weights[1][name], value, rtol=0, atol=0)
