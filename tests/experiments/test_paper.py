"""The paper's tables in one command, on a random Qwen2 and rows in the hub's columns."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from app_cases import save_backbone, write_rows
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from bara_pyro.data import load_task, prompt_text
from bara_pyro.errors import ConfigError, Stopped
from experiments.paper import command, runs
from experiments.paper.plan import COSTS, seconds_of
from experiments.paper.prompts import with_prompts
from experiments.paper.protocol import DATASETS, TRAINED_ON, Run, run_settings
from experiments.paper.runs import Setup
from experiments.paper.tables import PUBLISHED

Rows = list[dict[str, Any]]
Command = Callable[..., Path]


def choices(number: int, key: str) -> dict[str, Any]:
    texts = [f"thing {(number + i) % 5}" for i in range(4)]
    return {
        key: f"which {number}",
        "choices": {"text": texts, "label": [*"ABCD"]},
        "answerKey": "ABCD"[number % 4],
    }


def rows_of(name: str, number: int) -> dict[str, Any]:
    """Return a row as the hub has it."""
    if name.startswith("winogrande"):
        return {
            "sentence": f"_ is {number}",
            "option1": "he",
            "option2": "she",
            "answer": str(1 + number % 2),
        }
    if name == "boolq":
        return {"question": f"is it {number}", "answer": number % 2 == 0, "passage": f"it is {number} ."}
    if name.startswith("mmlu"):
        return {"question": f"which {number}", "choices": ["1", "2", "3", "4"], "answer": number % 4}
    return choices(number, "question_stem" if name == "openbookqa" else "question")


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub")
    for name in DATASETS:
        test = "test" if name.startswith("mmlu") else "validation"
        for split, start, count in (("train", 0, 12), (test, 20, 8)):
            write_rows(folder / name / f"{split}.jsonl", [rows_of(name, start + i) for i in range(count)])
    return folder


@pytest.fixture(scope="session")
def model(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tasks = [with_prompts(load_task(name, data), "bayesian-peft") for name in DATASETS]
    texts = (prompt_text(row) for task in tasks for row in (*task.train, *task.test))
    words = dict.fromkeys(word for text in texts for word in text.split())
    names = [
        "<unk>",
        "<end>",
        *words,
        *(w for w in ("A", "B", "C", "D", "E", "True", "False") if w not in words),
    ]
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(names)}, "<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", eos_token="<end>")
    return save_backbone(tmp_path_factory.mktemp("model"), tokenizer=tokenizer)


@pytest.fixture
def run(model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return the command with a few quick settings: `run("out", "--seeds", "1")`."""

    def start(out: str, *options: str) -> Path:
        quick = ["--data", data, "--dtype", "float32", "--steps", "6", "--samples", "2", "--seeds", "1"]
        folder = tmp_path / out
        arguments = ["paper", "--model", model, "--out", folder, *quick, *options]
        monkeypatch.setattr(sys, "argv", [str(argument) for argument in arguments])
        command.main()
        return folder

    return start


def records(folder: Path) -> dict[str, Any]:
    """Return the records without what a clock says."""
    lines = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    return {line["run"]: {key: v for key, v in line.items() if key != "seconds"} for line in lines}


