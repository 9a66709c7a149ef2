"""From AlpacaEval's file to a win rate: three commands, the win rate by a loop."""

import json
from pathlib import Path

import pytest
from app_cases import Bara, Place, assert_one_sentence, questions, save_backbone, write_rows
from reward_cases import save_classifier

from bara_pyro.extras.replies.reward import load_reward_model, score_replies
from bara_pyro.runs.system import build_system
from bara_pyro.runs.train import train
from bara_pyro.untrusted.files import read_jsonl

ASKED = ("is the fox red ?", "is the hen", "is the cat blue ?", "the owl is")
ANSWERS = ("yes", "red", "no no", "the owl is grey")


def alpaca_eval() -> list[dict[str, str]]:
    """Rows as the authors have them: no identifiers, columns besides; one of Alpaca's own with an input."""
    rows = [
        {"dataset": "helpful_base", "instruction": asked, "output": answer, "generator": "text_davinci_003"}
        for asked, answer in zip(ASKED, ANSWERS, strict=True)
    ]
    rows[1]["input"] = "blue ?"
    return rows


@pytest.fixture
def run(tmp_path: Path) -> Path:
    told = [{"prompt": row["question"], "completion": f" {row['answer']}"} for row in questions()]
    place = Place(save_backbone(tmp_path / "lm"), write_rows(tmp_path / "rows.jsonl", told))
    train(build_system(place.config(task__likelihood="completion", train__steps=1)), tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("ending", ["json", "jsonl"])
def test_three_commands_to_a_win_rate(ending: str, run: Path, tmp_path: Path, bara: Bara) -> None:
    judge = save_classifier(tmp_path / "judge", template=True)
    file = tmp_path / f"alpaca_eval.{ending}"
    if ending == "json":
        file.write_text(json.dumps(alpaca_eval()))
    else:
        write_rows(file, alpaca_eval())
    replies, scores, references = (tmp_path / f"{name}.jsonl" for name in ("replies", "scores", "references"))
    for command in (
        ("generate", run, "--input", file, "--output", replies, "--replies", 3, "--max-new-tokens", 4),
        ("reward", "score", judge, "--input", replies, "--output", scores),
        ("reward", "score", judge, "--input", file, "--output", references),
    ):
        done = bara(*command)
        assert done.code == 0, done.err
    shown = bara("best-of-n", scores, "--references", references, "--json")
    assert shown.code == 0, shown.err

    kept = read_jsonl(references)
    assert [{k: v for k, v in row.items() if k not in ("score", "judge")} for row in kept] == alpaca_eval()
    asked = [*ASKED]
    asked[1] += "\nblue ?"
    reward = load_reward_model(judge)
    theirs = score_replies(reward, list(zip(asked, ANSWERS, strict=True))).tolist()
    assert [row["score"] for row in kept] == pytest.approx(theirs, abs=1e-5)
    rows = read_jsonl(replies)
    assert [row["prompt"] for row in rows[::3]] == asked
    own = score_replies(reward, [(row["prompt"], row["reply"]) for row in rows]).tolist()
    wins = [(own[i] > theirs[i // 3]) + 0.5 * (own[i] == theirs[i // 3]) for i in range(len(own))]
    report = json.loads(shown.out)
    assert report["curve"][0]["wins"] == pytest.approx(100 * sum(wins) / len(wins))
    best = [max(own[3 * i : 3 * i + 3]) for i in range(4)]
    wins = [(value > other) + 0.5 * (value == other) for value, other in zip(best, theirs, strict=True)]
    assert report["curve"][-1]["wins"] == pytest.approx(100 * sum(wins) / 4)

    again = bara("reward", "score", judge, "--input", file, "--output", references, "--overwrite")
    assert again.code == 0, again.err
    unanswered = write_rows(tmp_path / "x.jsonl", [{"instruction": "is", "generator": "x"}])
    refused = bara("reward", "score", judge, "--input", unanswered, "--output", tmp_path / "y.jsonl")
    assert_one_sentence(refused, "There is no 'reply' in row 1", "'output'")
