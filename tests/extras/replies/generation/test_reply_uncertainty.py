"""Uncertainty of each token of a reply, against distributions that are put together token by token."""

import math

import pytest
import torch
from generation_cases import PROMPTS, Pair, adapted, read_again
from torch import Tensor

from bara_pyro.core import next_token
from bara_pyro.data.replies import EncodedReply
from bara_pyro.errors import ConfigError
from bara_pyro.extras.replies.generation import reply_uncertainty
from bara_pyro.lm.backbone import Backbone

REPLIES = ((4, 5, 6), (9,), (20, 3, 3, 7, 1))
TOLD = [EncodedReply(p.token_ids, reply, p.key) for p, reply in zip(PROMPTS, REPLIES, strict=True)]


def distributions(pair: Pair, row: int, place: int, samples: int) -> Tensor:
    """Return `log p_k(token)` of all tokens at a place of a reply, `max(K, 1) x V`, one forward a token."""
    before = REPLIES[row][:place]
    vocabulary = pair[0].backbone.vocabulary
    joint = [read_again(pair, PROMPTS[row], (*before, token), samples) for token in range(vocabulary)]
    known = read_again(pair, PROMPTS[row], before, samples) if before else torch.zeros(max(samples, 1))
    return torch.stack(joint, dim=-1) - known.unsqueeze(-1)


@pytest.mark.slow
@pytest.mark.parametrize("samples", [0, 4])
@pytest.mark.parametrize("budget", [None, 1])
def test_against_the_distributions_themselves(
    bara: Pair, samples: int, budget: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the logits of one position are held at a time."""
    if budget is not None:
        monkeypatch.setattr(next_token, "BUDGET", budget)
    found = reply_uncertainty(*bara, TOLD, samples=samples)
    for row, one in enumerate(found):
        assert len(one.log_probs) == len(one.total) == len(one.epistemic) == len(REPLIES[row])
        for place, token in enumerate(REPLIES[row]):
            each = distributions(bara, row, place, samples)
            mean = each.logsumexp(0) - math.log(len(each))
            total = float(torch.special.entr(mean.exp()).sum())
            aleatoric = float(torch.special.entr(each.exp()).sum(-1).mean())
            assert one.log_probs[place] == pytest.approx(float(mean[token]), abs=2e-4)
            assert one.total[place] == pytest.approx(total, abs=2e-4)
            assert one.aleatoric[place] == pytest.approx(aleatoric, abs=2e-4)
            assert one.epistemic[place] == pytest.approx(total - aleatoric, abs=2e-4)
        whole = read_again(bara, PROMPTS[row], REPLIES[row], samples)
        assert one.log_prob == pytest.approx(float(whole.logsumexp(0) - math.log(len(whole))), abs=2e-4)
    sizes = [value for one in found for value in one.epistemic]
    assert max(sizes) > 0.05 if samples else max(sizes) == pytest.approx(0, abs=1e-5)


def test_it_depends_on_no_other_reply(bara: Pair) -> None:
    whole = reply_uncertainty(*bara, TOLD, samples=3)
    for options in ({"memory_budget": 1}, {}):
        for told, expected in zip(TOLD, whole, strict=True):
            [one] = reply_uncertainty(*bara, [told], samples=3, **options)
            assert one.epistemic == pytest.approx(expected.epistemic, abs=1e-4)
            assert one.log_prob == pytest.approx(expected.log_prob, abs=1e-4)
    done: list[int] = []
    reply_uncertainty(*bara, TOLD, samples=3, memory_budget=1, on_replies=done.append)
    assert done == [1, 1, 1]


def test_a_point_has_no_epistemic_part(tiny: Backbone) -> None:
    pair = adapted("lora", tiny)
    for one in reply_uncertainty(*pair, TOLD, samples=5):
        assert max(one.epistemic) == 0
        assert one.log_prob == pytest.approx(sum(one.log_probs), abs=1e-4)


def test_the_programs_likelihood_is_given_back(bara: Pair) -> None:
    own = bara[0].likelihood
    reply_uncertainty(*bara, TOLD, samples=2)
    assert bara[0].likelihood is own
    too_long = EncodedReply((3,) * 60, (4,) * 20, "x")
    with pytest.raises(ConfigError, match="more than the 64"):
        reply_uncertainty(*bara, [too_long], samples=2)
    assert bara[0].likelihood is own


def test_what_is_refused(bara: Pair, tiny: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="samples is -1"):
        reply_uncertainty(*bara, TOLD, samples=-1)
    with pytest.raises(ConfigError, match="another model"):
        reply_uncertainty(bara[0], adapted("bara", tiny)[1], TOLD)
    with pytest.raises(ConfigError, match="samples is 0, but an ensemble"):
        reply_uncertainty(*adapted("ensemble", tiny), TOLD, samples=0)
    monkeypatch.setattr(type(bara[1]), "predictive", lambda *_: None)  # as of a linearised posterior
    with pytest.raises(ConfigError, match="does not provide"):
        reply_uncertainty(*bara, TOLD)
