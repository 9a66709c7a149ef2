"""`bara reward score` as it is typed: files kept as they are, mistakes in a sentence."""

import json
import shutil
from pathlib import Path

import pytest
from app_cases import Bara, assert_one_sentence, write_rows
from safetensors.torch import load_file, save_file

from bara_pyro.extras.replies.reward import load_reward_model, score_replies
from bara_pyro.lm.verifying import fingerprint_of


def replies() -> list[dict]:
    return [
        {"id": "same", "prompt": "the fox is", "reply": " red", "model": "a", "n": 1},
        {"id": "same", "prompt": "the fox is", "completion": " good", "model": "b", "n": None},
        {"id": "other", "prompt": "the", "reply": "", "model": "b", "tags": ["x"]},
    ]


def test_score_keeps_every_column_and_adds_two(classifier: Path, tmp_path: Path, bara: Bara) -> None:
    judge = shutil.copytree(classifier, tmp_path / "judge")
    given = write_rows(tmp_path / "replies.jsonl", replies())
    before = given.read_bytes()
    out = tmp_path / "scores.jsonl"
    done = bara("reward", "score", judge, "--input", given, "--output", out)
    assert done.code == 0, done.err
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    expected = score_replies(
        load_reward_model(judge), [("the fox is", " red"), ("the fox is", " good"), ("the", "")]
    )
    assert [row.pop("score") for row in rows] == pytest.approx(expected.tolist(), rel=1e-5, abs=1e-6)
    weights = fingerprint_of(load_reward_model(judge).model.state_dict())
    assert [row.pop("judge") for row in rows] == [{"name": "judge", "weights": weights}] * 3
    assert rows == replies()
    assert given.read_bytes() == before
    assert "3 replies scored, written to" in done.out
    assert_one_sentence(bara("reward", "score", judge, "--input", given, "--output", out), "--overwrite")
    again = bara("reward", "score", judge, "--input", given, "--output", out, "--overwrite", "--json")
    assert json.loads(again.out) == {"output": str(out), "rows": 3}


def test_two_judges_of_one_name_are_two(classifier: Path, tmp_path: Path, bara: Bara) -> None:
    given = write_rows(tmp_path / "replies.jsonl", replies())
    told = []
    for place, moved in (("one", 0.0), ("two", 0.1)):
        folder = shutil.copytree(classifier, tmp_path / place / "judge")
        weights = folder / "model.safetensors"
        save_file({k: v + moved for k, v in load_file(weights).items()}, weights, {"format": "pt"})
        done = bara("reward", "score", folder, "--input", given, "--output", tmp_path / f"{place}.jsonl")
        assert done.code == 0, done.err
        told.append(json.loads((tmp_path / f"{place}.jsonl").read_text().splitlines()[0])["judge"])
    assert told[0]["name"] == told[1]["name"] == "judge"
    assert told[0] != told[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("score {lm} --input {single} --output {new}.jsonl", "which would be random"),
        ("score {classifier} --input {single} --output {new}.csv", "does not end in .jsonl"),
        ("score {classifier} --input {single} --output {single}", "the input"),
        ("score {classifier} --input {absent} --output {new}.jsonl", "There is no file"),
        ("score {classifier} --input {single} --output {pairs} --overwrite", "was not written by bara"),
        ("score {classifier} --input {pairs} --output {new}.jsonl", "There is no 'reply' in row 1"),
        ("score {classifier} --input {unasked} --output {new}.jsonl", "There is no 'prompt' in row 1"),
        ("score {classifier} --input {scored} --output {new}.jsonl", "a column 'score' in row 1"),
        ("score {classifier} --input {judged} --output {new}.jsonl", "a column 'judge' in row 1"),
    ],
)
def test_mistakes(arguments: str, said: str, lm: Path, classifier: Path, tmp_path: Path, bara: Bara) -> None:
    row = {"prompt": "the", "completion": " red hen", "chosen": " red"}
    files = {
        "single": row,
        "pairs": {"prompt": "the", "chosen": " red", "rejected": " blue"},
        "unasked": {"reply": "red"},
        "scored": {**row, "score": 1.0},
        "judged": {**row, "judge": "me"},
    }
    places = {name: write_rows(tmp_path / f"{name}.jsonl", [row]) for name, row in files.items()}
    places |= {name: tmp_path / name for name in ("new", "absent")}
    places |= {"lm": lm, "classifier": classifier}
    before = sorted(tmp_path.rglob("*"))
    result = bara("reward", *(word.format(**places) for word in arguments.split()))
    assert result.code == 2
    assert_one_sentence(result, said)
    assert sorted(tmp_path.rglob("*")) == before
