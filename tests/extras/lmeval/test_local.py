"""Our task files: lm-eval's own but for where the rows are; rows of other layouts become those it reads."""

import json
import shutil
import tomllib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import datasets
import pytest
import yaml
from app_cases import write_rows
from lm_eval.api.registry import get_model
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml
from lm_eval.tasks.hellaswag.utils import process_docs

from bara_pyro.errors import BaraError, ConfigError, DataError
from bara_pyro.extras.lmeval.harness import BaraLM
from bara_pyro.extras.lmeval.harness import checking as layouts
from bara_pyro.extras.lmeval.harness.local import filled, local_tasks
from bara_pyro.extras.lmeval.harness.running import loaded_tasks
from bara_pyro.untrusted.files import read_jsonl

STOCK = Path(str(files("lm_eval"))) / "tasks"
OURS = Path(str(files("bara_pyro.extras.lmeval.harness"))) / "tasks"
FILES = {
    "arc_easy": "arc/arc_easy.yaml",
    "arc_challenge": "arc/arc_challenge.yaml",
    "openbookqa": "openbookqa/openbookqa.yaml",
    "winogrande": "winogrande/default.yaml",
    "boolq": "super_glue/boolq/default.yaml",
    "hellaswag": "hellaswag/hellaswag.yaml",
    "truthfulqa_mc1": "truthfulqa/truthfulqa_mc1.yaml",
    "truthfulqa_mc2": "truthfulqa/truthfulqa_mc2.yaml",
    "mmlu_college_chemistry": "mmlu/default/mmlu_college_chemistry.yaml",
    "mmlu_college_physics": "mmlu/default/mmlu_college_physics.yaml",
    "gsm8k": "gsm8k/gsm8k.yaml",
}
# Where the rows come from and how they are listed; all else says what is asked and how it is scored.
SOURCE = {"task", "task_alias", "tag", "dataset_path", "dataset_name", "dataset_kwargs", "process_docs"}


def test_there_is_a_stock_task_for_each() -> None:
    assert sorted(FILES) == local_tasks()


@pytest.mark.parametrize("name", sorted(FILES))
def test_prompts_targets_and_metrics_are_those_of_the_installed_lm_eval(name: str) -> None:
    stock, ours = load_yaml(STOCK / FILES[name]), load_yaml(OURS / f"{name}.yaml")
    assert ours["task"] == f"bara_{name}"
    assert ours["dataset_path"] == "json"
    for key in (stock.keys() | ours.keys()) - SOURCE:
        mine, theirs = ours.get(key), stock.get(key)
        assert getattr(mine, "__name__", mine) == getattr(theirs, "__name__", theirs), key
        if callable(theirs):
            assert mine.__code__.co_code == theirs.__code__.co_code, key


def test_rows_of_hellaswag_in_both_layouts() -> None:
    told = [
        ("How to jump. [step] Run.", ""),
        ("A man sits. He waves (at her.)", "then the Man"),
        ("Two girls talk, e.g. of cats.", "the two"),
    ]
    halves = [
        {
            "activity_label": "Fun",
            "ctx_a": a,
            "ctx_b": b,
            "endings": ["goes [title] on", " x  y"],
            "label": "1",
        }
        for a, b in told
    ]
    expected = process_docs(datasets.Dataset.from_list(halves))
    assert layouts.hellaswag(datasets.Dataset.from_list(halves)).to_list() == expected.to_list()
    whole = [
        {"activity_label": "Fun", "ctx": f"{a} {b}".strip(), "endings": r["endings"], "label": "1"}
        for (a, b), r in zip(told, halves, strict=True)
    ]
    found = layouts.hellaswag(datasets.Dataset.from_list(whole))
    for key in ("query", "choices", "gold"):
        assert found[key] == expected[key]


