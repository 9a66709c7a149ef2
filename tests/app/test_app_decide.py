"""`bara conformal`, `abstain` and `detect` on real runs, against loops over what `bara predict` writes."""

import json
import math
import re
from pathlib import Path

import pandas as pd
import pytest
import torch
from app_cases import Bara, Place, assert_one_sentence, questions, write_rows

from bara_pyro.cli.running import run as train
from bara_pyro.core.observing import frozen_states
from bara_pyro.data import task_from_rows
from bara_pyro.runs.asked import ask, measured
from bara_pyro.runs.decide import decide_sets
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.system import build_system
from bara_pyro.untrusted.files import read_jsonl

SETTINGS = {"train__steps": 8, "predict__samples": [3], "task__validation_rows": 9}
OUTPUT_OF = {"conformal": "set", "abstain": "confidence", "detect": "p"}


@pytest.fixture(scope="module")
def calibrated(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with validation rows that knows distances."""
    out = tmp_path_factory.mktemp("calibrated") / "run"
    train(place.config(adapter__distance_aware=True, **SETTINGS), out)
    return out


def not_trained_on(rows: list[dict]) -> list[dict]:
    """The same questions in other words."""
    return [row | {"question": row["question"].removeprefix("is ")} for row in rows]


@pytest.fixture(scope="module")
def files(place: Place, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Rows with answers: some to calibrate with, some to decide on."""
    folder, rows = tmp_path_factory.mktemp("files"), not_trained_on(questions())
    return write_rows(folder / "known.jsonl", rows[::2]), write_rows(folder / "new.jsonl", rows[1::2])


def predicted(bara: Bara, run: Path, file: Path, out: Path) -> list[dict]:
    assert bara("predict", run, "--input", file, "--output", out, "--samples", 3).code == 0
    return read_jsonl(out)


def answers(file: Path) -> list[str]:
    return [row["answer"] for row in read_jsonl(file)]


def arguments(run: Path, files: tuple[Path, Path], output: Path) -> list[object]:
    known, new = files
    return [run, "--calibration", known, "--input", new, "--output", output, "--samples", 3]


@pytest.mark.parametrize("score", ["lac", "aps"])
def test_sets_are_those_of_a_loop(
    calibrated: Path, files: tuple[Path, Path], score: str, tmp_path: Path, bara: Bara
) -> None:
    known, new = (predicted(bara, calibrated, file, tmp_path / file.name) for file in files)

    def scores(row: dict) -> dict[str, float]:
        probs = row["probs"]
        if score == "lac":
            return {name: 1 - p for name, p in probs.items()}
        return {name: sum(q for q in probs.values() if q > p) for name, p in probs.items()}

    right = sorted(scores(row)[answer] for row, answer in zip(known, answers(files[0]), strict=True))
    q = right[math.ceil(21 * 0.7) - 1] + 1e-9
    expected = [{name for name, s in scores(row).items() if s <= q} for row in new]
    given = [*arguments(calibrated, files, tmp_path / "sets.jsonl"), "--alpha", 0.3, "--score", score]
    result = bara("conformal", *given, "--json")
    assert result.code == 0, result.err
    rows, found = read_jsonl(tmp_path / "sets.jsonl"), json.loads(result.out)
    assert [set(row["set"]) for row in rows] == expected
    assert [row["size"] for row in rows] == [len(inside) for inside in expected]
    assert [(row["id"], row["label"]) for row in rows] == [(row["id"], row["label"]) for row in new]
    held = sum(answer in inside for answer, inside in zip(answers(files[1]), expected, strict=True))
    assert found["coverage"] == pytest.approx(100 * held / 20)
    assert (found["calibration_rows"], found["rows"]) == (20, 20)
    assert found["threshold"] == pytest.approx(q)
    assert found["expected_coverage"] is None


def test_a_rows_own_options_are_all_that_its_set_holds(place: Place, tmp_path: Path) -> None:
    """Rows of two and of three options; what a row does not offer takes no probability from the others."""
    rows = [
        {"question": row["question"], "choices": ["no", "yes yes no", "no no"][: 2 + i % 2], "answer": "no"}
        for i, row in enumerate(questions())
    ]
    config = place.config(task__labels="texts", train__steps=2, method__name="lora")
    system = build_system(config, task=task_from_rows(rows))
    asked = ask(system, system.task.train, "train", samples=0)
    two = torch.tensor([len(row.options) == 2 for row in asked.examples])
    assert two.any()
    assert not two.all()
    assert asked.log_probs.exp().sum(1) == pytest.approx(1)
    assert (asked.log_probs[two, 2] == -torch.inf).all()
    decided = decide_sets(asked, asked, system.task, alpha=0.1, score="aps")
    for row, example in zip(decided.rows, asked.examples, strict=True):
        assert set(row["set"]) <= set(example.options)
        assert row["set"][0] == row["label"]


def test_the_runs_own_rows_by_default(calibrated: Path, tmp_path: Path, bara: Bara) -> None:
    for command, own in OUTPUT_OF.items():
        out = tmp_path / f"{command}.csv"
        more = ["--risk", 0.9, "--delta", 0.5] if command == "abstain" else ["--alpha", 0.2]
        result = bara(command, calibrated, "--output", out, *more)
        assert result.code == 0, result.err
        assert "9 calibration rows" in result.out
        table = pd.read_csv(out)
        assert own in table
        assert list(table["id"]) == [row.id for row in load_system(calibrated).task.test]


def test_abstention_is_that_of_a_loop(
    calibrated: Path, files: tuple[Path, Path], tmp_path: Path, bara: Bara
) -> None:
    known, new = (predicted(bara, calibrated, file, tmp_path / file.name) for file in files)
    given = [*arguments(calibrated, files, tmp_path / "rows.jsonl"), "--risk", 0.8, "--delta", 0.3]
    result = bara("abstain", *given, "--json")
    assert result.code == 0, result.err
    rows, found = read_jsonl(tmp_path / "rows.jsonl"), json.loads(result.out)
    threshold = found["calibration"]["threshold"]
    above = [
        (row["label"], answer)
        for row, answer in zip(known, answers(files[0]), strict=True)
        if max(row["probs"].values()) > threshold
    ]
    assert found["calibration"]["answered"] == len(above)
    assert found["calibration"]["wrong"] == sum(said != answer for said, answer in above)
    assert [row["confidence"] for row in rows] == pytest.approx([max(r["probs"].values()) for r in new])
    assert [row["answered"] for row in rows] == [row["confidence"] > threshold for row in rows]
    answered = [i for i, row in enumerate(rows) if row["answered"]]
    wrong = sum(rows[i]["label"] != answers(files[1])[i] for i in answered)
    assert found["error_rate"] == pytest.approx(100 * wrong / len(answered))
    assert_one_sentence(bara("abstain", calibrated, "--risk", 0.01), "9 calibration rows are too few", "299")


@pytest.mark.parametrize("by", ["total", "epistemic"])
def test_p_values_are_those_of_a_loop(
    calibrated: Path, files: tuple[Path, Path], by: str, tmp_path: Path, bara: Bara
) -> None:
    known, new = (predicted(bara, calibrated, file, tmp_path / file.name) for file in files)
    given = [*arguments(calibrated, files, tmp_path / "rows.parquet"), "--alpha", 0.2, "--by", by]
    result = bara("detect", *given, "--json")
    assert result.code == 0, result.err
    table, found = pd.read_parquet(tmp_path / "rows.parquet"), json.loads(result.out)
    expected = [(1 + sum(k[by] >= row[by] - 1e-9 for k in known)) / 21 for row in new]
    assert list(table["p"]) == pytest.approx(expected)
    assert list(table["foreign"]) == [p <= 0.2 for p in expected]
    assert found["foreign"] == sum(p <= 0.2 for p in expected)


def test_distance_is_the_measure_of_a_run_that_knows_it(
    calibrated: Path, files: tuple[Path, Path], tmp_path: Path, bara: Bara
) -> None:
    result = bara("detect", *arguments(calibrated, files, tmp_path / "rows.jsonl"), "--json")
    assert json.loads(result.out)["by"] == "distance"
    system = load_system(calibrated, with_rows=False)
    split = load_system(calibrated).split("test")
    asked = ask(system, load_system(calibrated).task.test, "test", samples=0)
    states = frozen_states(system.model, split.batch(list(range(len(split))), system.answer_ids))
    assert system.corrections.distance is not None
    assert measured(system, asked, "distance") == pytest.approx(
        system.corrections.distance.squares(states).double()
    )
    assert "distance" in read_jsonl(tmp_path / "rows.jsonl")[0]


def test_answers_are_asked_for_only_where_they_are_needed(
    calibrated: Path, files: tuple[Path, Path], tmp_path: Path, bara: Bara
) -> None:
    rows = [{"question": row["question"]} for row in not_trained_on(questions())]
    bare = write_rows(tmp_path / "bare.jsonl", rows)
    assert bara("detect", calibrated, "--calibration", bare, "--input", bare).code == 0
    assert_one_sentence(bara("conformal", calibrated, "--calibration", bare), "bare.jsonl", "answer")
    found = json.loads(bara("conformal", calibrated, "--input", bare, "--alpha", 0.2, "--json").out)
    assert found["coverage"] is None


def test_rows_that_a_method_was_fitted_to_calibrate_nothing(place: Place, tmp_path: Path, bara: Bara) -> None:
    train(place.config(method__name="temperature", **SETTINGS), tmp_path / "fitted")
    for command in OUTPUT_OF:
        told = bara(command, tmp_path / "fitted")
        assert_one_sentence(told, "'temperature' was fitted to the validation rows", "--calibration FILE")
    others = write_rows(tmp_path / "others.jsonl", not_trained_on(questions()))
    assert bara("conformal", tmp_path / "fitted", "--calibration", others).code == 0
    copy = write_rows(tmp_path / "copy.jsonl", [row | {"id": f"x{row['id']}"} for row in questions()])
    for command in OUTPUT_OF:
        told = bara(command, tmp_path / "fitted", "--calibration", copy)
        assert_one_sentence(told, "of the 40 rows", "copy.jsonl", "are training rows", "'x")
    for command in OUTPUT_OF:  # however it is spelled
        own = place.rows.parent / ".." / place.rows.parent.name / place.rows.name
        told = bara(command, tmp_path / "fitted", "--calibration", own)
        assert_one_sentence(told, "holds the training rows", "--validation-rows")


def test_refusals(finished: Path, calibrated: Path, place: Place, tmp_path: Path, bara: Bara) -> None:
    for command in OUTPUT_OF:
        assert_one_sentence(bara(command, finished), "no validation rows", "--validation-rows")
        assert_one_sentence(bara(command, finished, "--input", tmp_path / "no.csv"), "no file", "no.csv")
        assert_one_sentence(bara(command, calibrated, "--output", tmp_path / "x.txt"), "x.txt", ".parquet")
        mine = write_rows(tmp_path / "mine.jsonl", [{"id": 1}])
        told = bara(command, calibrated, "--output", mine, "--overwrite")
        assert_one_sentence(told, "was not written by bara")
    for command in ("conformal", "detect"):
        assert_one_sentence(bara(command, calibrated, "--alpha", 0.01), "alpha=0.01", "9 calibration rows")
        assert_one_sentence(bara(command, calibrated, "--alpha", 2), "--alpha")
    told = bara("detect", calibrated, "--by", "epistemic", "--samples", 1, "--alpha", 0.1)
    assert_one_sentence(told, "do not differ", "another measure (--by)")


def test_what_cannot_be_promised_is_refused_before_a_row_is_asked(
    calibrated: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bara: Bara
) -> None:
    asked: list[str] = []
    others = write_rows(tmp_path / "others.jsonl", not_trained_on(questions()))
    monkeypatch.setattr("bara_pyro.runs.asked.ask", lambda _, __, name, **___: asked.append(name))
    for command, option in (("conformal", "--alpha"), ("detect", "--alpha"), ("abstain", "--risk")):
        assert_one_sentence(bara(command, calibrated, option, 0.01), "0.01", "9 calibration rows")
        assert_one_sentence(bara(command, calibrated, option, 0), f"{option[2:]} is 0", "between 0 and 1")
    told = bara("detect", finished, "--calibration", others, "--by", "distance", "--alpha", 0.3)
    assert_one_sentence(told, "--distance-aware")
    assert not asked


def test_the_example_of_the_page_runs(calibrated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).parents[2] / "docs" / "decide.md"
    [example] = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    code, loaded = re.subn(r'(?<=load_system\()"[^"]*"', repr(str(calibrated)), example)
    assert loaded == 1
    exec(compile(code, str(page), "exec"), {})
    coverage, *inside = capsys.readouterr().out.split()
    assert 0 <= float(coverage) <= 100
    assert inside


def test_one_row_of_each_cluster_calibrates(place: Place, tmp_path: Path, bara: Bara) -> None:
    """Of validation rows, and of those of a file."""
    things = [row | {"thing": row["id"].split("-")[0]} for row in questions()]
    rows = write_rows(tmp_path / "things.jsonl", things)
    given = ("--method", "lora", "--model", place.backbone, "--task", rows, "--cluster-column", "thing")
    made = bara("train", *given, "--steps", 2, "--validation-rows", 9, "--out", tmp_path / "run")
    assert made.code == 0, made.err
    asked = write_rows(tmp_path / "asked.jsonl", not_trained_on(things))
    told = [tmp_path / "run", "--input", asked, "--samples", 0, "--alpha", 0.5]
    run = [*told, "--json"]
    clusters = len({row["thing"] for row in things})
    by_file = bara("conformal", *run, "--calibration", asked)
    assert by_file.code == 0, by_file.err
    assert json.loads(by_file.out)["calibration_rows"] == clusters < len(things)
    said = bara("conformal", *told, "--calibration", asked)
    assert f"{clusters} rows calibrate, one of each thing" in " ".join((said.out + said.err).split())
    system = load_system(tmp_path / "run")
    assert len(system.task.validation) > 1
    own = bara("conformal", *run)
    groups = {row.cluster for row in system.task.validation}
    assert json.loads(own.out)["calibration_rows"] == len(groups) < len(system.task.validation)
    # Where a file does not say what rows have in common, nothing is promised of them.
    plain = write_rows(tmp_path / "plain.jsonl", not_trained_on(questions()))
    refused = bara("conformal", *run, "--calibration", plain)
    assert_one_sentence(refused, "There is no column 'thing' in", "belong together", "--cluster-column")
    renamed = [{"who" if k == "thing" else k: v for k, v in row.items()} for row in not_trained_on(things)]
    others = write_rows(tmp_path / "renamed.jsonl", renamed)
    found = bara("conformal", *run, "--calibration", others, "--cluster-column", "who")
    assert found.code == 0, found.err
    assert json.loads(found.out)["calibration_rows"] == clusters


@pytest.mark.parametrize(
    ("command", "suffix"), [("conformal", ".jsonl"), ("abstain", ".csv"), ("detect", ".parquet")]
)
def test_the_columns_of_a_file_are_carried(
    command: str, suffix: str, calibrated: Path, files: tuple[Path, Path], tmp_path: Path, bara: Bara
) -> None:
    """As predictions carry them: one that has the name of what is written is renamed."""
    rows = [{**row, "by": f"writer {i}", "size": i, "p": i} for i, row in enumerate(read_jsonl(files[1]))]
    asked, out = write_rows(tmp_path / "asked.jsonl", rows), tmp_path / f"out{suffix}"
    taken = {"conformal": "size", "detect": "p"}.get(command)
    how = ("--input", asked, "--calibration", files[0], "--output", out, "--samples", 2)
    promise = ("--risk", 0.9, "--delta", 0.5) if command == "abstain" else ("--alpha", 0.5)
    result = bara(command, calibrated, *how, *promise)
    assert result.code == 0, result.err
    if suffix == ".jsonl":
        found = read_jsonl(out)
    else:
        frame = pd.read_csv(out) if suffix == ".csv" else pd.read_parquet(out)
        found = frame.to_dict("records")
    for row, given in zip(found, rows, strict=True):
        for name, cell in given.items():
            assert row[f"input_{name}" if name == taken else name] == cell
        assert OUTPUT_OF[command] in row
