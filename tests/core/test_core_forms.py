"""Additive and gate form against a hand-written forward, given fixed phi and theta."""

import pytest
import torch
from core_cases import backbone, hooked_forward, make_batch, parts_of, randomise
from pyro import poutine
from torch import Tensor
from torch.testing import assert_close

from bara_pyro.models.bara import BaRA

R, ALPHA, ALPHA_DEFAULT = 3, 5.0, 16.0


def layer_by_loops(x: Tensor, up: Tensor, down: Tensor | None, gate: Tensor) -> Tensor:
    """s B (gate * A x), or s B gate, output by output."""
    out = torch.zeros(*x.shape[:-1], up.shape[0])
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            for j in range(R):
                z = gate[b, t, j] * (1.0 if down is None else (down[j] * x[b, t]).sum())
                out[b, t] += ALPHA / R * z * up[:, j]
    return out


@pytest.mark.parametrize("arch", ["qwen2", "gpt2"])
@pytest.mark.parametrize("latent", ["phi*theta", "phi", "theta"])
@pytest.mark.parametrize("form", ["additive", "gate"])
def test_against_loops(arch: str, latent: str, form: str) -> None:
    batch = make_batch()
    model = randomise(BaRA(backbone(arch), 4, r=R, lora_alpha=ALPHA, latent=latent, form=form))
    fixed = {
        name: site["value"]
        for name, site in poutine.trace(model).get_trace(batch).nodes.items()
        if name == "phi" or name.startswith("theta/")
    }
    paths = [t.path for t in model.targets]

    def change(path: str, x: Tensor) -> Tensor:
        gate = torch.ones(*x.shape[:2], R)
        if "phi" in latent:
            gate = gate * fixed["phi"][paths.index(path)]
        if "theta" in latent:
            gate = gate * fixed[f"theta/{path}"]
        return layer_by_loops(x, *parts_of(model, path), gate)

    with torch.no_grad():
        ours = poutine.condition(model, fixed)(batch)
        truth = hooked_forward(batch, backbone(arch).lm, paths, paths[-1], change)
        without = hooked_forward(batch, backbone(arch).lm, [], "", change)
    assert_close(ours, truth, rtol=0, atol=2e-5)
    assert (truth - without).abs().max() > 1e-2


def test_each_module_uses_its_own_row_of_phi() -> None:
    batch = make_batch()
    model = randomise(BaRA(backbone(), 4, r=R, latent="phi"))
    with torch.no_grad():
        zero = torch.zeros(5, R)
        base = poutine.condition(model, {"phi": zero})(batch)
        for target in model.targets:
            phi = zero.clone()
            phi[target.index] = 1.0
            up = model.adapters[target.path.replace(".", "/")].lora_B
            shift = ALPHA_DEFAULT / R * up.sum(-1)
            truth = hooked_forward(
                batch,
                backbone().lm,
                [target.path],
                "lm_head",
                lambda path, x, s=shift: s.expand(*x.shape[:2], -1),
            )
            ours = poutine.condition(model, {"phi": phi})(batch)
            assert_close(ours, truth, rtol=0, atol=1e-5)
            assert (ours - base).abs().max() > 1e-3
