"""Programs that a run writes: judged once, scored as the paper scores them, from the command line."""

import json
from dataclasses import replace
from math import comb
from pathlib import Path
from typing import Any

import pytest
from app_cases import Place, assert_one_sentence, make_bara, questions, save_backbone, write_rows

from bara_pyro.errors import DataError, SandboxError
from bara_pyro.extras.replies.diversity import self_bleu_diversity
from bara_pyro.extras.replies.generation import humaneval
from bara_pyro.extras.replies.generation.decoding import Decoding
from bara_pyro.extras.replies.generation.humaneval import judge_programs, score_programs, write_programs
from bara_pyro.extras.replies.sandbox import Problem, check_isolation
from bara_pyro.runs.system import build_system
from bara_pyro.runs.train import train
from bara_pyro.untrusted.files import read_json, read_jsonl

RIGHT, WRONG = "    return x + x\n", "    return x\n"
PASSED = {"one": (1, 0, 0, 1, 0), "two": (0, 0, 0, 0, 1), "none": (0,) * 5}


@pytest.fixture(autouse=True)
def isolated() -> None:
    try:
        check_isolation()
    except SandboxError as error:
        pytest.skip(str(error))


def problem(name: str) -> Problem:
    test = "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(3) == 6\n"
    prompt = 'def double(x):\n    """Return twice x."""\n'
    return Problem(name, prompt, "double", test, RIGHT)


PROBLEMS = [problem(name) for name in PASSED]


def programs(made: str = "here") -> list[dict[str, Any]]:
    return [
        {
            "id": name,
            "number": n,
            "reply": RIGHT if right else WRONG,
            "made": made,
            "tokens": 4,
            "log_prob": -2.0,
        }
        for name, own in PASSED.items()
        for n, right in enumerate(own)
    ]


def test_what_is_judged_is_judged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = judge_programs(PROBLEMS, programs()[:7], tmp_path)
    assert len(first) == 7
    seen: list[int] = []
    found = judge_programs(PROBLEMS, programs(), tmp_path, on_program=lambda: seen.append(1))
    assert len(seen) == 8
    assert {(row["id"], row["number"]): row["passed"] for row in found} == {
        (name, n): bool(right) for name, own in PASSED.items() for n, right in enumerate(own)
    }
    assert read_jsonl(tmp_path / "judged.jsonl") == found

    left: list[tuple[str, str]] = []
    monkeypatch.setattr(humaneval, "judge", lambda problems, rows, **_: iter(left.extend(rows) or ()))
    judge_programs(PROBLEMS, programs(), tmp_path)
    assert not left
    fewer = [row for row in programs() if row["number"] < 2]
    assert len(judge_programs(PROBLEMS[:1], [row for row in fewer if row["id"] == "one"], tmp_path)) == 2
    assert read_jsonl(tmp_path / "judged.jsonl") == found  # of the others nothing is lost
    judge_programs(PROBLEMS, programs("otherwise"), tmp_path)
    assert len(left) == 15


def test_another_test_judges_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge_programs(PROBLEMS, programs(), tmp_path)
    left: list[tuple[str, str]] = []
    monkeypatch.setattr(humaneval, "judge", lambda problems, rows, **_: iter(left.extend(rows) or ()))
    stricter = replace(PROBLEMS[0], test=PROBLEMS[0].test + "    assert candidate(0) == 1\n")
    judge_programs([stricter, *PROBLEMS[1:]], programs(), tmp_path)
    assert [name for name, _ in left] == [stricter.task_id] * 5


def test_scores_are_those_of_the_paper(tmp_path: Path) -> None:
    judged = [
        {"id": row["id"], "number": row["number"], "passed": row["reply"] == RIGHT, "reason": "wrong"}
        for row in programs()
    ]
    curve, report = score_programs(programs(), judged, tmp_path)
    for k in range(1, 6):
        each = [1 - comb(5 - sum(own), k) / comb(5, k) for own in PASSED.values()]
        assert curve.mean[k - 1] == pytest.approx(100 * sum(each) / 3)
        assert report["pass_at_k"][str(k)]["value"] == pytest.approx(100 * sum(each) / 3)
    assert report["entropy"] == pytest.approx(0.5)
    texts = [[RIGHT if right else WRONG for right in own] for own in PASSED.values()]
    assert report["diversity"] == pytest.approx(self_bleu_diversity(texts).mean)
    assert report["signature"] == self_bleu_diversity(texts).signature
    # "return x + x" and "return x": four words, or fewer, and their pairs.
    assert report["distinct"][0] == pytest.approx(100 * (3 / 14 + 3 / 12 + 2 / 10) / 3)
    assert (report["problems"], report["replies"], report["tokens"]) == (3, 5, 4)
    assert read_json(tmp_path / "humaneval.json") == json.loads(json.dumps(report))


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bara = make_bara(monkeypatch, capsys)
    rows = write_rows(
        tmp_path / "rows.jsonl", [{"prompt": r["question"], "completion": " yes"} for r in questions()]
    )
    place = Place(save_backbone(tmp_path / "lm"), rows)
    system = build_system(place.config(task__likelihood="completion", train__steps=1))
    train(system, tmp_path / "run")
    file = tmp_path / "problems.jsonl"
    file.write_text("".join(json.dumps(vars(one)) + "\n" for one in PROBLEMS))
    out = tmp_path / "out"
    command = ("humaneval", tmp_path / "run", "--problems", file, "--out", out, "--replies", 2)
    one = write_rows(tmp_path / "one.jsonl", [vars(PROBLEMS[0])])
    refused = bara("humaneval", tmp_path / "run", "--problems", one, "--out", out, "--replies", 2)
    assert_one_sentence(refused, "number of problems is 1", "give at least 2")
    assert not (out / "programs.jsonl").exists()
    found = bara(*command, "--max-new-tokens", 6)
    assert found.code == 0, found.err
    assert "pass@k" in found.out
    assert "--draws mean" in found.out.splitlines()[-1]
    assert "Entropy per token: " in found.out
    assert "100 - Self-BLEU of the first 2 replies: " in found.out
    assert {path.name for path in out.iterdir()} >= {"programs.jsonl", "judged.jsonl", "humaneval.json"}
    before = (out / "programs.jsonl").read_text(), (out / "judged.jsonl").read_text()
    assert bara(*command, "--max-new-tokens", 6, "--resume").code == 0
    assert ((out / "programs.jsonl").read_text(), (out / "judged.jsonl").read_text()) == before
    refused = bara(*command, "--max-new-tokens", 5, "--resume")
    assert "with other settings" in refused.err
    changed = [replace(one, prompt=one.prompt.replace("twice", "2 x is")) for one in PROBLEMS]
    file.write_text("".join(json.dumps(vars(one)) + "\n" for one in changed))
    refused = bara(*command, "--max-new-tokens", 6, "--resume")
    assert_one_sentence(refused, "another prompt under the id 'one'", "--overwrite")
    assert ((out / "programs.jsonl").read_text(), (out / "judged.jsonl").read_text()) == before
    assert "already holds results" in bara(*command).err


def test_one_problem_is_refused_before_a_run_is_asked(tmp_path: Path) -> None:
    for problems in ([], [PROBLEMS[0]]):
        with pytest.raises(DataError, match=f"number of problems is {len(problems)}, too few"):
            write_programs(object(), problems, tmp_path, Decoding(), replies=2)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
