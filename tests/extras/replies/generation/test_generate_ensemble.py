"""Replies of an ensemble: of its members in turn, each the LoRA that it is alone, or of their mixture."""

import math

import pytest
import torch
from generation_cases import PROMPTS, TARGETS, Pair, adapted, read_again, words

from bara_pyro.core.attached import attached
from bara_pyro.core.likelihood import CompletionLikelihood
from bara_pyro.data.replies import EncodedReply
from bara_pyro.errors import BackboneError, ConfigError
from bara_pyro.extras.replies.generation import generate, reply_uncertainty
from bara_pyro.lm.backbone import Backbone
from bara_pyro.methods import build, method_config

M = 3


@pytest.fixture
def ensemble(tiny: Backbone) -> Pair:
    torch.manual_seed(4)
    return adapted("ensemble", tiny)


def alone(ensemble: Pair, member: int) -> Pair:
    """A LoRA with the weights of one member."""
    options = {"r": 3, "target_modules": TARGETS, "likelihood": CompletionLikelihood()}
    pair = build(method_config({"name": "lora"}), ensemble[0].backbone, 4, options)  # type: ignore[arg-type]
    with torch.no_grad():
        for own, theirs in zip(pair[0].parameters(), ensemble[0].parameters(), strict=True):
            own.copy_(theirs[member])
    return pair


def test_reply_n_is_of_member_n_mod_m(ensemble: Pair) -> None:
    """By transformers' own `generate` with that member attached."""
    found = list(generate(*ensemble, PROMPTS, replies=2 * M, temperature=0, max_new_tokens=8))
    for reply in found:
        prompt = next(prompt for prompt in PROMPTS if prompt.id == reply.prompt)
        with attached(alone(ensemble, reply.number % M)) as lm:
            theirs = lm.generate(torch.tensor([prompt.token_ids]), max_new_tokens=8, do_sample=False)
        assert list(reply.token_ids) == theirs[0, len(prompt.token_ids) :].tolist()
    assert len(set(words(found[:M]))) == M
    two = list(generate(*ensemble, PROMPTS[:1], replies=4, draws=2, temperature=0, max_new_tokens=8))
    assert words(two) == words(found[:2]) * 2


@pytest.mark.parametrize("count", [2, M])
def test_the_mixture_of_members(ensemble: Pair, count: int) -> None:
    """Each member's own probability of a reply, by one forward of the LoRA that it is."""
    [first] = generate(*ensemble, PROMPTS[:1], mixture=count, max_new_tokens=8)
    members = [alone(ensemble, member) for member in range(count)]
    before = torch.zeros(count, dtype=torch.float64)
    for i, log_prob in enumerate(first.log_probs):
        told = first.token_ids[: i + 1]
        after = torch.cat([read_again(pair, PROMPTS[0], told, 0) for pair in members])
        assert log_prob == pytest.approx(float((after - before).logsumexp(0)) - math.log(count), abs=1e-4)
        before = after
    assert before.std() > 0.05


def test_what_is_refused(ensemble: Pair) -> None:
    with pytest.raises(ConfigError, match=r"has no mean, so give draws='each'.* mixture=3"):
        list(generate(*ensemble, PROMPTS, draws="mean"))
    with pytest.raises(ConfigError, match=r"mixture=4 exceeds the ensemble's 3 members"):
        list(generate(*ensemble, PROMPTS, mixture=4))
    with (
        attached(alone(ensemble, 0)),
        pytest.raises(BackboneError, match="already attached to this language model"),
    ):
        list(generate(*ensemble, PROMPTS))


def test_uncertainty_is_of_the_members(ensemble: Pair) -> None:
    """Each member's distribution of a token: one forward of the LoRA that it is, whatever `samples`."""
    prompt, reply = PROMPTS[0], (4, 9)
    told = EncodedReply(prompt.token_ids, reply, prompt.key)
    [found] = reply_uncertainty(*ensemble, [told], samples=10)
    assert reply_uncertainty(*ensemble, [told], samples=1) == [found]
    distributions = []
    for member in range(M):
        pair, vocabulary = alone(ensemble, member), ensemble[0].backbone.vocabulary
        joint = [read_again(pair, prompt, (reply[0], token), 0) for token in range(vocabulary)]
        distributions.append(torch.cat(joint) - read_again(pair, prompt, reply[:1], 0))
    each = torch.stack(distributions)
    mean = each.logsumexp(0) - math.log(M)
    aleatoric = float(torch.special.entr(each.exp()).sum(-1).mean())
    epistemic = float(torch.special.entr(mean.exp()).sum()) - aleatoric
    assert found.log_probs[1] == pytest.approx(float(mean[reply[1]]), abs=2e-4)
    assert found.aleatoric[1] == pytest.approx(aleatoric, abs=2e-4)
    assert found.epistemic[1] == pytest.approx(epistemic, abs=2e-4)
    assert epistemic > 0.005
