"""The paper's tables in one command, on a random Qwen2 and rows in the hub's columns."""

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from app_cases import save_backbone, write_rows
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from bara_pyro.data import load_task, prompt_text
from bara_pyro.errors import ConfigError, DataError, Stopped
from bara_pyro.extras.replies.generation import file as file_of_replies
from bara_pyro.runs.config import load_config
from experiments.engine import sweep
from experiments.paper import alignment, command
from experiments.paper.costs import COSTS, estimated, measured
from experiments.paper.plan import seconds_of
from experiments.paper.prompts import with_prompts
from experiments.paper.protocol import ARMS, DATASETS, SHIFTED, TRAINED_ON, PaperRun, run_settings
from experiments.paper.runs import Setup
from experiments.paper.tables import PUBLISHED, TABLES, minus, runs_of

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
    if name == "ultrafeedback":
        many = 2100 if number == 11 else 1  # one prompt is longer than the protocol's rows
        asked = {"role": "user", "content": " ".join([f"which {number}"] * many)}
        replies = {key: [asked, {"role": "assistant", "content": key}] for key in ("chosen", "rejected")}
        return {**replies, "score_chosen": 1.0, "score_rejected": 0.0}
    if name.startswith("mmlu"):
        return {"question": f"which {number}", "choices": ["1", "2", "3", "4"], "answer": number % 4}
    return choices(number, "question_stem" if name == "openbookqa" else "question")


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub")
    for name in DATASETS:
        test = "test" if name.startswith("mmlu") else "validation"
        for split, start, count in (("train", 0, 12), (test, 20, 8)):
            own = "ultrafeedback_binarized" if name == "ultrafeedback" else name
            split = "test" if name == "ultrafeedback" and split != "train" else split
            write_rows(folder / own / f"{split}.jsonl", [rows_of(name, start + i) for i in range(count)])
    write_rows(folder / "alpaca_eval" / "eval.jsonl", [{"instruction": "which 20", "output": "thing"}] * 2)
    program = {"prompt": "def one(x): ", "entry_point": "one", "test": "def check(f): 0"}
    programs = [{**program, "task_id": name, "canonical_solution": "1"} for name in ("one", "two")]
    write_rows(folder / "humaneval" / "test.jsonl", programs)
    return folder


@pytest.fixture(scope="session")
def model(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tasks = [with_prompts(load_task(name, data), "bayesian-peft") for name in (*TRAINED_ON, *SHIFTED[2:])]
    texts = (prompt_text(row) for task in tasks for row in (*task.train, *task.test))
    words = dict.fromkeys(word for text in texts for word in text.split())
    names = [
        "<unk>",
        "<end>",
        *words,
        *(w for w in (*"ABCDE", "True", "False", "chosen") if w not in words),
    ]
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(names)}, "<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", eos_token="<end>")
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    return save_backbone(tmp_path_factory.mktemp("model"), tokenizer=tokenizer)


