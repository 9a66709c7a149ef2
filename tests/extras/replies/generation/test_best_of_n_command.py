"""`bara best-of-n`: its figures by a loop over all choices of n replies."""

import json
from itertools import combinations
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from app_cases import Bara, assert_one_sentence, make_bara, write_rows

from bara_pyro.errors import DataError
from bara_pyro.extras.replies.generation.scored import read_scored
from bara_pyro.extras.replies.reward.files import replies_in

SCORES = {"a": (1.0, 3.0, 2.0), "b": (0.5, 0.5, 4.0), "c": (2.0, 1.0, 1.0)}
REFERENCES = {"a": 2.0, "b": 1.0, "c": 2.5}


@pytest.fixture
def bara(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Bara:
    return make_bara(monkeypatch, capsys)


def rows() -> list[dict[str, object]]:
    return [
        {"id": name, "number": n, "reply": f"word {n} of {name} here", "score": score}
        for name, own in SCORES.items()
        for n, score in enumerate(own)
    ]


def test_the_best_of_all_choices(tmp_path: Path, bara: Bara) -> None:
    file = write_rows(tmp_path / "scores.jsonl", rows()[::-1])
    others = [{"id": name, "completion": "x", "score": score} for name, score in REFERENCES.items()]
    references = write_rows(tmp_path / "references.jsonl", others)
    found = bara("best-of-n", file, "--references", references, "--json")
    assert found.code == 0, found.err
    report = json.loads(found.out)
    assert [row["n"] for row in report["curve"]] == [1, 2, 3]
    for row in report["curve"]:
        best = {name: [max(some) for some in combinations(own, row["n"])] for name, own in SCORES.items()}
        assert row["score"] == pytest.approx(mean(mean(own) for own in best.values()))
        wins = [
            mean((value > REFERENCES[name]) + 0.5 * (value == REFERENCES[name]) for value in own)
            for name, own in best.items()
        ]
        assert row["wins"] == pytest.approx(100 * mean(wins))
    assert 0 < report["diversity"] < 100
    assert "nrefs:2" in report["signature"]
    assert report["judge"] is None
    shown = bara("best-of-n", file)
    assert "best score" in shown.out
    assert "wins" not in shown.out
    assert "Judge" not in shown.out


def test_references_go_by_what_was_asked_too(tmp_path: Path, bara: Bara) -> None:
    """Rows without ids go by their place, where another order of the file would give each a wrong rival."""
    asked = {"a": "is it red ?", "b": "is it blue ?", "c": "who is it ?"}
    told = [{**row, "prompt": f"<user> {asked[str(row['id'])]} <assistant>"} for row in rows()]
    file = write_rows(tmp_path / "scores.jsonl", told)
    others = [
        {"id": name, "instruction": asked[name], "output": "x", "score": score}
        for name, score in REFERENCES.items()
    ]
    same = bara("best-of-n", file, "--references", write_rows(tmp_path / "same.jsonl", others))
    assert same.code == 0, same.err
    mixed = [{**row, "id": name} for row, name in zip(others, ("b", "a", "c"), strict=True)]
    refused = bara("best-of-n", file, "--references", write_rows(tmp_path / "mixed.jsonl", mixed))
    assert_one_sentence(refused, "The reference 'a' of", "replies to 'is it blue ?'", "is it red ?")


def test_scores_of_two_judges_are_refused(tmp_path: Path, bara: Bara) -> None:
    """A judge is its name and its weights; scores files of earlier versions also hold its accuracy."""
    judge = {"name": "mine", "weights": "ab"}
    earlier = {**judge, "accuracy": 61.25, "low": 56.4, "high": 65.9, "level": 0.95, "pairs": 400}
    file = write_rows(tmp_path / "scores.jsonl", [{**row, "judge": judge} for row in rows()])
    others = [{"id": name, "reply": "x", "score": score} for name, score in REFERENCES.items()]
    judged = write_rows(tmp_path / "judged.jsonl", [{**row, "judge": earlier} for row in others])
    shown = bara("best-of-n", file, "--references", judged)
    assert shown.code == 0, shown.err
    assert "Judge: mine" in shown.out
    report = json.loads(bara("best-of-n", file, "--references", judged, "--json").out)
    assert report["judge"] == judge
    for other in (None, "mine", {"name": "mine", "weights": "cd"}, {"name": "other", "weights": "ab"}):
        elsewhere = write_rows(tmp_path / "others.jsonl", [{**row, "judge": other} for row in others])
        refused = bara("best-of-n", file, "--references", elsewhere)
        assert_one_sentence(refused, "was scored by another judge than the replies")
        mixed = [{**row, "judge": judge if row["id"] == "a" else other} for row in rows()]
        refused = bara("best-of-n", write_rows(tmp_path / "mixed.jsonl", mixed))
        assert_one_sentence(refused, "row 4 was scored by another judge")


def test_the_entropy_of_a_token_is_a_mean_over_tokens(tmp_path: Path, bara: Bara) -> None:
    """Not over replies, which differ in length; of the mixture where the rows have it."""
    lengths = [2, 5, 1, 4, 3, 3, 7, 1, 2]
    log_probs = [[-0.1 * (i + j + 1) for j in range(length)] for i, length in enumerate(lengths)]
    plain = [
        {**row, "tokens": len(own), "log_prob": sum(own)} for row, own in zip(rows(), log_probs, strict=True)
    ]
    shown = bara("best-of-n", write_rows(tmp_path / "plain.jsonl", plain))
    report = json.loads(bara("best-of-n", tmp_path / "plain.jsonl", "--json").out)
    every = [-value for own in log_probs for value in own]
    assert report["entropy"] == pytest.approx(mean(every))
    assert report["entropy"] != pytest.approx(mean(mean(own) for own in log_probs), abs=0.01)
    assert f"Entropy per token: {mean(every):.3f} nats" in " ".join(shown.out.split())
    assert "mixture" not in shown.out
    assert "total" not in report

    told = [{**row, "total": [2.0] * row["tokens"], "epistemic": [0.5] * row["tokens"]} for row in plain]
    told[0] |= {"total": [1.0, 1.0], "epistemic": [0.0, 0.1]}
    report = json.loads(bara("best-of-n", write_rows(tmp_path / "told.jsonl", told), "--json").out)
    assert report["total"] == pytest.approx((2 * 1.0 + 26 * 2.0) / 28)
    assert report["epistemic"] == pytest.approx((0.1 + 26 * 0.5) / 28)
    without = json.loads(bara("best-of-n", write_rows(tmp_path / "x.jsonl", rows()), "--json").out)
    assert "entropy" not in without


def test_what_is_refused(tmp_path: Path, bara: Bara) -> None:
    file = write_rows(tmp_path / "scores.jsonl", rows())
    few = write_rows(tmp_path / "few.jsonl", rows()[:-1])
    assert_one_sentence(bara("best-of-n", few), "2 replies to 'c' and 3 to the first prompt")
    bare, odd = ([{"id": "a", **more}] for more in ({}, {"score": "high"}))
    without = write_rows(tmp_path / "replies.jsonl", bare)
    said = f"row 1 has no score: run `bara reward score JUDGE --input {without} "
    assert_one_sentence(bara("best-of-n", without), said)
    assert_one_sentence(bara("best-of-n", write_rows(tmp_path / "x.jsonl", odd)), "'high' as its score")
    assert_one_sentence(
        bara("best-of-n", write_rows(tmp_path / "y.jsonl", rows()[:1] * 2)), "repeats reply 0"
    )
    assert_one_sentence(bara("best-of-n", file, "--references", file), "3 references for the prompt 'a'")
    one = write_rows(tmp_path / "one.jsonl", [{"id": "a", "score": 1.0}])
    assert_one_sentence(bara("best-of-n", file, "--references", one), "no references for the prompt 'b'")
    assert_one_sentence(bara("best-of-n", tmp_path / "absent.jsonl"), "no file")


def judged(**more: object) -> list[dict[str, Any]]:
    return [
        {"id": f"q{i}", "number": n, "instruction": f"ask {i}", **more, "output": f"say {n} of {i} now"}
        for i in range(2)
        for n in range(2)
    ]


@pytest.mark.parametrize("more", [{}, {"reply": None}, {"reply": None, "completion": None}])
def test_a_scored_reply_is_the_one_that_was_judged(more: dict, tmp_path: Path, bara: Bara) -> None:
    texts = [one.reply for one in replies_in([{**row, "id": None} for row in judged(**more)])[1]]
    scored = [{**row, "score": 1.0 * row["number"]} for row in judged(**more)]
    file = write_rows(tmp_path / "scores.jsonl", scored)
    assert [text for own in read_scored(file).replies for text in own] == texts
    named = write_rows(
        tmp_path / "named.jsonl",
        [{**row, "reply": text} for row, text in zip(scored, texts, strict=True)],
    )
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
def test_a_scored_row_without_a_reply_is_named(more: dict, words: str, tmp_path: Path, bara: Bara) -> None:
    rows = [{**row, "score": 1.0} for row in judged()]
    rows[2] |= more
    file = write_rows(tmp_path / "scores.jsonl", rows)
    assert_one_sentence(bara("best-of-n", file), words)


def test_an_empty_reply_is_one(tmp_path: Path) -> None:
    rows = [{**row, "reply": "", "score": 1.0} for row in judged()]
    assert read_scored(write_rows(tmp_path / "scores.jsonl", rows)).replies == (("", ""), ("", ""))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("number", None), ("number", [1]), ("number", True), ("number", 1.5), ("score", float("nan")),
        ("score", float("inf")), ("log_prob", "a"), ("tokens", []), ("total", 1.0), ("epistemic", ["a"]),
    ],
)  # fmt: skip
def test_numbers_that_are_none_are_refused(name: str, value: object, tmp_path: Path) -> None:
    rows = [{**row, "score": 1.0} for row in judged()]
    file = write_rows(tmp_path / "scores.jsonl", [rows[0], {**rows[1], name: value}, *rows[2:]])
    with pytest.raises(DataError, match=rf"row 2 has .* as its '?{name}"):
        read_scored(file)
