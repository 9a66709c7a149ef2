"""Kronecker factors of the curvature against the exact matrix, and against plain loops."""

import pytest
import torch
from core_cases import backbone, hooked_forward, make_batch
from laplace_cases import HEAD, SCALING, answer_entries, ggn, halves, jacobians, toy, weights_of
from torch import Tensor
from torch.testing import assert_close

from bara_pyro.data.types import Batch
from bara_pyro.errors import DataError
from bara_pyro.methods.laplace import kfac


def assert_exact(model, guide, batch: Batch, sites: list[str]) -> None:
    factors, _ = kfac(guide, [batch])
    log_probs, jacobian = jacobians(model, batch)
    for site in sites:
        exact = ggn(log_probs, jacobian[site])
        entries = answer_entries(site, batch)
        if len(entries):
            rest = torch.ones(len(exact), dtype=torch.bool)
            rest[entries] = False
            assert not exact[rest].any()
            exact = exact[entries[:, None], entries]
        own = torch.kron(factors[site].output, factors[site].input)
        size = exact.abs().max()
        assert size > 1e-4
        assert_close(own, exact, rtol=0, atol=1e-4 * size.item(), msg=site)


@pytest.mark.parametrize("arch", ["qwen2", "gpt2"])
def test_one_token_of_one_row_is_exact_in_every_block(arch: str) -> None:
    names = ["c_attn", "c_fc", "lm_head"] if arch == "gpt2" else None
    model, guide = toy(arch, names)
    batch = make_batch(((5,),))
    factors, _ = kfac(guide, [batch])
    # Attention to a single token does not depend on queries: their curvature is 0 but for rounding.
    sites = [site for site in factors if "q_proj" not in site]
    assert len(sites) >= 6
    assert_exact(model, guide, batch, sites)


def test_the_answer_head_is_exact_for_one_row() -> None:
    model, guide = toy(subset="last")
    assert_exact(model, guide, make_batch(choose=[1], pad=2), [f"lora_A/{HEAD}", f"lora_B/{HEAD}"])


def plain_factors(model, rows: list[Batch], tokens: str) -> dict[str, tuple[Tensor, Tensor]]:
    """One row at a time without padding, one token and pair of answers at a time."""
    weights = weights_of(model)
    out = {site: [0.0, 0.0, 0] for site in weights}
    for batch in rows:
        seen: dict[str, tuple[Tensor, Tensor]] = {}

        def change(path: str, x: Tensor, seen: dict = seen) -> Tensor:
            down = x @ weights[f"lora_A/{path}"].T
            up = down @ weights[f"lora_B/{path}"].T
            down.retain_grad()
            seen[f"lora_A/{path}"], seen[f"lora_B/{path}"] = (x, down), (down, up)
            return SCALING * up

        log_probs = hooked_forward(batch, model.backbone.lm, [t.path for t in model.targets], HEAD, change)[0]
        p = log_probs.detach().double().exp()
        outputs = [pair[1] for pair in seen.values()]
        grads = [torch.autograd.grad(value, outputs, retain_graph=True) for value in log_probs]
        for i, (site, (x, _)) in enumerate(seen.items()):
            for t in range(x.shape[1]):
                a = x[0, t].detach().double()
                out[site][1] += torch.outer(a, a)
                for c in range(len(p)):
                    for d in range(len(p)):
                        weight = p[c] * (c == d) - p[c] * p[d]
                        out[site][0] += weight * torch.outer(
                            grads[c][i][0, t].double(), grads[d][i][0, t].double()
                        )
            out[site][2] += x.shape[1] if tokens == "mean" else 1
    return {site: (g, a / n) for site, (g, a, n) in out.items()}


@pytest.mark.parametrize(("arch", "tokens"), [("qwen2", "mean"), ("gpt2", "sum")])
def test_many_rows_and_tokens_are_the_plain_loop(arch: str, tokens: str) -> None:
    model, guide = toy(arch, None if arch == "qwen2" else ["c_attn", "lm_head"])
    factors, log_likelihood = kfac(guide, halves(pad=2), tokens=tokens)
    truth = plain_factors(model, [make_batch(choose=[i]) for i in range(4)], tokens)
    answers = make_batch().answer_ids
    assert factors.keys() == truth.keys()
    for site, (output, inputs) in truth.items():
        true = output[answers[:, None], answers] if site == f"lora_B/{HEAD}" else output
        assert_close(factors[site].output, true, rtol=0, atol=2e-5 * true.abs().max().item(), msg=site)
        assert_close(factors[site].input, inputs, rtol=0, atol=2e-5 * inputs.abs().max().item(), msg=site)
    batch = make_batch()
    expected = jacobians(model, batch)[0][torch.arange(4), batch.labels].sum()
    assert log_likelihood == pytest.approx(float(expected), rel=1e-5)


def test_the_whole_vocabulary_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, guide = toy()
    short, _ = kfac(guide, halves())
    shared = model.backbone
    monkeypatch.setattr(shared, "shortcuts", shared.shortcuts - {"answer_rows"})
    whole, _ = kfac(guide, halves())
    for site in short:
        assert_close(short[site].output, whole[site].output, rtol=1e-4, atol=1e-6)
        assert_close(short[site].input, whole[site].input, rtol=1e-4, atol=1e-6)
    assert whole[f"lora_B/{HEAD}"].output.shape == (3, 3)


def test_nothing_is_left_behind() -> None:
    model, guide = toy()
    kfac(guide, halves())
    assert all(a.tap is None for a in model.adapters.values())
    assert all(p.grad is None for p in model.parameters())
    assert not any(layer._forward_hooks for layer in backbone().lm.modules())


def test_labels_are_needed() -> None:
    _, guide = toy()
    batch = make_batch()
    unlabelled = Batch(batch.input_ids, batch.attention_mask, batch.answer_ids)
    with pytest.raises(DataError, match="has no labels"):
        kfac(guide, [unlabelled])
