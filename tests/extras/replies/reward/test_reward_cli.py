"""`bara reward train` and `score` as they are typed: files kept as they are, mistakes in a sentence."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from app_cases import Bara, assert_one_sentence, write_rows
from reward_cases import planted, save_lm, write_pairs
from safetensors.torch import load_file, save_file

from bara_pyro.extras.replies.reward import load_reward_model, score_replies
from bara_pyro.lm.verifying import fingerprint_of

FAST = ("--max-length", 64, "--epochs", 1, "--lr", 0.01)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pairs(tmp_path_factory.mktemp("pairs") / "pairs.jsonl", planted(40))


@pytest.fixture
def judge(lm: Path, pairs: Path, tmp_path: Path, bara: Bara) -> Path:
    out = tmp_path / "judge"
    done = bara("reward", "train", "--model", lm, "--task", pairs, "--out", out, *FAST, "--quiet")
    assert done.code == 0, done.err
    return out


def replies() -> list[dict]:
    return [
        {"id": "same", "prompt": "the fox is", "reply": " red", "model": "a", "n": 1},
        {"id": "same", "prompt": "the fox is", "completion": " good", "model": "b", "n": None},
        {"id": "other", "prompt": "the", "reply": "", "model": "b", "tags": ["x"]},
    ]


def test_train_says_how_far_it_agrees_and_writes_a_folder(
    lm: Path, pairs: Path, tmp_path: Path, bara: Bara
) -> None:
    out = tmp_path / "judge"
    done = bara("reward", "train", "--model", lm, "--task", pairs, "--out", out, *FAST, "--head-only")
    assert done.code == 0, done.err
    record = json.loads((out / "reward.json").read_text())
    assert (
        f"{record['held_out']['accuracy']:.1f} % of {record['held_out']['pairs']} held-out preferences"
        in done.out
    )
    assert "always choosing the longer reply:" in done.out
    assert record["config"]["head_only"]
    refused = bara("reward", "train", "--model", lm, "--task", pairs, "--out", out, *FAST)
    assert_one_sentence(refused, "already holds results", "--overwrite")
    again = bara(
        "reward", "train", "--model", lm, "--task", pairs, "--out", out, *FAST, "--overwrite", "--json"
    )
    assert again.code == 0, again.err
    said = json.loads(again.out)
    assert said == {"out": str(out), **json.loads((out / "reward.json").read_text())}
    assert not said["config"]["head_only"]


def test_score_keeps_every_column_and_adds_one(judge: Path, tmp_path: Path, bara: Bara) -> None:
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
    told = json.loads((judge / "reward.json").read_text())["held_out"]
    kept = ("accuracy", "low", "high", "level", "pairs", "longer_chosen")
    expected_judge = {"name": "judge", **{name: told[name] for name in kept}}
    weights = fingerprint_of(load_reward_model(judge).model.state_dict())
    assert [row.pop("judge") for row in rows] == [{**expected_judge, "weights": weights}] * 3
    assert rows == replies()
    assert given.read_bytes() == before
    assert "3 replies scored, written to" in done.out
    assert "held-out preferences" in done.out
    assert_one_sentence(bara("reward", "score", judge, "--input", given, "--output", out), "--overwrite")
    again = bara("reward", "score", judge, "--input", given, "--output", out, "--overwrite", "--json")
    said = json.loads(again.out)
    assert said["held_out"]["pairs"] == 8
    assert said["rows"] == 3


def test_a_judge_from_elsewhere_says_that_nothing_is_known(
    classifier: Path, tmp_path: Path, bara: Bara
) -> None:
    given = write_rows(tmp_path / "replies.jsonl", replies())
    done = bara("reward", "score", classifier, "--input", given, "--output", tmp_path / "s.jsonl")
    assert done.code == 0, done.err
    assert "is unknown: it has no reward.json" in done.out
    rows = [json.loads(line) for line in (tmp_path / "s.jsonl").read_text().splitlines()]
    assert len({row["judge"].pop("weights") for row in rows}) == 1
    assert [row["judge"] for row in rows] == [{"name": classifier.name}] * 3


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
        ("train --model {lm} --task {pairs} --out {lm}", "the input"),
        ("train --model {lm} --task {pairs} --out {full}", "was not written by bara"),
        ("train --model {lm} --task {absent}.jsonl --out {new}", "There is no file"),
        ("train --model {lm} --task {single} --out {new}", "no 'rejected' in row 1"),
        ("train --model {lm} --task {pairs} --out {new} --max-length 64 --lr 0", "lr is 0.0"),
        ("train --model {lm} --task {pairs} --out {new} --epochs 0", "--epochs"),
        ("train --model {absent} --task {pairs} --out {new}", "Cannot load"),
        ("train --model {lm} --out {new}", "--task"),
        ("score {lm} --input {single} --output {new}.jsonl", "which would be random"),
        ("score {classifier} --input {single} --output {new}.csv", "does not end in .jsonl"),
        ("score {classifier} --input {single} --output {single}", "the input"),
        ("score {classifier} --input {single} --output {pairs} --overwrite", "was not written by bara"),
        ("score {classifier} --input {pairs} --output {new}.jsonl", "There is no 'reply' in row 1"),
        ("score {classifier} --input {unasked} --output {new}.jsonl", "There is no 'prompt' in row 1"),
        ("score {classifier} --input {scored} --output {new}.jsonl", "a column 'score' in row 1"),
        ("score {classifier} --input {judged} --output {new}.jsonl", "a column 'judge' in row 1"),
    ],
)
def test_mistakes(
    arguments: str, said: str, lm: Path, pairs: Path, classifier: Path, tmp_path: Path, bara: Bara
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    row = {"prompt": "the", "completion": " red hen", "chosen": " red"}
    files = {
        "single": row,
        "unasked": {"reply": "red"},
        "scored": {**row, "score": 1.0},
        "judged": {**row, "judge": "me"},
    }
    places = {name: write_rows(tmp_path / f"{name}.jsonl", [row]) for name, row in files.items()}
    places |= {name: tmp_path / name for name in ("full", "new", "absent")}
    places |= {"lm": lm, "pairs": pairs, "classifier": classifier}
    before = sorted(tmp_path.rglob("*"))
    result = bara("reward", *(word.format(**places) for word in arguments.split()))
    assert result.code == 2
    assert_one_sentence(result, said)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
def test_ctrl_c_is_a_line_and_leaves_nothing(tmp_path: Path) -> None:
    """Pressed at a moment that is exact: the process sends itself the signal in the third step."""
    lm, pairs = save_lm(tmp_path / "lm"), write_pairs(tmp_path / "pairs.jsonl", planted(200))
    out = tmp_path / "judge"
    code = (
        "import itertools, signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import bara_pyro.extras.replies.reward.fitting as fitting\n"
        "steps, fit = itertools.count(1), fitting._backward\n"
        "def third(*given):\n"
        "    if next(steps) == 3: signal.raise_signal(signal.SIGINT)\n"
        "    return fit(*given)\n"
        "fitting._backward = third\n"
        "from bara_pyro.cli import app\napp.main()"
    )
    command = ["reward", "train", "--model", lm, "--task", pairs, "--out", out, "--max-length", 64]
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, command)], check=False, capture_output=True, text=True
    )
    said = done.stderr
    assert done.returncode == 130, said
    lines = [line for line in said.splitlines() if line.startswith("Stopped")]
    assert lines == [f"Stopped: nothing was written to {out}."]
    assert "Traceback" not in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lm", "pairs.jsonl"]
