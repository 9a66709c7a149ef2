"""Own data from the command line: trained on, predicted and evaluated with no flag, in the user's words."""

import csv
import json
from pathlib import Path

import pandas as pd
import pytest
from app_cases import Bara, Place, assert_answers, assert_one_sentence, questions, write_rows

from bara_pyro.cli import running
from bara_pyro.data import EncodedSplit, Example, Task, task_from_rows
from bara_pyro.data.replies import EncodedReplies
from bara_pyro.errors import CheckpointError
from bara_pyro.lm.loading import load_backbone
from bara_pyro.runs.config import load_config
from bara_pyro.runs.evaluate import evaluate_system
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.manifest import SPLIT_HALF_FILE
from bara_pyro.runs.predict import names_of, predict
from bara_pyro.runs.rows import reading_notes
from bara_pyro.runs.system import build_system
from bara_pyro.runs.train import train
from bara_pyro.untrusted.files import read_json, read_jsonl

LONG = {"yes": "very likely", "no": "not at all"}


def long_rows() -> list[dict]:
    return [{"text": row["question"], "label": LONG[row["answer"]]} for row in questions()]


def write_csv(path: Path, rows: list[dict], separator: str = ";") -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=separator)
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture(scope="module")
def lettered(place: Place, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run on a semicolon file of labels that are several tokens, and the file."""
    folder = tmp_path_factory.mktemp("lettered")
    rows = write_csv(folder / "likely.csv", long_rows())
    config = Place(place.backbone, rows).config(train__steps=4, predict__samples=[0, 2])
    running.run(config, folder / "run")
    return folder / "run", rows


def test_a_run_remembers_its_classes_and_columns(lettered: tuple[Path, Path]) -> None:
    stored, metrics = (read_json(lettered[0] / name) for name in ("bara_config.json", "metrics.json"))
    assert (stored["labels"], stored["names"]) == (["A", "B"], ["not at all", "very likely"])
    assert metrics["classes"] == stored["names"]
    assert stored["columns"] == {
        **{"text": "text", "label": "label", "choices": None, "context": None},
        **{"cluster": None, "indices": False},
    }
    answers = [LONG[row["answer"]] for row in questions()]
    assert metrics["majority_class"]["label"] == max(sorted(set(answers)), key=answers.count)
    told = read_jsonl(lettered[0] / "predictions.jsonl")
    assert all(row["answer"] == metrics["classes"][row["label"]] for row in told)
    labels = [row["label"] for row in told]
    share = 100 * labels.count(stored["names"].index(metrics["majority_class"]["label"])) / len(labels)
    assert metrics["majority_class"]["acc"] == pytest.approx(share)
    assert "letters stand for the labels: A = not at all, B = very likely" in metrics["notes"]


def test_predictions_speak_the_users_labels(lettered: tuple[Path, Path], tmp_path: Path, bara: Bara) -> None:
    run, rows = lettered
    out = tmp_path / "answers.jsonl"
    assert bara("predict", run, "--input", rows, "--output", out, "--samples", 2).code == 0
    found = read_jsonl(out)
    assert len(found) == 40
    assert_answers(found, ["not at all", "very likely"])
    for name, read in (("a.csv", pd.read_csv), ("a.parquet", pd.read_parquet)):
        assert bara("predict", run, "--input", rows, "--output", tmp_path / name, "--samples", 2).code == 0
        frame = read(tmp_path / name)
        assert list(frame["label"]) == [row["label"] for row in found]
        assert list(frame["prob_very likely"]) == pytest.approx(
            [row["probs"]["very likely"] for row in found]
        )


def test_the_order_of_classes_does_not_matter(
    lettered: tuple[Path, Path], tmp_path: Path, bara: Bara
) -> None:
    run, _ = lettered
    both = ["very likely", "not at all"]
    rows = [
        {"question": row["text"], "choices": both[:: 1 if i % 2 else -1], "answer": row["label"]}
        for i, row in enumerate(long_rows())
    ]
    same = write_rows(tmp_path / "same.jsonl", rows)
    turned = write_rows(tmp_path / "turned.jsonl", [{**row, "choices": row["choices"][::-1]} for row in rows])
    for path in (same, turned):
        assert bara("evaluate", run, "--task", path).code == 0
    names = ("same-test", "turned-test")
    scores = [read_json(run / "evaluation" / name / "metrics.json")["metrics"] for name in names]
    assert scores[0] == scores[1]
    assert scores[0]["0"]["n"] == 40


def test_other_classes_are_refused(lettered: tuple[Path, Path], tmp_path: Path, bara: Bara) -> None:
    run, _ = lettered
    other = write_csv(tmp_path / "two.csv", [{"text": "is the fox red ?", "label": name} for name in "ab"])
    assert_one_sentence(
        bara("evaluate", run, "--task", other), "two.csv, row 1", "'a'", "not at all, very likely"
    )
    assert_one_sentence(bara("evaluate", run, "--task", "micro-wgs"), "micro-wgs", "not at all, very likely")
    assert not (run / "evaluation" / "two-test").exists()


def test_a_link_to_what_is_read_is_not_written_over(
    lettered: tuple[Path, Path], tmp_path: Path, bara: Bara
) -> None:
    run, rows = lettered
    before = rows.read_bytes()
    link = tmp_path / "link.csv"
    link.symlink_to(rows)
    for output in (rows, link):
        result = bara("predict", run, "--input", rows, "--output", output, "--overwrite")
        assert_one_sentence(result, str(output), "the input")
    assert rows.read_bytes() == before


def test_options_of_each_row(place: Place, tmp_path: Path, bara: Bara) -> None:
    """Rows in ARC's schema, with labels 1, 2: predictions are 1 and 2, and three options are refused."""
    options = {"text": ["no", "yes"], "label": ["1", "2"]}
    key = {"no": "1", "yes": "2"}
    rows = [
        {"question": row["question"], "choices": options, "answerKey": key[row["answer"]]}
        for row in questions()
    ]
    path, out = write_rows(tmp_path / "exam.jsonl", rows), tmp_path / "run"
    assert bara(*Place(place.backbone, path).arguments(out)).code == 0
    assert bara("predict", out, "--input", path, "--output", tmp_path / "p.jsonl").code == 0
    assert_answers(read_jsonl(tmp_path / "p.jsonl"), ["1", "2"])
    three = {"text": ["a", "b", "c"], "label": ["1", "2", "3"]}
    wide = write_rows(tmp_path / "wide.jsonl", [{**rows[0], "choices": three}])
    result = bara("predict", out, "--input", wide, "--output", tmp_path / "w.jsonl")
    assert_one_sentence(result, "row 1", "3 options", "end at B")


def test_unknown_words_are_told_with_the_figure(place: Place, tmp_path: Path, bara: Bara) -> None:
    rows = [{**row, "question": f"would anybody {row['question']}"} for row in questions()]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    result = bara(*Place(place.backbone, path).arguments(tmp_path / "run"))
    # "would" and "anybody" of the eight words of "would anybody is the fox red ? Answer:"
    assert "25 % of the tokens of the train rows are unknown" in result.out
    assert "% of the tokens" not in bara(*place.arguments(tmp_path / "known")).out
    result = bara("predict", tmp_path / "run", "--input", path, "--output", tmp_path / "p.jsonl")
    assert "25 % of the tokens of the given rows are unknown" in result.out


def test_scores_stand_beside_the_majority_class(place: Place, tmp_path: Path, bara: Bara) -> None:
    result = bara(*place.arguments(tmp_path / "run"))
    share = read_json(tmp_path / "run" / "metrics.json")["majority_class"]["acc"]
    line = next(line for line in result.out.splitlines() if "majority class" in line)
    assert f"{share:.1f}" in line


def test_a_frame_from_python(place: Place, tmp_path: Path) -> None:
    frame = pd.DataFrame(long_rows())
    config = load_config(overrides={"backbone.name": str(place.backbone), "train.steps": 2})
    system = build_system(config, task=task_from_rows(frame, name="likely"))
    train(system, tmp_path / "run")
    evaluate_system(system, tmp_path / "run")
    assert read_json(tmp_path / "run" / "bara_config.json")["config"]["task"]["name"] == "likely"
    again = load_system(tmp_path / "run", with_rows=False)
    found = predict(again, frame.head(3), samples=2).rows
    assert found == predict(system, json.loads(frame.head(3).to_json(orient="records")), samples=2).rows
    assert {row["label"] for row in found} <= set(LONG.values())
    with pytest.raises(CheckpointError, match="rows given in Python"):
        load_system(tmp_path / "run")


def test_rows_of_one_thing_stay_together_from_training_to_a_comparison(
    place: Place, tmp_path: Path, bara: Bara
) -> None:
    things = {row["id"]: row["id"].split("-")[0] for row in questions()}
    rows = write_rows(tmp_path / "things.jsonl", [row | {"thing": things[row["id"]]} for row in questions()])
    runs = [tmp_path / name for name in ("bara", "lora")]
    for run in runs:
        given = ("--method", run.name, "--model", place.backbone, "--task", rows, "--cluster-column", "thing")
        made = bara("train", *given, "--steps", 4, "--samples", 2, "--out", run)
        assert made.code == 0, made.err
        told = read_jsonl(run / "predictions.jsonl")
        assert [row["cluster"] for row in told] == [things[row["id"]] for row in told]
    tested = {row["cluster"] for row in told}
    trained = [row for row in things if things[row] not in tested]
    asked = {things[row["id"]] for row in read_json(runs[0] / SPLIT_HALF_FILE)["rows"]}
    assert 0 < len(tested) < 10
    assert asked < {things[row] for row in trained}
    held_out = [row["id"] for row in read_json(runs[0] / SPLIT_HALF_FILE)["rows"]]
    assert sorted(held_out) == sorted(row for row in trained if things[row] in asked)
    compared = bara("compare", *runs)
    assert f"in {len(tested)} clusters" in compared.out
    again = bara("evaluate", runs[0], "--task", rows, "--cluster-column", "id", "--out", tmp_path / "again")
    assert again.code == 0, again.err
    assert all(row["cluster"] == row["id"] for row in read_jsonl(tmp_path / "again" / "predictions.jsonl"))


def test_the_file_of_the_training_rows_is_no_test_file(finished: Path, place: Place, bara: Bara) -> None:
    """As `--task` it is the run's own, of which the rows set aside are tested on."""
    assert_one_sentence(bara("evaluate", finished, "--test-file", place.rows), "also training rows")


def test_a_file_is_tested_on_whole_whatever_the_run_is_evaluated_on(
    place: Place, tmp_path: Path, bara: Bara
) -> None:
    run = tmp_path / "run"
    settings = {"task.validation_rows": 8, "task.evaluate_on": "validation"}
    assert bara(*place.arguments(run, **settings)).code == 0
    other = write_rows(tmp_path / "other.jsonl", questions()[:12])
    result = bara("evaluate", run, "--task", other, "--json")
    assert result.code == 0, result.err
    assert json.loads(result.out)["metrics"]["3"]["n"] == 12


def test_an_option_that_reads_like_a_letter_keeps_its_probability() -> None:
    """Of four classes two are offered; names of the others give way."""
    task = Task("t", ("A", "B", "C", "D"), (), (), ())
    example = Example("r", "?", 0, options=("(C)", "ducks"), texts=("(C)", "ducks"))
    names = names_of(example, task)
    assert names[:2] == ("(C)", "ducks")
    assert len(set(names)) == 4


@pytest.mark.parametrize(("shortened", "dropped"), [(0, 0), (0, 1), (1, 0), (2, 2)])
@pytest.mark.parametrize("replies", [False, True])
def test_rows_cut_and_rows_left_out_are_counted_apart(
    place: Place, shortened: int, dropped: int, replies: bool
) -> None:
    """Each count is said where it is not 0, whatever the other is."""
    told = {"shortened": ("a", "b")[:shortened], "dropped": ("c", "d")[:dropped]}
    split = EncodedReplies((), **told) if replies else EncodedSplit((), (), (), 0, **told)
    cut, out = ("its reply", "its prompt") if replies else ("its context", "its question")
    if shortened == 2:
        cut = cut.replace("its", "their")
    if dropped == 2:
        out = out.replace("its", "their")
    notes = reading_notes(place.config(), load_backbone(str(place.backbone)), split, "train")
    assert [note.split()[0] for note in notes] == [str(n) for n in (shortened, dropped) if n]
    assert [cut in note for note in notes if " cut to " in note] == [True] * bool(shortened)
    assert [out in note for note in notes if " left out" in note] == [True] * bool(dropped)


def test_a_question_too_long_for_its_listed_labels(place: Place, tmp_path: Path, bara: Bara) -> None:
    rows = [{"text": row["question"], "label": LONG[row["answer"]]} for row in questions()]
    given = Place(place.backbone, write_rows(tmp_path / "rows.jsonl", rows))
    found = bara(*given.arguments(tmp_path / "run", **{"task.max_length": 2, "task.labels": "letters"}))
    assert_one_sentence(found, "2 labels", "--labels texts", "max_length")
