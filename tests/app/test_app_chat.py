"""Classification through the chat template: trained, asked again without a flag, scored and served."""

import json
from pathlib import Path

import pytest
import torch
from app_cases import Bara, Place, questions, save_backbone, word_tokenizer
from peft import PeftModel
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

import bara_pyro as bp
from bara_pyro.extras.serve.http.engine import RunEngine
from bara_pyro.runs.manifest import CONFIG
from bara_pyro.untrusted.files import read_json

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}> {{ m.content }} <end> {% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture
def speaking(place: Place, tmp_path: Path) -> Place:
    tokenizer = word_tokenizer()
    tokenizer.add_tokens(["<user>", "<assistant>", "<system>", "Sort."])
    tokenizer.chat_template = TEMPLATE
    return Place(save_backbone(tmp_path / "chat", tokenizer=tokenizer), place.rows)


def asked(place: Place, said: str) -> list[int]:
    """The prompt as transformers writes it."""
    messages = [{"role": "system", "content": "Sort."}, {"role": "user", "content": said}]
    tokenizer = PreTrainedTokenizerFast.from_pretrained(place.backbone)
    tokenizer.chat_template = TEMPLATE
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # raised by PEFT
@pytest.mark.parametrize("labels", ["words", "letters", "texts"])
def test_a_run_asks_through_the_template(labels: str, speaking: Place, tmp_path: Path, bara: Bara) -> None:
    out = tmp_path / "run"
    how = ("--chat", "--system", "Sort.", "--labels", labels)
    assert bara(*speaking.arguments(out, "lora", **{"train.lr": 0.05}), *how).code == 0
    template = speaking.backbone / "chat_template.jinja"
    template.write_text(TEMPLATE.replace("<end>", "no no"))  # a later version of the model's template
    rows = questions()[:6]
    answers = bp.predict(out, rows, samples=0).rows
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(speaking.backbone), out).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(speaking.backbone)
    names, listed = ("no", "yes"), " A) no B) yes" if labels == "letters" else ""
    ids = tokenizer.convert_tokens_to_ids(["A", "B"] if labels == "letters" else list(names))
    for row, answer in zip(rows, answers, strict=True):
        prompt = asked(speaking, row["question"] + listed)
        with torch.no_grad():
            logits = theirs(torch.tensor([prompt])).logits[0, -1]
        expected = logits[ids].double().softmax(-1).tolist()
        assert [answer["probs"][name] for name in names] == pytest.approx(expected, abs=1e-5)
    assert bara("evaluate", out, "--task", speaking.rows, "--out", tmp_path / "scores").code == 0
    engine = RunEngine(bp.load_system(out, with_rows=False), samples=0)
    served = engine.compute(engine.read(rows)[0])
    assert [answer.said["probs"] for answer in served] == [pytest.approx(row["probs"]) for row in answers]


def test_the_prompt_of_an_export_is_the_templates(speaking: Place, tmp_path: Path, bara: Bara) -> None:
    out, to = tmp_path / "run", tmp_path / "lora"
    assert bara(*speaking.arguments(out, "lora"), "--chat", "--system", "Sort.").code == 0
    assert "chat" in read_json(out / CONFIG)
    assert "Next: " in bara("export", out, "--out", to, "--overwrite").out.splitlines()[-1]
    ask = json.loads((to / "export.json").read_text())["ask"]
    row = questions()[3]
    tokenizer = PreTrainedTokenizerFast.from_pretrained(speaking.backbone)
    sent = tokenizer(ask["prompt"].replace("{text}", row["question"]), add_special_tokens=False)["input_ids"]
    assert sent == asked(speaking, row["question"])
    written = tokenizer.apply_chat_template(ask["messages"], add_generation_prompt=True, tokenize=False)
    assert written.strip() == ask["prompt"].strip()
    assert ask["front_tokens"] == []


def test_python_takes_the_same_settings(speaking: Place, tmp_path: Path) -> None:
    how = {"method": "lora", "model": str(speaking.backbone), "steps": 1, "calibrated": False}
    run = bp.train(task=str(speaking.rows), chat=True, system="Sort.", out=tmp_path / "run", **how)
    prompts = [list(tokens) for tokens in run.split("test").token_ids]
    asks = [row.question.removesuffix("\nAnswer:") for row in run.task.test]
    assert prompts == [asked(speaking, said) for said in asks]
    again = bp.train(task=str(speaking.rows), out=tmp_path / "run", resume=True)
    assert again.split("test").token_ids == run.split("test").token_ids
    report = bp.evaluate(run, run.task)  # a task in memory is asked in the same way
    assert report["metrics"]["0"] == bp.evaluate(run)["metrics"]["0"]
