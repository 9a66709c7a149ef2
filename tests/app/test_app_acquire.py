"""`bara acquire` on real runs, against what `bara predict` writes and loops over the draws themselves."""

import json
import math
import re
from pathlib import Path

import pandas as pd
import pytest
import torch
from app_cases import Bara, Place, assert_one_sentence, questions, write_rows

from bara_pyro.cli.running import run as train
from bara_pyro.data import load_questions, task_from_rows
from bara_pyro.extras.active.acquire import acquire, ask_pool
from bara_pyro.models.gaussian_lora import unflipped
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.rows import encode_rows
from bara_pyro.runs.system import build_system
from bara_pyro.untrusted.files import read_jsonl

SETTINGS = {"train__steps": 8, "predict__samples": [3]}


@pytest.fixture(scope="module")
def members(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ensemble, whose draws are what `bara predict` has."""
    out = tmp_path_factory.mktemp("members") / "run"
    train(place.config(method__name="ensemble", **SETTINGS), out)
    return out


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows without answers, and a column of the user's own."""
    rows = [{"id": r["id"], "question": r["question"], "from": "a letter"} for r in questions()]
    return write_rows(tmp_path_factory.mktemp("pool") / "pool.jsonl", rows)


@pytest.mark.parametrize(("by", "key"), [("bald", "epistemic"), ("entropy", "total")])
def test_rows_are_those_that_predict_is_least_sure_of(
    members: Path, pool: Path, by: str, key: str, tmp_path: Path, bara: Bara
) -> None:
    assert bara("predict", members, "--input", pool, "--output", tmp_path / "all.jsonl").code == 0
    expected = sorted(read_jsonl(tmp_path / "all.jsonl"), key=lambda row: -row[key])[:9]
    chosen = tmp_path / "chosen.jsonl"
    result = bara("acquire", members, "--input", pool, "--count", 9, "--by", by, "--output", chosen, "--json")
    assert result.code == 0, result.err
    rows, found = read_jsonl(chosen), json.loads(result.out)
    assert [row["id"] for row in rows] == [row["id"] for row in expected] == found["chosen"]
    assert [row["chosen"] for row in rows] == list(range(1, 10))
    for name in ("total", "epistemic"):
        assert [row[name] for row in rows] == pytest.approx([row[name] for row in expected])
    own = {row["id"]: row for row in read_jsonl(pool)}
    for row in rows:
        assert {name: row[name] for name in ("id", "question", "from")} == own[row["id"]]
    assert (found["rows"], found["count"], found["draws"]) == (40, 9, 3)
    assert found["most"] == pytest.approx(math.log(3))
    assert found["joint"] == rows[-1]["joint"] <= found["most"]


def test_gates_of_a_rows_own_are_averaged_over(finished: Path, pool: Path) -> None:
    """A draw is one of Phi, with the mean of the probabilities under four of theta; draw by draw, by hand."""
    system = load_system(finished, with_rows=False)
    examples = load_questions(pool, system.task)
    asked = ask_pool(system, examples, samples=5, seed=3)
    split = encode_rows(system.config, system.backbone, system.task, examples)
    probs = draw(system, split, 20, repeats=4, seed=3).exp()
    means = torch.stack([torch.stack([probs[4 * s + t] for t in range(4)]).mean(0) for s in range(5)])
    assert asked.draws.exp() == pytest.approx(means, abs=1e-9)
    assert asked.shared

    def entropy(p: torch.Tensor) -> float:
        return -sum(float(v) * math.log(float(v)) for v in p)

    place_of = {row_id: i for i, row_id in enumerate(split.ids)}
    acquired = acquire(asked, 40, by="bald")
    for row in acquired.rows:
        each = means[:, place_of[row["id"]]]
        told = entropy(each.mean(0)) - sum(map(entropy, each)) / 5
        assert row["epistemic"] == pytest.approx(told, abs=1e-9)
    assert [example.id for example in acquired.examples] == [row["id"] for row in acquired.rows]


def test_a_batch_tells_more_together(members: Path, pool: Path, bara: Bara, tmp_path: Path) -> None:
    told = {}
    for by in ("batch-bald", "bald", "random"):
        out = tmp_path / f"{by}.csv"
        result = bara("acquire", members, "--input", pool, "--by", by, "--count", 4, "--output", out)
        assert result.code == 0, result.err
        assert "4 of 40 rows chosen" in result.out
        assert "information about the latents" in result.out
        table = pd.read_csv(out)
        told[by] = float(table["joint"].iloc[-1])
        assert list(table["joint"]) == sorted(table["joint"])
        assert list(table["question"].str[:2]) == ["is"] * 4
    assert told["batch-bald"] >= max(told.values()) - 1e-9


def test_draws_that_are_used_up_are_said_to_be(
    members: Path, pool: Path, bara: Bara, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("acquire", members, "--input", pool, "--count", 3)
    assert json.loads(bara(*asked, "--json").out)["used_up"] is None
    quiet = bara(*asked).out
    monkeypatch.setattr("bara_pyro.extras.active.acquire.NEAR", 1e-4)
    assert json.loads(bara(*asked, "--json").out)["used_up"] in (1, 2, 3)
    assert len(bara(*asked).out) > len(quiet)


def test_labelled_rows_go_back_into_training(members: Path, pool: Path, tmp_path: Path, bara: Bara) -> None:
    """What is written, with an answer in each row, is a file to train on: as JSON Lines and as a table."""
    answers = {row["id"]: row["answer"] for row in questions()}
    for name in ("chosen.jsonl", "chosen.parquet"):
        out = tmp_path / name
        assert bara("acquire", members, "--input", pool, "--count", 12, "--output", out).code == 0
        table = pd.read_json(out, lines=True) if out.suffix == ".jsonl" else pd.read_parquet(out)
        table["answer"] = table["id"].map(answers)
        task = task_from_rows(table)
        assert {row.id for row in (*task.train, *task.test)} == set(table["id"])
        assert sorted(task.names) == ["no", "yes"]


def test_what_is_written_can_be_appended_to_the_training_rows(
    members: Path, tmp_path: Path, bara: Bara
) -> None:
    """The pool's separator and columns, no `id` that it lacks; four columns beside them, the last ones."""
    labelled, pool, out = (tmp_path / name for name in ("labelled.csv", "pool.csv", "next.csv"))
    rows = [(f"{row['question']}, {number}", row["answer"]) for number, row in enumerate(questions())]
    labelled.write_text("text;label\n" + "".join(f"{text};{label}\n" for text, label in rows))
    pool.write_text("text;label\n" + "".join(f"{text} or so;\n" for text, _ in rows))
    asked = ("acquire", members, "--input", pool, "--count", 3, "--output", out)
    assert bara(*asked).code == 0
    table = pd.read_csv(out, sep=";")
    assert list(table) == ["text", "label", "chosen", "total", "epistemic", "joint"]
    assert bara(*asked, "--overwrite").code == 0  # it is known as a file of this command
    with labelled.open("a") as file:
        table.assign(label="no")[["text", "label"]].to_csv(file, sep=";", header=False, index=False)
    task = task_from_rows(labelled)
    assert len(task.train) + len(task.test) == len(rows) + 3


def test_options_of_a_row_stay_options(place: Place, tmp_path: Path) -> None:
    rows = [
        {"question": row["question"], "choices": ["no", "yes yes no", "no no"][: 2 + i % 2], "answer": "no"}
        for i, row in enumerate(questions())
    ]
    config = place.config(task__labels="texts", train__steps=2, method__name="ensemble")
    system = build_system(config, task=task_from_rows(rows))
    asked = ask_pool(system, system.task.train)
    two = torch.tensor([len(row.options) == 2 for row in asked.examples])
    assert (asked.draws[:, two, 2] == -torch.inf).all()
    assert asked.draws.exp().sum(-1) == pytest.approx(1)
    with torch.no_grad():  # untrained members say the same
        for parameter in system.model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter)) if parameter.requires_grad else None
    acquired = acquire(ask_pool(system, system.task.train), 5)
    assert all(math.isfinite(row["joint"]) for row in acquired.rows)


