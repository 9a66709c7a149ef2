"""Vectors of replies: a loop over texts, tokens and pairs, one text at a time and without padding."""

import json
import math
import shutil
from itertools import combinations
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
import torch
from app_cases import Bara, assert_one_sentence, make_bara, save_backbone, word_tokenizer, write_rows
from safetensors.torch import load_file, save_file
from tokenizers.processors import TemplateProcessing
from transformers import AutoModel, BertConfig, BertModel, RobertaConfig, RobertaModel, T5Config, T5Model

from bara_pyro.errors import BackboneError, ConfigError, DataError
from bara_pyro.extras.replies.generation import embed, encoder_distance

SIZES = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20}
REPLIES = [
    ["the fox is red", "is the owl grey ?", "yes"],
    ["no", "the fox is red the fox is red the bee is green", "the fox is blue"],
]
TEXTS = [text for own in REPLIES for text in own]
LONG = 10  # tokens that the encoders read


def save(folder: Path, kind: str) -> Path:
    """A random encoder, which puts a token around a text on both sides."""
    torch.manual_seed(0)
    if kind == "causal":
        return save_backbone(folder)
    tokenizer = word_tokenizer()
    around = [("<unk>", 0), ("<end>", 1)]
    tokenizer._tokenizer.post_processor = TemplateProcessing(
        single="<unk> $A <end>", pair="<unk> $A <end> $B <end>", special_tokens=around
    )
    tokenizer.pad_token = "<end>"
    how = {"vocab_size": len(tokenizer), **SIZES}
    model = (
        BertModel(BertConfig(**how, max_position_embeddings=LONG))
        if kind == "bert"
        else RobertaModel(RobertaConfig(**how, max_position_embeddings=LONG + 2, pad_token_id=1))
    )
    with torch.no_grad():
        for value in model.parameters():
            value.add_(0.5 * torch.randn_like(value))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def by_loop(folder: Path, text: str) -> list[float]:
    """The mean of a text's last hidden states, divided by its length."""
    from transformers import PreTrainedTokenizerFast

    tokens = PreTrainedTokenizerFast.from_pretrained(folder)(text)["input_ids"]
    if len(tokens) > LONG:  # the token that ends a text stays
        tokens = [*tokens[: LONG - 1], tokens[-1]]
    model = AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        states = model(torch.tensor([tokens])).last_hidden_state[0].tolist()
    sums = [sum(state[i] for state in states) / len(states) for i in range(len(states[0]))]
    length = math.sqrt(sum(value * value for value in sums))
    return [value / length for value in sums]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("bert"), "bert")


@pytest.mark.parametrize("kind", ["bert", "roberta", "causal"])
def test_a_plain_loop(kind: str, tmp_path: Path) -> None:
    """Texts of many lengths, one beyond what BERT and RoBERTa read; every size of a batch."""
    folder = save(tmp_path, kind)
    texts = [text for text in TEXTS if kind != "causal" or len(text.split()) < LONG]
    expected = np.array([by_loop(folder, text) for text in texts])
    assert np.ptp(expected, axis=0).max() > 0.1
    for size in (1, 4, 32):
        found = embed(texts, folder, batch_size=size)
        assert found.shape == expected.shape
        assert found == pytest.approx(expected, abs=1e-5)
        assert np.linalg.norm(found, axis=1) == pytest.approx(1, abs=1e-6)


def test_a_length_of_sentence_transformers_own_is_kept(bert: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(bert, tmp_path / "short")
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 4}')
    long, short = "the fox is red the fox", "the fox"  # with the tokens around it: four
    assert embed([long], folder) == pytest.approx(embed([short], bert), abs=1e-6)
    assert embed([long], bert) != pytest.approx(embed([short], bert), abs=1e-3)


