"""Without adapters a run, and a bare language model, score as lm-eval's own `hf` model does."""

import shutil
from pathlib import Path
from typing import Any

import lm_eval
import pytest
from app_cases import Place, word_tokenizer
from harness_cases import PAIRS, asked, system_of
from lm_eval.models.huggingface import HFLM

from bara_pyro.errors import DataError
from bara_pyro.extras.lmeval.harness import BaraLM, evaluate_tasks
from bara_pyro.extras.lmeval.harness.local import local_tasks
from bara_pyro.extras.lmeval.harness.running import loaded_tasks

CHOICES = [name for name in local_tasks() if name != "gsm8k"]


@pytest.fixture(scope="module")
def stock(place: Place) -> HFLM:
    # transformers reads a Qwen2 folder with Qwen2's own tokenizer, whatever the folder says.
    how = {"device": "cpu", "dtype": "float32", "tokenizer": word_tokenizer()}
    return HFLM(pretrained=str(place.backbone), batch_size=5, **how)


@pytest.fixture(scope="module")
def ours(place: Place) -> BaraLM:
    return BaraLM(place.backbone, "base", batch_size=3)


def test_loglikelihoods_and_greediness(stock: HFLM, ours: BaraLM) -> None:
    pairs = [*PAIRS, ("", " yes"), ("the fox " * 40, " is red")]  # no context; one that is too long
    expected = stock.loglikelihood(asked(pairs), disable_tqdm=True)
    found = ours.loglikelihood(asked(pairs), disable_tqdm=True)
    assert [value for value, _ in found] == pytest.approx([value for value, _ in expected], abs=1e-4)
    assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
    assert ours.truncated == 1


def test_rolling_windows_and_generated_text(stock: HFLM, ours: BaraLM) -> None:
    texts = asked([("is the fox red ? " * 20,), ("the hen is blue",)], "loglikelihood_rolling")
    expected = stock.loglikelihood_rolling(texts, disable_tqdm=True)
    assert ours.loglikelihood_rolling(texts, disable_tqdm=True) == pytest.approx(expected, abs=1e-3)
    how = {"until": ["\n"], "max_gen_toks": 5}
    prompts = asked([("is the fox red ?", how), ("the hen", how)], "generate_until")
    assert ours.generate_until(prompts, disable_tqdm=True) == stock.generate_until(prompts, disable_tqdm=True)


def test_a_run_without_its_adapters_is_its_language_model(place: Place, stock: HFLM) -> None:
    run = BaraLM(system_of(place, "bara-gate"), "base")
    expected = stock.loglikelihood(asked(PAIRS), disable_tqdm=True)
    found = run.loglikelihood(asked(PAIRS), disable_tqdm=True)
    assert [value for value, _ in found] == pytest.approx([value for value, _ in expected], abs=1e-4)


@pytest.mark.slow
def test_scores_of_every_task(rows: Path, stock: HFLM, ours: BaraLM, tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    shutil.copytree(rows, folder)
    for file in rows.rglob("validation.jsonl"):  # examples come from the training rows
        shutil.copy(file, folder / file.relative_to(rows).with_name("train.jsonl"))
    found = evaluate_tasks(ours, CHOICES, data_dir=folder, num_fewshot=1)
    with loaded_tasks(CHOICES, data_dir=folder, num_fewshot=1) as (tasks, manager):
        report: Any = lm_eval.simple_evaluate(
            stock, tasks=tasks, task_manager=manager, num_fewshot=1, log_samples=False
        )
    assert found["results"].keys() == {f"bara_{name}" for name in CHOICES}
    for task, scores in report["results"].items():
        for name, value in scores.items():
            assert found["results"][task][name] == pytest.approx(value, abs=1e-6), (task, name)
    assert found["model"]["predictive"] == "base"
    assert found["lm_eval"] == lm_eval.__version__


def test_a_generated_answer(place: Place, rows: Path, stock: HFLM, ours: BaraLM) -> None:
    """gsm8k, whose budget of 256 tokens the toy does not have: its first tokens."""
    with loaded_tasks(["gsm8k"], data_dir=rows) as ([task], manager):
        task.set_config("generation_kwargs", {"max_gen_toks": 8}, update=True)
        reports: Any = [
            lm_eval.simple_evaluate(m, tasks=[task], task_manager=manager, limit=3, num_fewshot=1)
            for m in (stock, ours)
        ]
    written = [[s["resps"] for s in report["samples"]["bara_gsm8k"]] for report in reports]
    assert written[0] == written[1]
    assert reports[0]["results"] == reports[1]["results"]


def test_a_conversation_is_written_whole_or_refused(ours: BaraLM) -> None:
    """lm-eval's own model leaves the system's message out, with a warning, where a template refuses it."""
    before = ours.tokenizer.chat_template
    turns = "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }} . {% endfor %}"
    strict = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    asked = [
        {"role": "user", "content": "is the fox red ?"},
        {"role": "assistant", "content": "the answer is"},
    ]
    try:
        ours.tokenizer.chat_template = (
            strict + turns + "{% if add_generation_prompt %}<assistant> {% endif %}"
        )
        assert ours.apply_chat_template(asked[:1]) == "<user> is the fox red ? . <assistant> "
        goes_on = ours.apply_chat_template(asked, add_generation_prompt=False)
        assert goes_on == "<user> is the fox red ? . <assistant> the answer is"
        with pytest.raises(DataError, match="no system role"):
            ours.apply_chat_template([{"role": "system", "content": "be brief"}, *asked[:1]])
    finally:
        ours.tokenizer.chat_template = before
