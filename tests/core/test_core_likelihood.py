"""A program observes what it is told to: another likelihood needs no other program, guide or inference."""

from dataclasses import dataclass

import pyro
import torch
from core_cases import backbone, bara_pair, make_batch, mean_forward, trainer
from pyro import poutine
from pyro.distributions import Categorical
from torch import Tensor
from torch.testing import assert_close

from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.core.likelihood import LIKELIHOOD, Head, Likelihood
from bara_pyro.core.prediction import predict
from bara_pyro.data.types import Batch
from bara_pyro.guides.delta import DeltaGuide
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.models.bara import BaRA
from bara_pyro.models.lora import LoRA

N, R = 4, 2


@dataclass(frozen=True)
class NextTokens(Likelihood):
    """Every real token but the first of a row, given those before it."""

    def observe(self, hidden: Tensor, batch: Batch, head: Head) -> Tensor:
        counted = batch.attention_mask.clone()
        counted[:, -1] = False
        following = batch.input_ids.roll(-1, dims=1)
        with pyro.plate("positions", counted.shape[1], dim=-1), poutine.mask(mask=counted):
            log_probs = head(hidden).log_softmax(-1)
            pyro.sample(LIKELIHOOD, Categorical(logits=log_probs), obs=following)
        chosen = log_probs.gather(-1, following.expand(log_probs.shape[:-1]).unsqueeze(-1)).squeeze(-1)
        return chosen.masked_fill(~counted, 0.0).sum(-1)

    def observed(self, batch: Batch) -> bool:
        return True


def toy(form: str = "gate") -> tuple[BaRA, WeibullGuide]:
    return bara_pair(r=R, seed=3, scale=0.3, form=form, likelihood=NextTokens())


def plain_nll(batch: Batch) -> Tensor:
    """The frozen model's own, by its ordinary forward, row by row without padding."""
    out = []
    for ids, mask in zip(batch.input_ids, batch.attention_mask, strict=True):
        row = ids[mask][None]
        logits = backbone().lm(input_ids=row).logits[0, :-1]
        out.append(torch.nn.functional.cross_entropy(logits, row[0, 1:], reduction="sum"))
    return torch.stack(out)


def test_it_is_the_language_models_own_at_the_start() -> None:
    model, guide = bara_pair(r=R, likelihood=NextTokens())
    batch = make_batch(pad=2)
    with torch.no_grad():
        truth = plain_nll(batch)
    assert_close(-mean_forward(model, guide, batch), truth, rtol=1e-5, atol=1e-4)
    nll = MeanFieldELBO().terms(model, guide, batch).nll
    assert_close(nll, truth.sum(), rtol=1e-5, atol=1e-4)


def test_the_heads_gates_count_at_its_positions() -> None:
    _, guide = toy()
    batch = make_batch(pad=2)
    program, posterior = guide.run(batch)
    site = posterior.nodes["theta/lm_head"]
    assert site["value"].shape == (*batch.input_ids.shape, R)
    assert torch.equal(site["mask"][:, :-1], batch.attention_mask[:, :-1])
    assert not site["mask"][:, -1].any()
    assert program.nodes[LIKELIHOOD]["is_observed"]


def test_it_trains_and_predicts() -> None:
    model, guide = toy()
    batch = make_batch()
    before = predict(model, guide, batch, samples=0)
    svi = trainer((model, guide), 0.02)
    for _ in range(30):
        svi.step(batch)
    after = predict(model, guide, batch, samples=0)
    assert before.shape == after.shape == (1, 4)
    assert after.sum() > before.sum() + 5
    draws = predict(model, guide, batch, samples=6)
    assert draws.shape == (6, 4)
    assert draws.std(0).min() > 0
    # Neither other rows, nor padding, nor the cut into pieces is seen.
    one = predict(model, guide, make_batch(choose=[2], pad=3), samples=6, memory_budget=1)
    assert_close(one[:, 0], draws[:, 2], rtol=0, atol=1e-4)


def test_whatever_it_returns_is_repeated_where_nothing_is_drawn() -> None:
    """A number a row, of a program without latents."""
    model = LoRA(backbone(), N, r=R, likelihood=NextTokens())
    found = predict(model, DeltaGuide(model), make_batch(), samples=3)
    assert found.shape == (3, N)
    assert_close(found[2], -plain_nll(make_batch()).detach().double(), rtol=1e-5, atol=1e-4)