@pytest.fixture
def run(model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return the command with a few quick settings: `run("out", "--seeds", "1")`."""

    def start(out: str, *options: str) -> Path:
        quick = ["--data-dir", data, "--dtype", "float32", "--steps", "6", "--samples", "2", "--seeds", "1"]
        folder = tmp_path / out
        arguments = ["paper", "--model", model, "--out", folder, *quick, *options]
        monkeypatch.setattr(sys, "argv", [str(argument) for argument in arguments])
        command.main()
        return folder

    return start


def records(folder: Path) -> dict[str, Any]:
    """Return the records without what a clock says."""
    lines = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    return {line["run"]: {k: v for k, v in line.items() if not k.startswith("wall_clock")} for line in lines}


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


def test_every_run_of_every_table_has_valid_settings() -> None:
    for run in runs_of(TABLES, [*ARMS], 1):
        load_config(overrides=run_settings(run, {}))


def test_typed_settings_win_over_the_arms_own() -> None:
    run = PaperRun("bara", "winogrande_s", 0)
    assert (run_settings(run, {})["train.lr"], run_settings(run, {})["train.steps"]) == (1e-3, None)
    assert run_settings(run, {"train.lr": 0.5})["train.lr"] == 0.5


@pytest.mark.slow
def test_killed_and_resumed_it_has_the_same_records(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ("--methods", "lora", "bara", "--tasks", "winogrande_s")
    whole = records(run("whole", *asked))
    train, trained = sweep.train, []

    def killed(system: Any, folder: Path, **options: Any) -> None:
        def stop(step: int, _: object) -> None:
            if trained and step == 4:
                raise Stopped("stopped")

        train(system, folder, on_step=stop, **options)
        trained.append(folder)

    monkeypatch.setattr(sweep, "train", killed)
    with pytest.raises(SystemExit):
        run("killed", *asked)
    monkeypatch.setattr(sweep, "train", train)
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
    assert "for an H100, not for this cpu" in said
    assert float(totals[-1]) > 0  # of so small a model in minutes
    shifted = PaperRun("blob", "openbookqa", 0, shifted=("arc_easy",))
    rows = {"openbookqa": (100, 10), "arc_easy": (100, 5)}
    taken = seconds_of(shifted, Setup("model", Path("out"), typed={"train.steps": 7}), rows, COSTS["blob"])
    assert taken == pytest.approx(7 * COSTS["blob"].step + 15 * COSTS["blob"].row)


def test_a_measurement_knows_every_pair(model: Path, data: Path) -> None:
    setup = Setup(str(model), Path("out"), data, typed={"backbone.dtype": "float32", "predict.samples": [2]})
    pairs = [(arm, task) for arm in ("lora", "blob") for task in ("winogrande_s", "boolq")]
    found = measured([PaperRun(arm, task, 0) for arm, task in pairs], setup, COSTS, seconds=0.01)
    assert set(found) == set(pairs)
    assert all(cost.step > 0 < cost.row for cost in found.values())
    first = found["lora", "winogrande_s"]
    longer = found["lora", "boolq"].step / first.step  # of LoRA, which was measured on both
    assert found["blob", "boolq"].step == pytest.approx(found["blob", "winogrande_s"].step * longer)


def stubbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judge replies by their length and programs by its parity, and let the tax be two points."""
    monkeypatch.setattr(alignment, "missing", lambda *_: [])
    monkeypatch.setattr(alignment, "reward_model", lambda *_: None)
    monkeypatch.setattr(
        alignment,
        "score_replies",
        lambda _, pairs, **__: torch.tensor([float(len(reply)) for _, reply in pairs]),
    )
    monkeypatch.setattr(
        alignment,
        "judge_programs",
        lambda _, programs, *__, **___: [{**row, "passed": len(row["reply"]) % 2 == 0} for row in programs],
    )
    monkeypatch.setattr(alignment, "taxed", lambda *_: {"arc": {"before": 50.0, "after": 48.0}})


@pytest.mark.slow
def test_every_table(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    stubbed(monkeypatch)
    short = ("--replies", "2", "--new-tokens", "3", "--steps", "2")
    folder = run("all", "--table", "all", "--methods", "lora", "blob", "bara-paper", *short)
    assert not [record for record in records(folder).values() if "failed" in record]
    pages = {path.stem: path.read_text() for path in folder.glob("*.md")}
    assert set(pages) == set(TABLES)
    assert {path.stem for path in folder.glob("*.png")} == {"sparsity", "alignment"}
    own_name = "BaRA, Algorithm 1"
    for name, page in pages.items():
        assert (name == "prior") == ("Gamma(0.5, 1.0)" in page)
        first = {"hierarchy": "phi", "prior": "Gamma(1.0, 1.0)"}.get(name)
        own = cells(page, first, own_name) if first else cells(page, own_name)
        theirs = cells(page, first, "BaRA") if first else cells(page, "BaRA", "paper")
        assert "–" not in own[0] or name == "efficiency"  # a CPU has no GPU memory
        assert len(own[0]) == len(theirs[0])
    assert cells(pages["sparsity"], "BaRA", "paper")[2] == ["34.38", "35.49", "37.61", "39.56"]
    assert cells(pages["rank"], "BLoB", "paper")[0] == ["10.810", "87.24", "2.98", "0.29"]
    assert cells(pages["hierarchy"], "theta", "BaRA")[0][1:] == ["88.62", "4.54", "0.30"]
    assert cells(pages["alignment"], "MLE")[0][-1] == "-2.0"
    replied = records(folder)["lora-ultrafeedback-seed0"]
    assert replied["chat"]["best"][0] <= replied["chat"]["best"][1]
    shifted = records(folder)["blob-openbookqa-seed0"]["shifted"]
    mean = sum(scores["metrics"]["2"]["acc"] for scores in shifted.values()) / 4
    assert float(cells(pages["out_of_distribution"], "BLoB")[0][-1]) == pytest.approx(mean, abs=0.006)


ALIGNED = ("--table", "alignment", "--replies", "2", "--new-tokens", "3", "--steps", "2")


def test_alignment_says_what_was_asked_and_compares_by_prompt(
    run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    stubbed(monkeypatch)
    folder = run("aligned", *ALIGNED, "--methods", "lora", "blob", "--judge", "own")
    page = (folder / "alignment.md").read_text()
    shown = [row for row in page.splitlines() if row.startswith("| BLoB | here")]
    found = records(folder)
    one, other = (found[f"{arm}-ultrafeedback-seed0"]["chat"]["one"] for arm in ("blob", "lora"))
    difference = f"{sum(one) / 2 - sum(other) / 2:+.1f}".replace("-", "−").replace("+0.0", "0.0")
    assert len(shown) == 2
    assert "2 prompts of AlpacaEval and 2 problems of HumanEval, 2 replies to each" in page
    assert shown[1].split("|")[3].split()[0].rstrip(",") == difference
    published, typed = page.split("Published: ")[1].split("**Not published, but typed**: ")
    assert all(f"`{said}`" in typed for said in ("judge=own", "replies=2", "new_tokens=3", "train.steps=2"))
    assert "task.max_length=2048" in published
    assert "train.steps" not in published
    assert "train.epochs" not in published


def test_scores_that_are_alike_have_no_interval() -> None:
    scores = {"lora": [0.0, 0.0, 100.0], "blob": [0.0, 0.0, 100.0], "bara": [50.0, 0.0, 100.0]}
    kept = {
        arm: {"arm": arm, "task": "ultrafeedback", "variant": "", "seed": 0, "scores": own}
        for arm, own in scores.items()
    }
    cell = minus("lora", lambda record: record["scores"], "ultrafeedback")
    assert cell(kept, "lora", "") is None
    assert "[" not in str(cell(kept, "blob", ""))
    assert str(cell(kept, "bara", "")).startswith("+16.7 [")


def test_resumed_alignment_writes_no_reply_again(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    stubbed(monkeypatch)
    asked = (*ALIGNED, "--methods", "lora")
    whole = records(run("whole", *asked))

    def broken(*_: Any) -> None:
        raise DataError("no rows")

    with monkeypatch.context() as patch:
        patch.setattr(alignment, "taxed", broken)
        folder = run("broken", *asked)
    assert "no rows" in (folder / "alignment.md").read_text()
    files = sorted((folder / "runs").glob("*/replies/*.jsonl"))
    assert [file.stem for file in files] == ["chat", "programs"]
    kept = [file.read_text() for file in files]
    with monkeypatch.context() as patch:
        patch.setattr(file_of_replies, "_encoded", broken)
        patch.setattr(
            file_of_replies, "generate", lambda *_, **how: iter(()) if len(how["skip"]) == 4 else broken()
        )
        assert records(run("broken", *asked, "--resume")) == whole
    assert [file.read_text() for file in files] == kept


def test_alignment_names_what_it_lacks_before_it_trains(
    data: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alignment, "check_isolation", lambda: None)
    judge = shutil.copytree(model, tmp_path / "judge")
    config = json.loads((judge / "config.json").read_text())

    def said(**asked: Any) -> str:
        return " ".join(alignment.missing(data, alignment.Replies(**{"taxed": ("arc_challenge",), **asked})))

    assert "is a language model" in said(judge=str(judge))
    (judge / "config.json").write_text(
        json.dumps({**config, "architectures": ["Qwen2ForSequenceClassification"]})
    )
    assert said(judge=str(judge)) == ""
    assert "--new-tokens" in said(judge=str(judge), new_tokens=2048)
    assert "--test-rows" in said(judge=str(judge), rows=1)
    assert "hellaswag" in said(judge=str(judge), taxed=("hellaswag",))
    write_rows(tmp_path / "alpaca_eval" / "eval.jsonl", [{"instruction": "a", "output": "b " * 2050}])
    for folder in ("humaneval", "arc_challenge"):
        (tmp_path / folder).symlink_to(data / folder)
    assert "row 1" in " ".join(
        alignment.missing(tmp_path, alignment.Replies(str(judge), taxed=("arc_challenge",)))
    )


def test_a_plan_needs_no_more_than_a_model() -> None:
    args = command.parser().parse_args(["--model", "m", "--dry-run"])
    assert (args.out, args.data_dir) == (Path("runs/paper"), None)


def test_the_plan_of_replies_counts_prompts_and_the_size_of_the_model() -> None:
    setup = Setup("model", Path("out"), test_rows=10, replies=2, new_tokens=5, taxed=("winogrande",))
    run, rows, cost = PaperRun("lora", "ultrafeedback", 0), {"ultrafeedback": (8, 7)}, COSTS["lora"]
    run = replace(run, settings={**alignment.SETTINGS, "train.steps": 3, "train.epochs": None})
    known = 3 * cost.step + (7 + 10) * cost.row + (10 + 10) * 2 * 5 * cost.token
    assert seconds_of(run, setup, rows, cost) == pytest.approx(known)
    # The judge reads the replies to ten prompts and their references.
    assert seconds_of(run, setup, rows, cost, judged=0.5) == pytest.approx(known + 10 * (2 + 1) * 0.5)
    small, large = (estimated(setup, weights)["lora"].token for weights in (10**8, 7 * 10**9))
    assert small < large


def test_replies_are_measured_with_their_own_settings(
    model: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alignment, "missing", lambda *_: [])
    setup = Setup(str(model), Path("out"), data, typed={"backbone.dtype": "float32", "predict.samples": [2]})
    asked = [
        PaperRun("lora", "winogrande_s", 0),
        PaperRun("lora", "ultrafeedback", 0, "", alignment.SETTINGS),
    ]
    found = measured(asked, setup, COSTS, seconds=0.01)
    assert found["lora", "ultrafeedback"].token != COSTS["lora"].token
    assert found["lora", "winogrande_s"].token == COSTS["lora"].token


@pytest.mark.slow
def test_every_method_has_its_scores(run: Command) -> None:
    """As its record has them."""
    folder = run("every", "--table", "in_distribution", "--methods", *ARMS, "--tasks", "winogrande_s")
    page = (folder / "in_distribution.md").read_text()
    for name, arm in ARMS.items():
        scores = records(folder)[f"{name}-winogrande_s-seed0"]["metrics"]
        accuracy = scores[max(scores, key=int)]["acc"]
        assert f"{accuracy:.2f}" in cells(page, arm.name)[0], name


def test_contradictions_are_refused(run: Command) -> None:
    asked = ("--methods", "lora", "--tasks", "winogrande_s")
    run("out", *asked)
    for options, said in (
        (asked, "--resume"),
        ((*asked, "--resume", "--lr", "0.5"), "train.lr"),
        ((*asked, "--resume", "--set", "seed=7"), "use --seeds"),
        ((*asked, "--resume", "--set", "task.train_rows=3"), "use --tasks or --train-rows"),
        ((*asked, "--resume", "--set", "predict.samples=[3]"), "use --samples"),
        ((*asked, "--calibrate"), "--dry-run"),
        ((*asked, "--resume", "--batch-size", "-4"), "batch_size"),
        ((*asked, "--resume", "--device", "gpu"), "device 'gpu'"),
        (("--methods", "bara", "--table", "prior", "--set", "method.phi_prior={name: gamma}"), "phi_prior"),
    ):
        with pytest.raises(ConfigError, match=said):
            run("out", *options)
