"""What a reading of the layer of replies found: turns, texts and time that went lost without a word."""

import json
from pathlib import Path
from typing import Any

import pytest
from app_cases import (
    Place,
    assert_one_sentence,
    make_bara,
    questions,
    save_backbone,
    word_tokenizer,
    write_rows,
)

from bara_pyro.data.conversations import encode_replies, load_conversations
from bara_pyro.data.preferences import load_pairs
from bara_pyro.errors import DataError, SandboxError
from bara_pyro.extras.replies.generation import humaneval
from bara_pyro.extras.replies.generation.decoding import Decoding
from bara_pyro.extras.replies.generation.humaneval import write_programs
from bara_pyro.extras.replies.generation.scored import read_scored
from bara_pyro.extras.replies.reward.files import replies_in
from bara_pyro.extras.replies.sandbox import Problem, check_isolation
from bara_pyro.runs.system import build_system
from bara_pyro.runs.train import train

TEMPLATE = (
    "{% for m in messages %} the {{ m['role'] }} {{ m['content'] }} <end>{% endfor %}"
    "{% if add_generation_prompt %} the assistant {% endif %}"
)


def said(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


Q1, A1, Q2, A2 = (
    said("user", "is the fox red ?"),
    said("assistant", "yes"),
    said("user", "is the hen blue ?"),
    said("assistant", "no"),
)
B2, NEW = said("assistant", "yes"), said("user", "is the owl grey ?")
BE, CALL, TOOL = said("system", "no cat"), said("assistant", "the ant"), said("tool", "red")
TALK = [Q1, A1, Q2, A2]


@pytest.mark.parametrize(
    ("row", "whole"),
    [
        ({"prompt": Q1["content"], "chosen": TALK}, TALK),
        ({"prompt": "is the fox red ?\n", "chosen": TALK}, [said("user", "is the fox red ?\n"), A1, Q2, A2]),
        ({"question": Q1["content"], "chosen": [A1, Q2, A2]}, TALK),
        ({"instruction": "is the fox", "input": "red ?", "output": [A1, Q2, A2]},
         [said("user", "is the fox\nred ?"), A1, Q2, A2]),
        ({"prompt": [Q1], "completion": TALK}, TALK),
        ({"prompt": [Q1, A1, Q2], "completion": TALK}, TALK),
        ({"prompt": [Q1, A1], "completion": [Q2, A2]}, TALK),
        ({"prompt": [Q1], "completion": [A1, Q2, A2]}, TALK),
        ({"prompt": [Q1], "completion": [CALL, TOOL, A1]}, [Q1, CALL, TOOL, A1]),
        ({"prompt": [BE, Q1], "completion": TALK}, [BE, *TALK]),
        ({"prompt": [BE, Q1], "completion": [BE, *TALK]}, [BE, *TALK]),
        ({"prompt": Q1["content"], "completion": [BE, *TALK]}, [BE, *TALK]),
        ({"prompt": [BE], "completion": TALK}, [BE, *TALK]),
        ({"prompt": [Q1], "completion": [A1]}, [Q1, A1]),
        ({"prompt": Q1["content"], "completion": [Q1, A1]}, [Q1, A1]),
    ],
)  # fmt: skip
def test_every_turn_is_read_once(row: dict, whole: list) -> None:
    """Prompt and reply together are what a chat template makes of the conversation."""
    tokenizer = word_tokenizer()
    tokenizer.chat_template = TEMPLATE
    [found] = load_conversations([row])
    assert [*found.prompt, said("assistant", found.reply)] == whole
    [[encoded]] = encode_replies([found], tokenizer).rows
    text = tokenizer.apply_chat_template(whole, tokenize=False)
    assert [*encoded.prompt, *encoded.reply] == tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(encoded.reply) == f"{whole[-1]['content']} <end>"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": [Q1], "completion": [Q2]}, "The last of 1 messages of row 1 .* is the user's"),
        ({"prompt": "is the fox red ?", "chosen": [Q1, A1, Q2]}, "The last of 3 messages .* is the user's"),
        ({"prompt": [Q1], "completion": [CALL, TOOL]}, "The last of 2 messages .* is the tool's"),
        ({"prompt": "is the fox red ?", "chosen": [NEW, A1]}, "begin with the user's 'is the owl grey"),
        ({"prompt": Q2["content"], "chosen": TALK}, "begin with the user's 'is the fox red"),
        ({"question": Q2["content"], "chosen": [BE, *TALK]}, "not what 'question' says: leave 'question'"),
        ({"prompt": [said("system", "red"), Q1], "completion": [BE, *TALK]}, "begin with the system's 'no"),
    ],
)
def test_messages_that_are_no_reply_to_the_prompt(row: dict, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        load_conversations([row])
    assert str(caught.value).count(". ") == 0


def test_pairs_with_a_prompt_are_those_without() -> None:
    pair = {"chosen": TALK, "rejected": [Q1, A1, Q2, B2]}
    for prompt in (Q1["content"], [Q1], [Q1, A1], [Q1, A1, Q2]):
        assert load_pairs([{"prompt": prompt, **pair}]) == load_pairs([pair])
    [found] = load_pairs([{"prompt": [Q1], "chosen": TALK[1:], "rejected": [A1, Q2, B2]}])
    assert (found.prompt, found.chosen, found.rejected) == ((Q1, A1, Q2), "no", "yes")


@pytest.mark.parametrize("rejected", [[Q1, A1, NEW, B2], [Q1, B2], [Q1, A2, Q2, B2], "yes"])
def test_replies_after_different_turns_are_no_pair(rejected: object) -> None:
    with pytest.raises(DataError, match=r"The replies of row 1 of .* answer different prompts"):
        load_pairs([{"prompt": Q1["content"], "chosen": TALK, "rejected": rejected}])


def test_a_side_that_ends_with_a_question_is_no_reply() -> None:
    with pytest.raises(DataError, match=r"'rejected' as its reply\) is the user's"):
        load_pairs([{"prompt": Q1["content"], "chosen": TALK, "rejected": [Q1, A1, Q2]}])


def replies(**more: object) -> list[dict[str, Any]]:
    return [
        {"id": f"q{i}", "number": n, "instruction": f"ask {i}", **more, "output": f"say {n} of {i} now"}
        for i in range(2)
        for n in range(2)
    ]


@pytest.mark.parametrize("more", [{}, {"reply": None}, {"reply": None, "completion": None}])
def test_a_scored_reply_is_the_one_that_was_judged(
    more: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    judged = [one.reply for one in replies_in([{**row, "id": None} for row in replies(**more)])[1]]
    scored = [{**row, "score": 1.0 * row["number"]} for row in replies(**more)]
    file = write_rows(tmp_path / "scores.jsonl", scored)
    assert [text for own in read_scored(file).replies for text in own] == judged
    named = write_rows(
        tmp_path / "named.jsonl",
        [{**row, "reply": text} for row, text in zip(scored, judged, strict=True)],
    )
    bara = make_bara(monkeypatch, capsys)
    reports = [json.loads(bara("best-of-n", path, "--json").out) for path in (file, named)]
    assert reports[0] == reports[1]
    assert reports[0]["diversity"] > 0


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"output": None}, "row 3 has no reply: give a text in 'reply', 'completion' or 'output'"),
        ({"output": None, "answer": "a"}, "row 3 has no reply"),
        ({"output": 5}, "row 3 has '5' as its 'output': give a text"),
    ],
)
def test_a_scored_row_without_a_reply_is_named(
    more: dict,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [{**row, "score": 1.0} for row in replies()]
    rows[2] |= more
    file = write_rows(tmp_path / "scores.jsonl", rows)
    assert_one_sentence(make_bara(monkeypatch, capsys)("best-of-n", file), words)


def test_an_empty_reply_is_one(tmp_path: Path) -> None:
    rows = [{**row, "reply": "", "score": 1.0} for row in replies()]
    assert read_scored(write_rows(tmp_path / "scores.jsonl", rows)).replies == (("", ""), ("", ""))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("number", None), ("number", [1]), ("number", True), ("number", 1.5), ("score", float("nan")),
        ("score", float("inf")), ("log_prob", "a"), ("tokens", []), ("total", 1.0), ("epistemic", ["a"]),
    ],
)  # fmt: skip
def test_numbers_that_are_none_are_refused(name: str, value: object, tmp_path: Path) -> None:
    rows = [{**row, "score": 1.0} for row in replies()]
    file = write_rows(tmp_path / "scores.jsonl", [rows[0], {**rows[1], name: value}, *rows[2:]])
    with pytest.raises(DataError, match=rf"row 2 has .* as its '?{name}"):
        read_scored(file)