def test_the_mean_over_pairs(bert: Path) -> None:
    found = encoder_distance(REPLIES, bert, batch_size=2)
    for own, distance in zip(REPLIES, found, strict=True):
        vectors = [by_loop(bert, text) for text in own]
        pairs = [1 - sum(a * b for a, b in zip(x, y, strict=True)) for x, y in combinations(vectors, 2)]
        assert distance == pytest.approx(mean(pairs), abs=1e-5)
        assert distance > 0.01
    assert encoder_distance([["yes", "yes"]], bert) == pytest.approx([0], abs=1e-6)


def test_a_pooler_is_of_no_matter_and_other_weights_are(bert: Path, tmp_path: Path) -> None:
    def saved_without(part: str) -> Path:
        folder = tmp_path / part
        save(folder, "bert")
        weights = load_file(folder / "model.safetensors")
        kept = {name: value for name, value in weights.items() if not name.startswith(part)}
        assert len(kept) < len(weights)
        save_file(kept, folder / "model.safetensors", {"format": "pt"})
        return folder

    assert embed(TEXTS, saved_without("pooler")) == pytest.approx(embed(TEXTS, bert), abs=1e-6)
    with pytest.raises(BackboneError, match=r"lacks the weight 'encoder\.layer\.1"):
        embed(TEXTS, saved_without("encoder.layer.1"))


def test_what_is_refused(bert: Path, tmp_path: Path) -> None:
    with pytest.raises(BackboneError, match="has no config"):
        embed(TEXTS, tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(BackboneError, match="has no tokenizer"):
        embed(TEXTS, tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(BackboneError, match="Cannot load the encoder"):
        embed(TEXTS, tmp_path)
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "mine", "auto_map": {"AutoConfig": "a.B", "AutoModel": "a.C"}})
    )
    with pytest.raises(BackboneError, match="needs its own code"):
        embed(TEXTS, tmp_path)
    pair = tmp_path / "t5"
    T5Model(T5Config(vocab_size=30, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)).save_pretrained(
        pair
    )
    word_tokenizer().save_pretrained(pair)
    with pytest.raises(BackboneError, match="is an encoder-decoder"):
        embed(TEXTS, pair)
    with pytest.raises(DataError, match="number 1, has no tokens"):
        embed(["yes", ""], save_backbone(tmp_path / "causal"))
    with pytest.raises(DataError, match="is not valid Unicode"):
        embed(["yes", "\ud800"], tmp_path / "causal")
    with pytest.raises(DataError, match="There are no texts"):
        embed([], bert)
    with pytest.raises(ConfigError, match="batch_size is 0"):
        embed(TEXTS, bert, batch_size=0)
    with pytest.raises(ConfigError, match="device='auto'"):
        embed(TEXTS, bert, device="auto")
    with pytest.raises(DataError, match="1 to 2 replies per prompt"):
        encoder_distance([["yes"], ["yes", "no"]], bert)
    with pytest.raises(DataError, match="no prompts"):
        encoder_distance([], bert)
    with pytest.raises(DataError, match="Each prompt has 1 reply"):
        encoder_distance([["yes"]], bert)


def test_it_is_shown_beside_the_best_of_n(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bara: Bara = make_bara(monkeypatch, capsys)
    rows = [
        {"id": str(prompt), "number": number, "reply": text, "score": 1.0}
        for prompt, own in enumerate(REPLIES)
        for number, text in enumerate(own)
    ]
    file = write_rows(tmp_path / "scores.jsonl", rows)
    found = bara("best-of-n", file, "--encoder", bert, "--json")
    assert found.code == 0, found.err
    expected = float(np.mean(encoder_distance(REPLIES, bert)))
    assert json.loads(found.out)["distance"] == pytest.approx(expected, abs=1e-6)
    assert f"{expected:.4f}" in bara("best-of-n", file, "--encoder", bert).out
    assert "distance" not in bara("best-of-n", file).out
    one = write_rows(tmp_path / "one.jsonl", rows[:1])
    assert_one_sentence(bara("best-of-n", one, "--encoder", bert), "one reply per prompt")
    assert_one_sentence(bara("best-of-n", file, "--encoder", tmp_path), "has no config.json")
