"""Rows that stay on the disk: the same conversations, divisions, tokens and batches; little memory."""

import json
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from data_cases import byte_level, word_level

from bara_pyro.data import stored
from bara_pyro.data.conversations import Conversation, ReplyEncoder, encode_replies, load_conversations
from bara_pyro.data.reading import RowsOnDisk
from bara_pyro.data.replies import ReplyBatch
from bara_pyro.data.reply_tasks import load_replies
from bara_pyro.data.split import training_batches
from bara_pyro.data.stored import StreamedReplies, stored_dataset, stored_file
from bara_pyro.errors import DataError

ASKED = {"role": "user", "content": "what is ä ?"}
TOLD = {"role": "assistant", "content": "two"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache" / "bara_pyro"


def write(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def plain(count: int) -> list[dict[str, Any]]:
    return [{"prompt": f"a b{' c' * (i % 7)}", "completion": f" d{' e' * (i % 5)}"} for i in range(count)]


def chats(count: int) -> list[dict[str, Any]]:
    return [
        {"id": 7 * i, "messages": [ASKED, TOLD] * (i % 3) + [{**ASKED, "turn": 3}, TOLD]}
        for i in range(count)
    ]


def mixed(count: int) -> list[dict[str, Any]]:
    """Rows of every format, with what one type a column would change: dates and numbers."""
    made: list[dict[str, Any]] = [
        {"prompt": "when", "completion": "2024-01-01"},
        {"messages": [ASKED, TOLD]},
        {"prompt": [ASKED], "completion": [TOLD]},
        {"instruction": "add", "input": "1 2", "output": "3"},
        {"question": "which", "answer": "NA"},
    ]
    ids = ({}, {"id": "007"}, {"id": 8}, {"id": 9.5})
    return [{**made[i % 5], **(ids[i] if i < 4 else {})} for i in range(count)]


@pytest.mark.parametrize("made", [plain, chats, mixed])
def test_the_same_conversations_in_the_same_parts(
    made: Callable[[int], list[dict[str, Any]]], tmp_path: Path
) -> None:
    path = write(tmp_path / "rows.jsonl", made(50))
    assert list(stored_file(path)) == load_conversations(path)
    assert list(stored_file(path)[10:20:3]) == load_conversations(path)[10:20:3]
    eager, lazy = (
        load_replies(str(path), validation_rows=7, seed=3, test_fraction=0.3, streaming=streaming)
        for streaming in (False, True)
    )
    for name in ("train", "validation", "test"):
        assert isinstance(getattr(lazy, name), RowsOnDisk)
        assert list(getattr(lazy, name)) == list(getattr(eager, name))
    assert [len(eager.train), len(eager.validation), len(eager.test)] == [28, 7, 15]
    assert lazy.notes == eager.notes
    others = write(tmp_path / "others.jsonl", [{"id": f"t{i}", **row} for i, row in enumerate(plain(5))])
    eager, lazy = (load_replies(str(path), test_file=others, streaming=way) for way in (False, True))
    assert (list(lazy.train), list(lazy.test)) == (list(eager.train), list(eager.test))


def test_half_a_character_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [*plain(3), {"prompt": "half \ud83d", "completion": "a"}])
    for streaming in (False, True):
        with pytest.raises(DataError, match=r"The text in 'prompt' of row 4 of .* is not valid Unicode"):
            load_replies(str(path), streaming=streaming)


def test_other_files_and_sets_of_the_hub(tmp_path: Path) -> None:
    import datasets
    import pandas as pd

    rows = [{**row, "id": f"{i:03d}"} for i, row in enumerate(plain(1100))]
    frame = pd.DataFrame(rows)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    frame.to_csv(tmp_path / "rows.tsv", index=False, sep="\t")
    frame.to_parquet(tmp_path / "rows.parquet")
    for name in ("rows.csv", "rows.tsv", "rows.parquet"):
        found = load_conversations(tmp_path / name)
        assert list(stored_file(tmp_path / name)) == found
        assert (found[3].id, len(found)) == ("003", 1100)
    told = chats(1100)
    folder = tmp_path / "gsm8k"
    folder.mkdir()
    for split in ("train", "test"):
        write(folder / f"{split}.jsonl", plain(30))
    eager, lazy = (
        load_replies("gsm8k", tmp_path, validation_rows=5, streaming=streaming) for streaming in (False, True)
    )
    for name in ("train", "validation", "test"):
        assert list(getattr(lazy, name)) == list(getattr(eager, name))
    dataset = datasets.Dataset.from_list(told)
    assert list(stored_dataset(dataset, "hub", "row")) == load_conversations(dataset)
    dataset.to_parquet(tmp_path / "hub.parquet")
    assert list(stored_file(tmp_path / "hub.parquet")) == load_conversations(dataset)


def test_the_copy_is_used_again_while_the_file_is_the_same(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "rows.jsonl", plain(5))
    first = stored_file(path)
    monkeypatch.setattr(stored, "write_rows", lambda *_: pytest.fail("written again"))
    assert list(stored_file(path)) == list(first)
    monkeypatch.undo()
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", cache.parent)
    write(path, plain(6))
    assert len(stored_file(path)) == 6
    assert len(first) == len(list(first)) == 5
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"prompt": "a", "answer": "b"}\n{"prompt": "a"}\n', "no reply to learn in row 2 of .*rows.jsonl"),
        ('{"prompt": "a", "answer": "b"}\n{"prompt":\n', "rows.jsonl, line 2 is not valid JSON.* column 11"),
        ('{"prompt": "a", "answer": "b"}\n\n[1]\n', "rows.jsonl, line 3 is not a JSON object"),
        (f"{json.dumps({'id': 1, 'prompt': 'a', 'answer': 'b'})}\n" * 3, "rows 1 and 2 share the id '1'"),
        ("\n", "rows.jsonl is empty"),
        (b"\n\xff\n", r"not UTF-8 text \(byte 1\)"),
    ],
)
def test_errors_are_those_of_rows_in_memory(
    text: str | bytes, said: str, tmp_path: Path, cache: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    for load in (load_conversations, stored_file):
        with pytest.raises(DataError, match=said):
            load(path)
    assert not list(cache.glob("*"))


def test_what_cannot_be_read_row_by_row(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "rows.json").write_text("[]")
    with pytest.raises(DataError, match=r"rows\.json is one list.*as \.jsonl"):
        stored_file(tmp_path / "rows.json")
    with pytest.raises(DataError, match="There is no file"):
        stored_file(tmp_path / "absent.jsonl")
    cache.parent.write_text("a file where the cache should be")
    with pytest.raises(DataError, match=r"Cannot write .*HF_DATASETS_CACHE"):
        stored_file(write(tmp_path / "rows.jsonl", plain(3)))


def same(one: ReplyBatch, other: ReplyBatch) -> bool:
    assert (one.ids, one.counts) == (other.ids, other.counts)
    names = ("input_ids", "attention_mask", "targets", "scored")
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in names)