ONE = Problem("one", "def double(x):\n", "double", "def check(c): assert c(2) == 4", "    return 2 * x\n")


def test_one_problem_is_refused_before_a_run_is_asked(tmp_path: Path) -> None:
    for problems in ([], [ONE]):
        with pytest.raises(DataError, match=f"over problems, of which there is {len(problems)}: give at"):
            write_programs(object(), problems, tmp_path, Decoding(), replies=2)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_the_command_refuses_one_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        check_isolation()
    except SandboxError as error:
        pytest.skip(str(error))
    bara = make_bara(monkeypatch, capsys)
    told = [{"prompt": row["question"], "completion": " yes"} for row in questions()]
    place = Place(save_backbone(tmp_path / "lm"), write_rows(tmp_path / "rows.jsonl", told))
    train(build_system(place.config(task__likelihood="completion", train__steps=1)), tmp_path / "run")
    monkeypatch.setattr(humaneval, "reply_lines", lambda *_, **__: pytest.fail("a program was written"))
    file, out = write_rows(tmp_path / "one.jsonl", [vars(ONE)]), tmp_path / "out"
    found = bara("humaneval", tmp_path / "run", "--problems", file, "--out", out, "--replies", 2)
    assert_one_sentence(found, "over problems, of which there is 1: give at least 2")
    assert not (out / "programs.jsonl").exists()