def cells(page: str, first: str, second: str = "here") -> list[list[str]]:
    """Return the cells behind the first two of each row that begins with these."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:1] == "|"
    ]
    return [row[2:] for row in rows if row[:2] == [first, second]]


def test_prompts_are_the_published_ones(data: Path) -> None:
    def asked(name: str) -> str:
        return prompt_text(with_prompts(load_task(name, data), "bayesian-peft").test[0])

    label = "Return the label of the correct answer for the question below.\n\nQuestion: "
    things = "thing 0) A\nthing 1) B\nthing 2) C\nthing 3) D\nAnswer:"
    assert asked("arc_easy") == f"{label}which 20\nChoices:\n{things}"
    assert asked("openbookqa") == f"{label}which 20\nChioces:\n{things}"
    assert asked("winogrande_s") == f"{label}_ is 20\nChoices:\nA) he\nB) she\nAnswer:"
    assert asked("mmlu_college_physics") == f"{label}which 20\nChoices:\nA) 1\nB) 2\nC) 3\nD) 4\nAnswer:"
    assert asked("boolq") == (
        "Read the passage below and answer the question with the words 'true' or 'false'.\n\n"
        "Passage: it is 20 .\nQuestion: is it 20\nAnswer (true or false):"
    )


def test_published_averages_are_those_of_the_published_scores() -> None:
    differ = [
        (table, metric, method)
        for table, first in (("in_distribution", 1), ("out_of_distribution", 2))
        for metric, methods in PUBLISHED[table].items()
        for method, (_, *scores, average) in methods.items()
        if (own := [float(score.split(" ± ")[0]) for score in scores[first - 1 :]])
        and abs(sum(own) / len(own) - average) > 0.0051
    ]
    assert differ == [("in_distribution", "ece", "C-LoRA")]  # 8.14 is printed, 8.13 is the mean


def test_typed_settings_win_over_the_arms_own() -> None:
    run = Run("bara", "winogrande_s", 0)
    assert (run_settings(run, {})["train.lr"], run_settings(run, {})["train.steps"]) == (1e-3, None)
    assert run_settings(run, {"train.lr": 0.5})["train.lr"] == 0.5


@pytest.mark.slow
def test_killed_and_resumed_it_has_the_same_records(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ("--methods", "lora", "bara-paper", "--tasks", "winogrande_s")
    whole = records(run("whole", *asked))
    train, trained = runs.train, []

    def killed(system: Any, folder: Path, **options: Any) -> None:
        def stop(step: int, _: object) -> None:
            if trained and step == 4:
                raise Stopped("stopped")

        train(system, folder, on_step=stop, **options)
        trained.append(folder)

    monkeypatch.setattr(runs, "train", killed)
    with pytest.raises(SystemExit):
        run("killed", *asked)
    monkeypatch.setattr(runs, "train", train)
    assert len(trained) == 1
    assert records(run("killed", *asked, "--resume")) == whole


def test_a_failed_run_is_a_cell_and_stops_no_other(run: Command) -> None:
    asked = ("--methods", "blob", "--tasks", "arc_easy", "winogrande_s")
    folder = run("failed", *asked, "--max-length", "25")  # enough for WinoGrande's questions
    page = (folder / "in_distribution.md").read_text()
    shown = cells(page, "BLoB")[0]
    assert float(shown[1]) >= 0
    assert shown[3] == "failed"
    assert cells(page, "BLoB", "paper")[0][0] == "5.403"
    assert "max_length is 25" in page


def test_the_plan_counts_what_a_hand_counts(run: Command, capsys: pytest.CaptureFixture[str]) -> None:
    run(
        "plan",
        "--table",
        "in_distribution",
        "efficiency",
        "--methods",
        "lora",
        "blob",
        "--seeds",
        "2",
        "--dry-run",
    )
    said = capsys.readouterr().out
    totals = next(line.split() for line in said.splitlines() if line.split()[:1] == ["all"])
    assert totals[1:3] == ["24", "144"]  # two methods, six data sets, two seeds; six steps each
    assert all(DATASETS[name].name in said for name in TRAINED_ON)  # the tests have fewer rows of each
    shifted = Run("blob", "openbookqa", 0, shifted=("arc_easy",))
    rows = {"openbookqa": (100, 10), "arc_easy": (100, 5)}
    taken = seconds_of(shifted, Setup("model", Path("out"), typed={"train.steps": 7}), rows, COSTS["blob"])
    assert taken == pytest.approx(7 * COSTS["blob"].step + 15 * COSTS["blob"].row)


def test_contradictions_are_refused(run: Command) -> None:
    asked = ("--methods", "lora", "--tasks", "winogrande_s")
    run("out", *asked)
    for options, said in (
        (asked, "--resume"),
        ((*asked, "--resume", "--lr", "0.5"), "train.lr"),
        ((*asked, "--calibrate"), "--dry-run"),
        (("--methods", "bara", "--table", "prior", "--set", "method.phi_prior={name: gamma}"), "phi_prior"),
    ):
        with pytest.raises(ConfigError, match=said):
            run("out", *options)