@pytest.mark.parametrize("chat", [False, True])
def test_the_same_tokens(chat: bool, tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.chat_template = (
        "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }}<|end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<assistant> {% endif %}"
    )
    path = write(tmp_path / "rows.jsonl", chats(40) if chat else plain(40))
    told = load_conversations(path)
    limit = len(encode_replies(told[1:2], tokenizer, chat=chat).rows[0][0].prompt) + 2
    eager = encode_replies(told, tokenizer, limit, chat=chat)
    read: list[int] = []
    lazy = StreamedReplies(stored_file(path), ReplyEncoder(tokenizer, limit, chat), read.append)
    assert sum(read) == 40
    assert eager.dropped
    assert eager.shortened
    for name in ("ids", "fingerprint", "shortened", "dropped", "tokens", "pad_id"):
        assert getattr(lazy, name) == getattr(eager, name)
    for name in ("lengths", "counts"):
        assert list(getattr(lazy, name)) == getattr(eager, name)
    for step in range(5):
        rows = training_batches(len(eager), 6, seed=1, step=step)
        assert same(lazy.batch(rows), eager.batch(rows))


def test_fingerprints_tell_rows_apart() -> None:
    """Another token, id, order or packing is another fingerprint."""
    tokenizer = word_level(list("abcde"))
    rows = [Conversation("a b", "c", "1"), Conversation("a", "b c", "2")]
    others = [
        rows[::-1],
        rows[:1],
        [rows[0], Conversation("a", "b d", "2")],
        [rows[0], Conversation("a b", "c", "2")],
        [rows[0], Conversation("a", "b c", "3")],
    ]
    whole = encode_replies(rows, tokenizer)
    found = [encode_replies(each, tokenizer).fingerprint for each in others]
    assert len({whole.fingerprint, whole.packed(20).fingerprint, *found}) == 7


def peak(work: Callable[[], object]) -> int:
    """Bytes of Python's memory at the most, above those before."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_memory_does_not_hold_the_rows(tmp_path: Path) -> None:
    """Rows of 160 words: the eager path keeps texts and tokens, the other one a few numbers a row."""
    count, words = 3000, "a b c d " * 20
    tokenizer = word_level(list("abcd"))
    path = write(
        tmp_path / "rows.jsonl", [{"prompt": f"{words}{i}", "completion": f" {words}"} for i in range(count)]
    )
    some = range(0, count, 300)

    def eager() -> None:
        encode_replies(load_conversations(path), tokenizer).batch(some)

    def lazy() -> None:
        StreamedReplies(stored_file(path), ReplyEncoder(tokenizer)).batch(some)

    whole = peak(eager)
    assert peak(lazy) < whole / 4  # with the thousand rows at a time that the copy is written in
    assert peak(lazy) < whole / 20