def test_a_column_that_would_be_written_over_is_refused(members: Path, tmp_path: Path, bara: Bara) -> None:
    rows = [{"id": r["id"], "question": r["question"], "total": "mine"} for r in questions()]
    pool, out = write_rows(tmp_path / "pool.jsonl", rows), tmp_path / "next.jsonl"
    told = bara("acquire", members, "--input", pool, "--count", 2, "--output", out)
    assert_one_sentence(told, "a column 'total'", "rename the column")
    assert not out.exists()
    assert bara("acquire", members, "--input", pool, "--count", 2).code == 0


def test_options_that_one_cell_does_not_hold_are_not_written_as_one(
    members: Path, tmp_path: Path, bara: Bara
) -> None:
    choices = ["no|yes", "no no"]
    rows = [{"id": r["id"], "question": r["question"], "more": choices} for r in questions()]
    asked = ("acquire", members, "--input", write_rows(tmp_path / "pool.jsonl", rows), "--count", 2)
    told = bara(*asked, "--output", tmp_path / "next.csv")
    assert_one_sentence(told, "'more' of row 1", "ends in .jsonl")
    assert not (tmp_path / "next.csv").exists()
    assert bara(*asked, "--output", tmp_path / "next.jsonl").code == 0
    assert read_jsonl(tmp_path / "next.jsonl")[0]["more"] == choices


