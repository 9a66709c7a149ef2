"""Scores of rows against transformers' forward of one row; padding, batch, order and cutting."""

import random
from pathlib import Path

import pytest
import torch
from reward_cases import WORDS, save_classifier, tokenizer, words
from torch.testing import assert_close

from bara_pyro.data.conversations import Conversation
from bara_pyro.errors import BackboneError, ConfigError, DataError
from bara_pyro.extras.replies.reward import load_reward_model, score_replies
from bara_pyro.extras.replies.reward.rows import row_of

# A sum over 32 features in another order: a few units in the last of float32's 24 bits.
NEAR = {"rtol": 1e-5, "atol": 1e-5}
USER = {"role": "user", "content": "the fox is"}
SAID = {"role": "assistant", "content": "red"}


def some(count: int = 13) -> list[tuple[str, str]]:
    rng = random.Random(3)
    return [(" ".join(words(rng)), " " + " ".join(words(rng, 1, 9))) for _ in range(count)]


def alone(reward, replies) -> torch.Tensor:
    """Each row by itself through transformers: no padding, no batch."""
    found = []
    for prompt, reply in replies:
        ids = torch.tensor([[*reward.tokenizer(prompt + reply)["input_ids"], reward.tokenizer.eos_token_id]])
        with torch.no_grad():
            found.append(reward.model(ids).logits[0, 0])
    return torch.stack(found)


@pytest.mark.parametrize("arch", ["llama", "gpt2"])
@pytest.mark.parametrize("pad", [1, 2])
def test_batch_order_and_padding_change_nothing(tmp_path: Path, arch: str, pad: int) -> None:
    """A pad token of its own, and the token that ends a text; GPT-2's positions are learnt."""
    reward = load_reward_model(save_classifier(tmp_path, arch, pad=pad))
    replies = some()
    expected = alone(reward, replies)
    assert expected.std() > 0.1
    for batch_size in (1, 3, 13):
        assert_close(score_replies(reward, replies, batch_size=batch_size), expected, **NEAR)
    backwards = score_replies(reward, replies[::-1], batch_size=5)
    assert_close(backwards.flip(0), expected, **NEAR)
    sides = []
    for side in ("left", "right"):
        reward.tokenizer.padding_side = side
        sides.append(score_replies(reward, replies, batch_size=4))
    assert torch.equal(*sides)


def test_a_conversation_is_what_the_template_makes_of_it(tmp_path: Path) -> None:
    reward = load_reward_model(save_classifier(tmp_path, template=True))
    told = reward.tokenizer.apply_chat_template([USER, SAID], tokenize=True, return_dict=False)
    for prompt in ("the fox is", [USER]):
        given = Conversation(prompt if isinstance(prompt, str) else tuple(prompt), "red", "a")
        assert row_of(given, reward.tokenizer, 64) == told
    with torch.no_grad():
        expected = reward.model(torch.tensor([told])).logits[:, 0]
    assert_close(score_replies(reward, [("the fox is", "red")]), expected, **NEAR)
    assert_close(score_replies(reward, [([USER], "red")]), expected, **NEAR)


@pytest.mark.parametrize("form", ["ended", "chat"])
def test_a_long_row_loses_the_beginning_of_its_prompt(form: str) -> None:
    made = tokenizer(template=form == "chat")
    row = Conversation("the fox is the hen is red", " blue good cat", "a")
    whole = row_of(row, made, 64)
    assert whole is not None
    front = 1 if form == "chat" and whole[0] in made.all_special_ids else 0
    kept = {"ended": 4, "chat": 5}[form]  # with what the template writes around it
    for length in range(kept, len(whole) + 1):
        cut = row_of(row, made, length)
        assert cut == whole[:front] + whole[len(whole) - (length - front) :]
    assert row_of(row, made, 2) is None


def test_a_text_ends_once() -> None:
    made = tokenizer()
    end = made.eos_token_id
    tokens = made("the fox is red")["input_ids"]
    for reply in (" red", " red <end>"):
        assert row_of(Conversation("the fox is", reply, "a"), made, 64) == [*tokens, end]
    made.eos_token = None
    assert row_of(Conversation("the fox is", " red", "a"), made, 64) == tokens


def test_a_special_token_in_front_stays() -> None:
    made = tokenizer()
    whole = [*made("<end> the fox is red")["input_ids"], made.eos_token_id]
    assert row_of(Conversation("<end> the fox is", " red", "a"), made, 3) == [whole[0], *whole[-2:]]


def test_progress_counts_rows(classifier: Path) -> None:
    seen: list[int] = []
    score_replies(load_reward_model(classifier), some(7), batch_size=3, on_rows=seen.append)
    assert seen == [3, 3, 1]


def test_what_is_refused(classifier: Path) -> None:
    reward = load_reward_model(classifier)
    long = [("the", " red"), ("the", " red" * 9)]
    cases = [
        (DataError, "no replies to score", ([],), {}),
        (DataError, "row 'row-2' is longer than 5 tokens", (long,), {"max_length": 5}),
        (DataError, "conversation, but the reward model has no chat template", ([([USER], "red")],), {}),
        (DataError, "row 'row-1' have no tokens", ([("", "")],), {}),
        (DataError, "is not valid Unicode", ([("the", "\ud800")],), {}),
        (ConfigError, "max_length is 0", (long,), {"max_length": 0}),
        (ConfigError, "reads 64 tokens at most: give --max-length 64 or fewer", (long,), {"max_length": 65}),
        (ConfigError, "batch_size is 0", (long,), {"batch_size": 0}),
    ]
    for error, said, given, settings in cases:
        with pytest.raises(error, match=said):
            score_replies(reward, *given, **settings)


def test_a_score_that_is_not_finite_is_refused(classifier: Path) -> None:
    reward = load_reward_model(classifier)
    with torch.no_grad():
        reward.model.model.embed_tokens.weight[WORDS.index("good")] = torch.nan
    with pytest.raises(BackboneError, match="score of row 'row-2' is not finite"):
        score_replies(reward, [("the", " red"), ("the", " good")])


def test_a_template_that_refuses_is_a_sentence(tmp_path: Path) -> None:
    reward = load_reward_model(save_classifier(tmp_path, template=True))
    reward.tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(DataError, match=r"refuses row 'row-1' \(roles must alternate\)"):
        score_replies(reward, [("the", "red")])


def test_roberta_reads_fewer_tokens_than_it_has_positions(tmp_path: Path) -> None:
    """Its first positions are the padding's and before it: 66, of which a row has 64."""
    reward = load_reward_model(save_classifier(tmp_path, "roberta"))
    assert reward.max_length == 64
    row = [("the fox " * 28, "is red " * 6)]
    cut = score_replies(reward, row)
    with pytest.raises(ConfigError, match="reads 64 tokens at most"):
        score_replies(reward, row, max_length=65)
    ids = torch.tensor([row_of(Conversation(*row[0], "x"), reward.tokenizer, 64)])
    assert ids.shape[1] == 64
    with torch.no_grad():
        assert_close(cut[0], reward.model(ids).logits[0, 0], **NEAR)
