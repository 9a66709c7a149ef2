"""Additive and gate form against a hand-written forward, given fixed phi and theta."""

import pytest
import torch
from core_cases import backbone, gamma_priors, hooked_forward, make_batch, parts_of, randomise
from pyro import poutine
from torch import Tensor
from torch.testing import assert_close

from bara_pyro.core.adapter import tapped
from bara_pyro.errors import ConfigError
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


CASES = [(latent, form, False) for latent in ("phi*theta", "phi", "theta") for form in ("additive", "gate")]


@pytest.mark.parametrize("arch", ["qwen2", "gpt2"])
@pytest.mark.parametrize(
    ("latent", "form", "centred"), [*CASES, ("phi*theta", "additive", True), ("theta", "additive", True)]
)
def test_against_loops(arch: str, latent: str, form: str, centred: bool) -> None:
    batch = make_batch()
    given = {"r": R, "lora_alpha": ALPHA, "latent": latent, "form": form, "centred": centred}
    model = randomise(BaRA(backbone(arch), 4, **given, **gamma_priors(theta=(2.0, 5.0))))
    centre = 2 / 5 if centred else 0.0
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
            gate = gate * (fixed[f"theta/{path}"] - centre)
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


@pytest.mark.slow
def test_a_centred_change_has_mean_zero_under_the_prior() -> None:
    batch = make_batch()
    found = {}
    for centred in (True, False):
        model = randomise(BaRA(backbone(), 4, r=R, centred=centred, **gamma_priors(theta=(2.0, 1.0))))
        torch.manual_seed(0)
        changes = []
        with torch.no_grad():
            for _ in range(400):
                with tapped(model.adapters.values()) as seen:
                    model(batch)
                changes.append(seen[model.targets[0].path][1][0, -1])
        drawn = torch.stack(changes)
        found[centred] = (drawn.mean(0) / (drawn.std(0) / 20)).abs().max()
    assert found[True] < 4  # standard errors
    assert found[False] > 10


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"form": "gate"}, "theta of the additive form"),
        ({"latent": "phi"}, "theta of the additive form"),
        ({"theta_prior": "halfcauchy"}, "no mean"),
    ],
)
def test_what_cannot_be_centred_is_refused(given: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        BaRA(backbone(), 4, centred=True, **given)