@pytest.mark.parametrize(
    ("context", "second"),
    [
        ("It rains. the two", "the two"),
        ("It rains.", ""),
        ("no stop at all", ""),
        ("Why? he Said", "he Said"),
    ],
)
def test_the_unfinished_sentence_is_the_second_half(context: str, second: str) -> None:
    assert layouts.divided_context(context)[1] == second


def test_rows_of_boolq_in_both_layouts() -> None:
    ours = layouts.boolq(datasets.Dataset.from_list([{"answer": True}, {"answer": False}]))
    assert ours["label"][:] == [1, 0]
    theirs = datasets.Dataset.from_list([{"label": 1}])
    assert layouts.boolq(theirs) is theirs


def test_splits_that_are_not_there_are_left_out(rows: Path, tmp_path: Path) -> None:
    with filled(["arc_easy", "boolq"], rows) as folder:
        arc, boolq = (json.loads((folder / f"{name}.yaml").read_text()) for name in ("arc_easy", "boolq"))
    assert not folder.exists()
    assert (arc["test_split"], "validation_split" in arc) == (None, False)
    assert boolq["training_split"] is None
    assert set(arc["dataset_kwargs"]["data_files"]) == {"train", "validation"}
    with pytest.raises(DataError, match=r"no .*gsm8k/test\.jsonl"), filled(["gsm8k"], tmp_path):
        pass


def test_examples_never_come_from_the_scored_rows(rows: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "gsm8k" / "test.jsonl", [{"question": "1 + 1?", "answer": "2 #### 2"}] * 7)
    write_rows(tmp_path / "arc_easy" / "test.jsonl", read_jsonl(rows / "arc_easy" / "validation.jsonl"))
    for task, number, found in [("gsm8k", None, 5), ("gsm8k", 3, 3), ("arc_easy", 2, 2)]:
        missing = rf"bara_{task} puts {found} examples .*{task}/train\.jsonl is missing.*--num-fewshot 0"
        with pytest.raises(DataError, match=missing), filled([task], tmp_path, number):
            pass
    with filled(["gsm8k", "arc_easy"], tmp_path, 0):
        pass
    with filled(["arc_easy"], tmp_path):  # without examples of its own
        pass


def test_a_test_split_that_is_there_is_what_is_tested_on(rows: Path, tmp_path: Path) -> None:
    lines = (rows / "arc_easy" / "validation.jsonl").read_text().splitlines()
    write_rows(tmp_path / "arc_easy" / "validation.jsonl", map(json.loads, lines))
    write_rows(tmp_path / "arc_easy" / "test.jsonl", map(json.loads, lines[:5]))
    with loaded_tasks(["bara_arc_easy"], data_dir=tmp_path) as ([task], _):
        assert len(task.eval_docs) == 5


def test_tasks_of_the_users_own_stand_beside_ours(rows: Path, tmp_path: Path) -> None:
    own = yaml.safe_load((OURS / "arc_easy.yaml").read_text())
    own |= {"task": "mine", "test_split": None}
    own["dataset_kwargs"] = {
        "data_files": {s: str(rows / f"arc_easy/{s}.jsonl") for s in ("train", "validation")}
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(own))
    for folder in (rows, None):
        names = ["mine", "arc_easy"] if folder else ["mine"]
        with loaded_tasks(names, data_dir=folder, include_path=tmp_path) as (tasks, _):
            assert [task.config.task for task in tasks] == ["mine", "bara_arc_easy"][: len(names)]


@pytest.mark.parametrize(
    ("names", "local", "error", "said"),
    [
        ([], True, ConfigError, "There are no tasks"),
        (["bara_arc_easy"], False, ConfigError, "bara_arc_easy reads local rows"),
        (["lambada_openai"], True, ConfigError, "The task 'lambada_openai' cannot read --data-dir"),
    ],
)
def test_refused(rows: Path, names: list[str], local: bool, error: type[BaraError], said: str) -> None:
    with pytest.raises(error, match=said), loaded_tasks(names, data_dir=rows if local else None):
        pass


