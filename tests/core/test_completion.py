"""Supervised fine-tuning: every token of a reply, against PEFT and transformers and a plain Categorical."""

from dataclasses import replace
from typing import Any

import pyro
import pytest
import torch
from core_cases import backbone, bara_pair, make_batch, make_lm, randomise
from peft import LoraConfig, get_peft_model
from pyro import poutine
from pyro.distributions import Categorical
from torch import Tensor, nn
from torch.testing import assert_close

from bara_pyro.core import next_token
from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.core.likelihood import LIKELIHOOD, CompletionLikelihood, Head, Likelihood
from bara_pyro.core.optimizers import adamw, parameters
from bara_pyro.core.prediction import predict
from bara_pyro.core.svi import SVI
from bara_pyro.core.terms import ElboTerms
from bara_pyro.data.replies import EncodedReplies, EncodedReply, ReplyBatch, reply_batch
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError, DataError
from bara_pyro.guides.delta import DeltaGuide
from bara_pyro.guides.ensemble import EnsembleGuide
from bara_pyro.lm.backbone import Backbone
from bara_pyro.methods import METHODS, build, method_config
from bara_pyro.models.ensemble import Ensemble
from bara_pyro.models.lora import LoRA

TARGETS = ["q_proj", "v_proj", "lm_head"]
ROWS = (((3, 4, 5), (6, 7)), ((8,), (9, 10, 11, 12)), ((13, 14, 15, 16, 17), (18,)), ((19, 20), (21, 22, 23)))
REPLIES = [EncodedReply(prompt, reply, str(i)) for i, (prompt, reply) in enumerate(ROWS)]
EACH = [[reply] for reply in REPLIES]
TOGETHER = [[REPLIES[0], REPLIES[2]], [REPLIES[1], REPLIES[3]]]


class Plainly(CompletionLikelihood):
    """The same by a Categorical over all logits at once."""

    def observe(self, hidden: Tensor, batch: Batch, head: Head) -> Tensor:
        assert isinstance(batch, ReplyBatch)
        width = batch.targets.shape[1]
        with pyro.plate("positions", width, dim=-1), poutine.mask(mask=batch.scored):  # type: ignore[arg-type]
            distribution = Categorical(logits=head(hidden[..., -width:, :]))
            pyro.sample(LIKELIHOOD, distribution, obs=batch.targets)
        return distribution.log_prob(batch.targets).masked_fill(~batch.scored, 0.0).sum(-1)


def lora(likelihood: Likelihood | None = None, lm: nn.Module | None = None) -> LoRA:
    frozen = backbone() if lm is None else Backbone(lm)  # type: ignore[arg-type]
    model = LoRA(frozen, 4, r=3, target_modules=TARGETS, likelihood=likelihood or CompletionLikelihood())
    return randomise(model)  # type: ignore[return-value]


def terms_of(pair: Any, batch: Batch) -> tuple[ElboTerms, dict[str, Tensor]]:
    """The bound on a batch under one seed, and its gradients by name."""
    torch.manual_seed(5)
    values = {f"{i}/{name}": value for i, part in enumerate(pair) for name, value in part.named_parameters()}
    for value in values.values():
        value.grad = None
    terms = MeanFieldELBO().terms(*pair, batch)
    terms.loss.backward()
    grads = {name: value.grad.clone() for name, value in values.items() if value.grad is not None}
    return terms, grads


def assert_same(found: Any, expected: Any, atol: float = 1e-5) -> None:
    (terms, grads), (other, others) = found, expected
    assert_close(terms.loss, other.loss, rtol=1e-6, atol=atol)
    assert grads.keys() == others.keys()
    for name, grad in grads.items():
        assert_close(grad, others[name], rtol=1e-4, atol=atol, msg=name)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")