def test_rows_that_share_nothing(place: Place, pool: Path, tmp_path: Path, bara: Bara) -> None:
    """MC-dropout draws for each row by itself: its rows may be chosen one by one, not together."""
    train(place.config(method__name="mc_dropout", **SETTINGS), tmp_path / "run")
    asked = ("acquire", tmp_path / "run", "--input", pool, "--count", 3, "--samples", 4)
    assert_one_sentence(bara(*asked), "separately for each row", "bald or entropy")
    out, whole = tmp_path / "chosen.jsonl", tmp_path / "all.jsonl"
    found = json.loads(bara(*asked, "--by", "bald", "--json", "--output", out).out)
    assert bara("predict", asked[1], "--input", pool, "--output", whole, "--samples", 4).code == 0
    known = {row["id"]: row["epistemic"] for row in read_jsonl(whole)}
    assert [row["epistemic"] for row in read_jsonl(out)] == pytest.approx(sorted(known.values())[:-4:-1])
    assert found["joint"] is None
    assert found["draws"] == 4
    assert "information about the latents" not in bara(*asked, "--by", "bald").out


def test_a_linearised_posterior_has_draws_of_each_row_alone(
    place: Place, pool: Path, tmp_path: Path, bara: Bara
) -> None:
    """Put in the order of each row's own probabilities, they go together in all rows whatever those share."""
    run = tmp_path / "run"
    train(place.config(method__name="laplace", **SETTINGS), run)
    asked = ("acquire", run, "--input", pool, "--count", 3, "--samples", 4)
    assert_one_sentence(bara(*asked), "separately for each row", "bald or entropy")
    assert json.loads(bara(*asked, "--by", "bald", "--json").out)["joint"] is None


def test_signs_do_not_hide_what_rows_share(place: Place, pool: Path) -> None:
    """With flipout and without it is one posterior: a draw of A is asked as it is, for all rows."""
    flipped = build_system(place.config(method__name="blob"))
    for adapter in flipped.model.adapters.values():
        torch.nn.init.constant_(adapter.lora_B, 0.3)
    for site in flipped.guide.sites.values():
        torch.nn.init.constant_(site.scale, 0.3)
    examples = load_questions(pool, flipped.task)
    rows = encode_rows(flipped.config, flipped.backbone, flipped.task, examples)
    asked = ask_pool(flipped, examples, samples=6)
    with unflipped(flipped.model):
        assert asked.draws == pytest.approx(draw(flipped, rows, 6), abs=1e-9)
    assert asked.draws.exp().std(0).max() > 0.01
    assert asked.shared
    assert flipped.model.flipout
    assert all(adapter.flipout for adapter in flipped.model.adapters.values())
    assert flipped.model.latents.local_sites


def test_refusals(
    finished: Path, members: Path, place: Place, pool: Path, tmp_path: Path, bara: Bara
) -> None:
    assert_one_sentence(bara("acquire", members, "--input", tmp_path / "no.csv"), "no file", "no.csv")
    assert_one_sentence(bara("acquire", members), "--input")
    assert_one_sentence(bara("acquire", members, "--input", pool, "--by", "margin"), "--by")
    assert_one_sentence(bara("acquire", members, "--input", pool, "--output", tmp_path / "x.txt"), ".parquet")
    assert_one_sentence(
        bara("acquire", members, "--input", pool, "--output", pool, "--overwrite"), "the input"
    )
    mean = ("acquire", finished, "--input", pool, "--count", 2, "--samples", 0, "--by")
    for by in ("bald", "batch-bald"):
        assert_one_sentence(bara(*mean, by), "agree", "entropy")
    assert bara(*mean, "entropy").code == 0


def test_the_example_of_the_page_runs(members: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).parents[2] / "docs" / "active.md"
    [example] = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    assert '"runs/round-1"' in example
    exec(compile(example.replace("runs/round-1", str(members)), str(page), "exec"), {})
    batch, other = capsys.readouterr().out.splitlines()
    assert batch.startswith("batch-bald 0.")
    assert other.startswith("random 0.")


@pytest.mark.parametrize("by", ["batch-bald", "random"])
def test_of_rows_with_one_text_one_is_chosen(by: str, members: Path, tmp_path: Path, bara: Bara) -> None:
    """As a reader sees texts, whatever their case; the choice is that of a pool without the copies."""
    rows = [{"id": r["id"], "question": r["question"]} for r in questions()[:12]]
    copies = [{"id": f"copy {r['id']}", "question": f"  {r['question'].upper()} "} for r in rows]
    chosen = {}
    for name, pool in (("once", rows), ("twice", [*rows, *copies])):
        file = write_rows(tmp_path / f"{name}.jsonl", pool)
        out = tmp_path / f"{name}-chosen.jsonl"
        result = bara("acquire", members, "--input", file, "--count", 12, "--by", by, "--output", out)
        assert result.code == 0, result.err
        chosen[name] = [row["id"] for row in read_jsonl(out)]
    assert sorted(chosen["twice"]) == sorted(row["id"] for row in rows)
    assert chosen["twice"] == chosen["once"]
    more = bara("acquire", members, "--input", tmp_path / "twice.jsonl", "--count", 13, "--by", by)
    assert_one_sentence(more, "there are 12 rows")
