"""Every method can be distance-aware, whatever its predictive."""

from dataclasses import replace

import pytest
import torch
from core_cases import make_batch, randomise
from method_cases import ALPHA, UNLABELLED, N, R, backbone
from torch.testing import assert_close

from bara_pyro.core.prediction import predict
from bara_pyro.methods import METHODS, build, method_config
from bara_pyro.posthoc.corrections import Corrections
from bara_pyro.posthoc.distance import frozen_states

# Rows that end alike, unlike those of `UNLABELLED`.
KNOWN = [
    replace(make_batch(rows=[(3 + 4 * i + k, 20, 21, 22) for k in range(4)]), labels=None) for i in range(6)
]


@pytest.mark.parametrize("method", sorted(METHODS))
def test_foreign_rows_get_draws_that_disagree(method: str) -> None:
    torch.manual_seed(0)
    adapter = {"r": R, "lora_alpha": ALPHA, "target_modules": None}
    model, guide = build(method_config(method), backbone(), N, adapter)
    randomise(model)  # so that the adapters change something
    own = Corrections(model, distance_aware=True)
    assert own.fit(model, guide, KNOWN)["distance_rows"] == 24
    before, after = (drawn(model, guide, UNLABELLED, samples=6) for drawn in (predict, own.predict))
    assert_close(after.exp().sum(-1), torch.ones_like(after[..., 0]))
    times, rest = divmod(len(after), len(before))  # members of an ensemble take several draws each
    assert times * len(before) >= 6
    assert rest == 0
    changed = (after - before.repeat_interleave(times, 0)).abs().amax((0, -1)) > 1e-6
    outside = own.distance.directions(frozen_states(model, UNLABELLED)).abs().sum(-1) > 0
    assert outside.any()
    assert changed.tolist() == outside.tolist()
    point = [drawn(model, guide, UNLABELLED, samples=0) for drawn in (predict, own.predict)]
    assert_close(*point, rtol=0, atol=0)