def test_loss_and_gradients_are_those_of_peft_and_transformers() -> None:
    """One row after another, labels -100 on the prompt, the loss of transformers itself."""
    model = lora()
    terms, _ = terms_of((model, DeltaGuide(model)), reply_batch(EACH))
    config = LoraConfig(r=3, lora_alpha=16, target_modules=TARGETS, lora_dropout=0.0)
    theirs = get_peft_model(make_lm("qwen2"), config)
    ours = {a.target.path: a for a in model.adapters.values()}
    layers = {n: m for n, m in theirs.base_model.model.named_modules() if hasattr(m, "lora_A")}
    assert layers.keys() == ours.keys()
    for path, layer in layers.items():
        layer.lora_A["default"].weight.data.copy_(ours[path].lora_A)
        layer.lora_B["default"].weight.data.copy_(ours[path].lora_B)
    total = torch.zeros(())
    for prompt, reply in ROWS:
        ids = torch.tensor([[*prompt, *reply]])
        labels = torch.tensor([[*[-100] * len(prompt), *reply]])
        total = total + theirs(input_ids=ids, labels=labels).loss * len(reply)
    total.backward()
    assert_close(terms.nll, total, rtol=1e-6, atol=1e-5)
    for path, layer in layers.items():
        assert_close(ours[path].lora_A.grad, layer.lora_A["default"].weight.grad, rtol=1e-4, atol=1e-5)
        assert_close(ours[path].lora_B.grad, layer.lora_B["default"].weight.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", ["additive", "gate"])
@pytest.mark.parametrize("budget", [None, 1])
def test_the_bound_is_that_of_a_plain_categorical(
    form: str, budget: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the logits of one position are made at a time, and again for the gradient."""
    pairs = [
        bara_pair(seed=3, scale=0.3, form=form, likelihood=kind()) for kind in (CompletionLikelihood, Plainly)
    ]
    if budget is not None:
        monkeypatch.setattr(next_token, "BUDGET", budget)
    found, expected = (terms_of(pair, reply_batch(EACH)) for pair in pairs)
    assert_same(found, expected)
    assert found[0].kl.keys() == expected[0].kl.keys()
    for site, kl in found[0].kl.items():
        assert_close(kl, expected[0].kl[site], rtol=1e-5, atol=1e-5)
    assert "theta/lm_head" in found[0].kl


def test_no_more_logits_than_the_budget_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    model = lora()
    seen: list[int] = []
    made = Backbone.logits

    def counted(self: Backbone, hidden: Tensor, rows: Tensor | None = None) -> Tensor:
        out = made(self, hidden, rows)
        seen.append(out.numel() * 4)
        return out

    monkeypatch.setattr(Backbone, "logits", counted)
    budget = 2 * 4 * 4 * model.backbone.vocabulary  # two positions of four rows
    monkeypatch.setattr(next_token, "BUDGET", budget)
    terms_of((model, DeltaGuide(model)), reply_batch(EACH))
    assert seen == [budget] * 4  # of four positions, forward and again backward


def test_packing_changes_neither_loss_nor_gradient() -> None:
    model = lora()
    pair = (model, DeltaGuide(model))
    apart = terms_of(pair, reply_batch(EACH))
    model.num_data = 2  # rows
    assert_same(terms_of(pair, reply_batch(TOGETHER)), apart)


def test_packing_changes_no_kl_and_no_mean_of_gates() -> None:
    """Of the layers whose input no draw has touched; the sums of the replies at the posterior mean."""
    model, guide = bara_pair(seed=3, scale=0.3, form="gate", likelihood=CompletionLikelihood())
    apart, together = reply_batch(EACH), reply_batch(TOGETHER)
    first = "theta/model.layers.0.self_attn.q_proj"
    kl = [terms_of((model, guide), batch)[0].kl[first] for batch in (apart, together)]
    assert_close(kl[0], kl[1], rtol=1e-5, atol=1e-5)
    alone = predict(model, guide, apart, samples=0)[0]
    assert_close(
        predict(model, guide, together, samples=0)[0],
        torch.stack([alone[0] + alone[2], alone[1] + alone[3]]),
        rtol=1e-5,
        atol=1e-5,
    )


def test_rows_are_packed_as_far_as_there_is_room() -> None:
    split = EncodedReplies(tuple(map(tuple, EACH)))
    found = split.packed(9)
    assert sorted(reply.id for row in found.rows for reply in row) == ["0", "1", "2", "3"]
    assert all(sum(map(len, row)) <= 9 for row in found.rows)
    assert len(found) == 2  # 4, 4, 5 and 4 tokens
    assert split.packed(1) == split  # longer than that: each alone
    assert found.tokens == split.tokens == 10
    assert found.batch([1, 0]).scored.sum() == 10


@pytest.mark.parametrize("samples", [0, 4])
def test_a_replys_score_depends_on_no_other_row(samples: int) -> None:
    pair = bara_pair(seed=3, scale=0.3, form="gate", likelihood=CompletionLikelihood())
    whole = predict(*pair, reply_batch(EACH), samples=samples)
    assert whole.shape == (max(samples, 1), 4)
    pieces = predict(*pair, reply_batch(EACH), samples=samples, memory_budget=1)
    assert_close(pieces, whole, rtol=0, atol=1e-5)
    last = predict(*pair, reply_batch(EACH[2:]), samples=samples)
    assert_close(last, whole[:, 2:], rtol=0, atol=1e-5)
    assert samples == 0 or whole.std(0).min() > 1e-4


@pytest.mark.parametrize("method", list(METHODS))
def test_every_method_learns_replies(method: str) -> None:
    """Or says that it cannot."""
    config = method_config({"name": method})
    options = {"r": 3, "target_modules": TARGETS, "likelihood": CompletionLikelihood()}
    torch.manual_seed(3)
    if method in ("laplace", "vbll", "polar_vbll"):
        with pytest.raises(ConfigError, match=r"of one token each.*train with likelihood='answer'"):
            build(config, backbone(), 4, options)  # type: ignore[arg-type]
        return
    model, guide = build(config, backbone(), 4, options)  # type: ignore[arg-type]
    batch = reply_batch(EACH)
    svi = SVI(model, guide, adamw(model, guide, 3e-2))
    losses = [svi.step(batch) and svi.last["nll"] for _ in range(15)]
    assert sum(losses[-3:]) < 0.8 * sum(losses[:3])


def test_an_ensemble_is_the_mixture_of_its_members_at_the_mean_too() -> None:
    """Not a softmax over the rows of the batch, which S = 0 once was: a row alone had probability 1."""
    torch.manual_seed(3)
    model = Ensemble(backbone(), 4, r=3, target_modules=TARGETS, members=3, likelihood=CompletionLikelihood())
    randomise(model)
    members = []
    for member in range(3):
        one = lora()
        for name, value in one.named_parameters():
            value.data.copy_(model.get_parameter(name)[member])
        members.append(predict(one, DeltaGuide(one), reply_batch(EACH), samples=0)[0])
    expected = torch.stack(members).exp().mean(0).log()
    guide = EnsembleGuide(model)
    [whole] = predict(model, guide, reply_batch(EACH), samples=0)
    assert_close(whole, expected, rtol=0, atol=2e-5)
    assert_close(
        predict(model, guide, reply_batch(EACH), samples=2).exp().mean(0).log(), expected, rtol=0, atol=2e-5
    )
    alone = [predict(model, guide, reply_batch([row]), samples=0)[0, 0] for row in EACH]
    assert_close(torch.stack(alone), expected, rtol=0, atol=2e-5)
    with pytest.raises(ConfigError, match=r"Mean logits .* need a closed set of answers"):
        EnsembleGuide(model, average="logits")


def test_a_token_is_drawn_from_the_distribution_that_scores_it() -> None:
    torch.manual_seed(0)
    logits = torch.randn(1, 3, 5)
    distribution = next_token.NextToken(lambda places: logits[..., places, :], torch.Size([1, 3]), 5)
    draws = distribution.sample((20000,))
    assert draws.shape == (20000, 1, 3)
    shares = torch.stack([(draws == token).float().mean(0) for token in range(5)], dim=-1)
    p = logits.softmax(-1)
    assert ((shares - p).abs() < 5 * (p * (1 - p) / 20000).sqrt()).all()
    for token in range(5):
        value = torch.full((1, 3), token)
        assert_close(distribution.log_prob(value), logits.log_softmax(-1)[..., token])


def test_what_cannot_be_learnt_is_refused() -> None:
    model, guide = bara_pair(likelihood=CompletionLikelihood())
    with pytest.raises(DataError, match="no replies"):
        MeanFieldELBO().terms(model, guide, make_batch())
    with pytest.raises(DataError, match="'x' has no tokens in its reply"):
        EncodedReply((1,), (), "x")
    with pytest.raises(DataError, match="'x' has no tokens in its prompt"):
        EncodedReply((), (1,), "x")
    with pytest.raises(ConfigError, match="at least one reply"):
        reply_batch([[]])
    scored = reply_batch(EACH).questions(slice(0, 2))
    assert not scored.training
    assert replace(scored, training=True).targets.shape == (2, 4)
    assert parameters(model, guide)