def test_an_unknown_task_and_rows_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    def few(include_path: Sequence[Path] = (), *, include_defaults: bool = True) -> TaskManager:
        """Know of lm-eval's thousands of tasks those of one folder."""
        stock = [STOCK / "arc"] if include_defaults else []
        return TaskManager(include_path=[*include_path, *stock], include_defaults=False)

    def unreachable(*_: Any, **__: Any) -> None:
        raise ConnectionError("Couldn't reach 'allenai/ai2_arc' on the Hub. Try later.")

    monkeypatch.setattr("bara_pyro.extras.lmeval.harness.running.TaskManager", few)
    monkeypatch.setattr("datasets.load_dataset", unreachable)
    with pytest.raises(ConfigError, match="Unknown task 'arc_eazy'"), loaded_tasks(["arc_eazy"]):
        pass
    said = r"rows of arc_easy cannot be read \(Couldn't reach .* the hub"
    with pytest.raises(DataError, match=said), loaded_tasks(["arc_easy"]):
        pass


def test_damaged_rows_are_refused(tmp_path: Path) -> None:
    (tmp_path / "arc_easy").mkdir()
    (tmp_path / "arc_easy" / "validation.jsonl").write_text('{"question": \n')
    said = r"validation\.jsonl, line 1 is not valid JSON"
    with pytest.raises(DataError, match=said), loaded_tasks(["arc_easy"], data_dir=tmp_path):
        pass


@pytest.mark.parametrize(
    ("task", "file", "change", "said"),
    [
        (
            "arc_easy",
            "arc_easy/train",
            {"question": ...},
            r"read from question, .*\(there is no 'question'\)",
        ),
        ("arc_easy", "arc_easy/validation", {"answerKey": "Z"}, r"answerKey and choices, .*\('Z' is not in"),
        ("winogrande", "winogrande_s/validation", {"answer": "3"}, r"the question .*\(there is no '3'\)"),
        ("boolq", "boolq/validation", {"label": 2}, "read from label, is 2, which is none of the 2 options"),
        ("hellaswag", "hellaswag/validation", {"label": "4"}, "'4', which is none of the 2 options"),
        ("truthfulqa_mc1", "truthful_qa/validation", {"mc1_targets": ...}, "there is no 'mc1_targets'"),
        ("gsm8k", "gsm8k/test", {"answer": ...}, "the answer, read from answer, cannot be read"),
    ],
)
def test_a_row_that_a_task_cannot_use_is_named(
    rows: Path, tmp_path: Path, task: str, file: str, change: dict[str, Any], said: str
) -> None:
    """`...` in a change takes the column away."""
    lines = [json.loads(line) for line in (rows / f"{file}.jsonl").read_text().splitlines()]
    lines[2] = {key: value for key, value in (lines[2] | change).items() if value is not ...}
    shutil.copytree(rows, tmp_path / "rows")
    write_rows(tmp_path / "rows" / f"{file}.jsonl", lines)
    with pytest.raises(DataError, match=said) as error, loaded_tasks([task], data_dir=tmp_path / "rows"):
        pass
    assert str(error.value).startswith(f"{tmp_path / 'rows' / file}.jsonl, row 3: the ")
    assert ". " not in str(error.value)


def test_the_files_serve_lm_eval_alone(rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the folder of the rows, `--include_path` is enough."""
    monkeypatch.chdir(rows)
    manager = TaskManager(include_path=OURS, include_defaults=False)
    assert set(manager.all_tasks) == {f"bara_{name}" for name in FILES}
    [task] = manager.load(["bara_mmlu_college_physics"])["tasks"].values()
    assert len(task.eval_docs) == 12


def test_lm_eval_knows_the_model_by_name() -> None:
    assert get_model("bara") is BaraLM
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["lm_eval.models"] == {"bara": "bara_pyro.extras.lmeval.harness:BaraLM"}
