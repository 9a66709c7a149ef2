"""Layers that see a window of tokens, or place tokens by their column: answers are those of a row alone."""

from functools import cache, partial
from typing import Any

import pytest
import torch
import transformers as hf
from torch.testing import assert_close

from bara_pyro.core import resuming
from bara_pyro.core.attached import attached
from bara_pyro.core.prediction import predict
from bara_pyro.data.replies import EncodedReply, reply_batch
from bara_pyro.data.split import collate_ids
from bara_pyro.data.types import Batch
from bara_pyro.errors import BackboneError
from bara_pyro.guides.delta import DeltaGuide
from bara_pyro.guides.normal import NormalGuide
from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.verifying import verify
from bara_pyro.models.gaussian_lora import GaussianLoRA
from bara_pyro.models.lora import LoRA

WINDOW = 12
ANSWERS = torch.tensor([5, 9, 13])
SIZES: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "initializer_range": 0.3, "max_position_embeddings": 512,
}  # fmt: skip
GATED = {**SIZES, "intermediate_size": 48, "num_key_value_heads": 1, "pad_token_id": 1}
GEMMA = {**GATED, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": WINDOW}
WINDOWED = {
    "mistral": partial(hf.MistralConfig, **GATED, sliding_window=WINDOW),
    "gemma2": partial(hf.Gemma2Config, **GEMMA),
    "gemma3": partial(hf.Gemma3TextConfig, **GEMMA),
    "phi3": partial(hf.Phi3Config, **GATED, sliding_window=WINDOW),
    "qwen2": partial(
        hf.Qwen2Config, **GATED, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1
    ),
    "gpt_neo": partial(
        hf.GPTNeoConfig, vocab_size=97, hidden_size=32, num_layers=2, num_heads=2, initializer_range=0.3,
        attention_types=[[["global", "local"], 1]], window_size=WINDOW, max_position_embeddings=512,
    ),
}  # fmt: skip
ALIBI = {
    "mpt": partial(hf.MptConfig, vocab_size=97, d_model=32, n_layers=2, n_heads=2, initializer_range=0.3),
    "bloom": partial(
        hf.BloomConfig, vocab_size=97, hidden_size=32, n_layer=2, n_head=2, initializer_range=0.3
    ),
    "falcon": partial(hf.FalconConfig, **SIZES, alibi=True),
}
TARGETS = {"mpt": ["Wqkv"], "bloom": ["query_key_value"]}


@cache
def backbone(make: Any) -> Backbone:
    torch.manual_seed(3)
    found = Backbone(hf.AutoModelForCausalLM.from_config(make()))
    verify(found)
    return found


def texts(lengths: list[int], common: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(7)
    begin = torch.randint(2, 97, (common,), generator=generator).tolist()
    return [begin + torch.randint(2, 97, (n,), generator=generator).tolist() for n in lengths]


def rows(found: list[list[int]], names: str = "abc") -> Batch:
    return collate_ids(found, [0] * len(found), list(names)[: len(found)], ANSWERS, 1)


def pairs(name: str, found: Backbone) -> list[tuple[Any, Any, int]]:
    """Return a program at its point, and one whose latents all rows share, with so many draws."""
    torch.manual_seed(5)
    plain = LoRA(found, 10, r=2, target_modules=TARGETS.get(name))
    gaussian = GaussianLoRA(found, 10, random="A", prior_scale=0.2, r=2, target_modules=TARGETS.get(name))
    for model in (plain, gaussian):
        for parameter in model.parameters():
            parameter.data.add_(0.1 * torch.randn_like(parameter))
    return [(plain, DeltaGuide(plain), 0), (gaussian, NormalGuide(gaussian, init_scale=0.3), 3)]


@pytest.mark.parametrize(
    ("name", "lengths"),
    [*((name, [20, 3, 9]) for name in (WINDOWED | ALIBI)), ("mistral", [6, 6, 6]), ("falcon", [4, 2, 1])],
)
def test_rows_that_begin_alike_are_answered_as_if_alone(
    name: str, lengths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resuming, "LEAST", 3)
    found = backbone((WINDOWED | ALIBI)[name])
    for common in (5, 40):
        asked = texts(lengths, common)
        for model, guide, samples in pairs(name, found):
            together = predict(model, guide, rows(asked), samples=samples)
            alone = [
                predict(model, guide, rows([t], n), samples=samples)
                for t, n in zip(asked, "abc", strict=True)
            ]
            assert_close(together, torch.cat(alone, dim=1), rtol=0, atol=3e-5)


@pytest.mark.parametrize("name", WINDOWED)
def test_a_beginning_is_still_shared_where_nothing_stands_between(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resuming, "LEAST", 3)
    model, _, _ = pairs(name, backbone(WINDOWED[name]))[0]
    assert resuming.shared(model, rows(texts([6, 6], 40))).past is not None
    assert resuming.shared(model, rows(texts([6, 5], 40))).past is None


def in_segments(prompt: list[int], answers: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.tensor([[*prompt, *(t for a in answers for t in a)]])
    places = [0] * len(prompt) + [i + 1 for i, a in enumerate(answers) for _ in a]
    return ids, torch.tensor([places])


@pytest.mark.parametrize("name", WINDOWED)
def test_several_texts_in_a_row_are_exact_within_the_window_and_refused_beyond(name: str) -> None:
    found = backbone(WINDOWED[name])
    answers = [[7, 8], [30, 31, 32]]
    ids, segments = in_segments(texts([6], 0)[0], answers)
    both = found.hidden(ids, torch.ones_like(ids), segments)
    for last, answer in ((7, answers[0]), (10, answers[1])):
        text = torch.tensor([[*ids[0, :6].tolist(), *answer]])
        assert_close(both[0, last], found.hidden(text, torch.ones_like(text))[0, -1], rtol=0, atol=3e-5)
    ids, segments = in_segments(texts([20], 0)[0], answers)
    with pytest.raises(BackboneError, match=f"attend to {WINDOW} tokens, but .* has 25"):
        found.hidden(ids, torch.ones_like(ids), segments)


@pytest.mark.parametrize("name", ["bloom", "falcon"])
def test_architectures_that_cannot_read_segments_say_so(name: str) -> None:
    found = backbone(ALIBI[name])
    assert not found.takes_segments
    ids, segments = in_segments([4, 5, 6], [[7], [8]])
    with pytest.raises(BackboneError, match=r"cannot read several texts in one row: .*--labels letters"):
        found.hidden(ids, torch.ones_like(ids), segments)


@pytest.mark.parametrize(("name", "length"), [("bloom", 3), ("mistral", 20)])
def test_packed_replies_that_cannot_be_kept_apart_are_refused_as_such(name: str, length: int) -> None:
    """Replies have no letters: what helps is to pack none of them."""
    found = backbone((ALIBI | WINDOWED)[name])
    replies = [EncodedReply((4,) * length, (5, 6), str(number)) for number in range(2)]
    batch = reply_batch([replies, replies[:1]])  # the second row is padded
    with pytest.raises(BackboneError, match="--packing") as refused:
        found.hidden(batch.input_ids, batch.attention_mask, batch.segments)
    assert "letters" not in str(refused.value)


@pytest.mark.parametrize("name", WINDOWED)
def test_a_run_attached_answers_long_rows_as_prediction_does(name: str) -> None:
    found = backbone(WINDOWED[name])
    model, guide, _ = pairs(name, found)[0]
    asked = texts([30], 0)
    expected = predict(model, guide, rows(asked), samples=0)[0, 0]
    with attached((model, guide)) as lm, torch.no_grad():
        logits = lm(torch.tensor(asked)).logits[0, -1, ANSWERS]
    assert_close(logits.double().log_softmax(-1), expected, rtol=0, atol=3e-5)
