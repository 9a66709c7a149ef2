"""Runs that learn replies, from the command line: trained, scored, resumed, generated from."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from app_cases import Bara, Place, assert_one_sentence, questions, word_tokenizer, write_rows
from transformers import GenerationMixin

import bara_pyro as bp
from bara_pyro.core.prediction import predict
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data.reply_tasks import load_replies, replies_from_rows
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError, DataError
from bara_pyro.runs.config import load_config
from bara_pyro.runs.evaluate import evaluate_system
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.manifest import record_files
from bara_pyro.runs.system import build_system
from bara_pyro.runs.train import train
from bara_pyro.untrusted.files import read_json, read_jsonl


def conversations() -> list[dict[str, str]]:
    return [
        {"id": row["id"], "prompt": row["question"], "completion": f" the {row['answer']} {row['answer']}"}
        for row in questions()
    ]


@pytest.fixture(scope="module")
def told(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("told")
    return Place(place.backbone, write_rows(folder / "replies.jsonl", conversations()))


@pytest.fixture(scope="module")
def run(told: Place, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that learnt replies for two epochs."""
    out = tmp_path_factory.mktemp("replies") / "run"
    settings = {"task__likelihood": "completion", "train__epochs": 2, "predict__samples": [0, 3]}
    system = build_system(told.config(**settings, method="bara-gate"))
    train(system, out)
    evaluate_system(system, out)
    return out


def test_epochs_are_steps(run: Path) -> None:
    config = read_json(run / "bara_config.json")["config"]
    assert config["train"]["steps"] == 2 * 32 / 4  # 32 of 40 rows are trained on, four a step
    assert config["train"]["epochs"] is None
    assert config["task"]["max_length"] == 2048


def test_two_passes_where_nobody_says(told: Place) -> None:
    config = told.config(task__likelihood="completion", train__steps=None, method="lora")
    system = build_system(config)
    assert system.config.train.steps == 2 * 32 / 4  # 32 of 40 rows are trained on, four a step


def test_scores_of_replies(run: Path) -> None:
    metrics = read_json(run / "metrics.json")
    assert set(metrics["metrics"]) == {"0", "3"}
    system = bp.load_system(run)
    split = system.encoded("test")
    rows = {row["id"]: row for row in read_jsonl(run / "predictions.jsonl")}
    for samples in (0, 3):
        log_probs = predict(system.model, system.guide, split.batch(range(len(split))), samples=samples)
        mixture = log_probs.logsumexp(0) - math.log(len(log_probs))
        nll = -float(mixture.sum()) / split.tokens
        found = metrics["metrics"][str(samples)]
        assert found["nll"] == pytest.approx(nll, abs=1e-5)
        assert found["perplexity"] == pytest.approx(math.exp(nll), rel=1e-4)
        assert found["nll_reply"] == pytest.approx(nll * split.tokens / len(split), rel=1e-4)
        assert (found["n"], found["tokens"]) == (8, 8 * 4)
        for row_id, value in zip(split.ids, mixture, strict=True):
            assert rows[row_id]["log_prob"][str(samples)] == pytest.approx(float(value), abs=1e-4)
            assert rows[row_id]["tokens"] == 4
    assert "majority_class" not in metrics


def test_commands_on_replies(run: Path, told: Place, tmp_path: Path, bara: Bara) -> None:
    arguments = ("--out", tmp_path / "run", "--model", told.backbone, "--task", told.rows)
    started = ("train", "--likelihood", "completion", *arguments, "--epochs", 1)
    found = bara(*started, "--samples", "0")
    assert found.code == 0
    assert "perplexity" in found.out
    assert "NLL in nats per token" in found.out
    assert bara("train", "--resume", "--out", tmp_path / "run").code == 0
    assert bara("evaluate", run, "--samples", "2").code == 0
    others = write_rows(tmp_path / "others.jsonl", conversations()[:5])
    assert bara("evaluate", run, "--task", others, "--out", tmp_path / "others").code == 0
    assert read_json(tmp_path / "others" / "metrics.json")["metrics"]["0"]["n"] == 5
    for command in (
        ("predict", run, "--input", told.rows, "--output", tmp_path / "x.jsonl"),
        ("conformal", run),
        ("detect", run, "--calibration", told.rows),
        ("acquire", run, "--input", told.rows),
    ):
        assert_one_sentence(bara(*command), "learns replies", "--likelihood answer")
    exported = bara("export", run, "--out", tmp_path / "exported")
    assert_one_sentence(exported, "trained on replies", "load the run itself")
    assert_one_sentence(bara("inspect", run), "answers of one token each")
    pushed = bara("push", run, "me/it", "--offline", "--out", tmp_path / "hub")
    assert_one_sentence(pushed, "trained on replies", "upload me/it")
    assert not (tmp_path / "hub").exists()


def test_rows_that_changed_are_refused(run: Path, told: Place, tmp_path: Path, bara: Bara) -> None:
    before = told.rows.read_text()
    try:
        told.rows.write_text(before.replace("the yes yes", "the no yes"))
        assert_one_sentence(bara("evaluate", run, "--out", tmp_path / "out"), "has changed since")
    finally:
        told.rows.write_text(before)


def test_a_run_of_an_earlier_version_is_read(run: Path, tmp_path: Path) -> None:
    """Such a run may have been trained with rows on disk, which changed no number and is no setting now."""
    old = tmp_path / "old"
    shutil.copytree(run, old)
    stored = read_json(old / "bara_config.json")
    stored["config"]["task"]["streaming"] = True
    (old / "bara_config.json").write_text(json.dumps(stored))
    (old / "manifest.json").unlink()
    record_files(old, *(path.name for path in old.iterdir()))
    assert load_system(old).config == load_system(run).config


def test_packing_and_the_chat_template(told: Place, tmp_path: Path) -> None:
    packed = build_system(
        told.config(task__likelihood="completion", task__packing=True, task__max_length=24, train__steps=2)
    )
    assert len(packed.encoded("train")) < 32
    assert len(packed.encoded("test")) == 8
    assert packed.model.num_data == len(packed.encoded("train"))
    train(packed, tmp_path / "packed")
    with pytest.raises(DataError, match="no chat template"):
        build_system(told.config(task__likelihood="completion", task__chat=True))


def test_replies_that_are_cut_are_counted(told: Place, tmp_path: Path) -> None:
    system = build_system(told.config(task__likelihood="completion", task__max_length=7))
    assert any("had their reply cut to 7 tokens" in note for note in system.task.notes)
    with pytest.raises(DataError, match=r"prompt of row .* is 5 tokens long, .*--too-long drop"):
        build_system(told.config(task__likelihood="completion", task__max_length=4))
    with pytest.raises(DataError, match=r"raise task\.max_length"):
        build_system(told.config(task__likelihood="completion", task__max_length=4, task__too_long="drop"))


def test_generating(run: Path, tmp_path: Path, bara: Bara) -> None:
    asked = write_rows(tmp_path / "asked.jsonl", [{"prompt": row["question"]} for row in questions()[:5]])
    out = tmp_path / "replies.jsonl"
    command = ("generate", run, "--input", asked, "--output", out, "--replies", 3, "--max-new-tokens", 6)
    command = (*command, "--uncertainty", 4)
    assert bara(*command).code == 0
    rows = read_jsonl(out)
    expected = [(f"row-{i}", n) for i in range(1, 6) for n in range(3)]
    assert [(row["id"], row["number"]) for row in rows] == expected
    for row in rows:
        assert row["prompt"] == questions()[int(row["id"][4:]) - 1]["question"]
        assert len(row["token_texts"]) == len(row["epistemic"]) == row["tokens"]
        assert row["log_prob"] < 0
    whole = out.read_text()
    lines = whole.splitlines(keepends=True)
    out.write_text("".join(lines[:7]) + lines[7][:40])  # killed in the middle of a line
    resumed = bara(*command, "--resume")
    assert resumed.code == 0
    assert f"8 replies written to {out}, which had 7 before" in " ".join(resumed.out.split())
    told = json.loads(bara(*command, "--resume", "--json").out)
    assert (told["replies"], told["written"]) == (15, 0)
    again = read_jsonl(out)
    assert [row["reply"] for row in again] == [row["reply"] for row in rows]
    assert [row["log_prob"] for row in again] == pytest.approx([row["log_prob"] for row in rows], abs=1e-5)
    assert_one_sentence(bara(*command, "--resume", "--seed", "1"), "with other settings", "--overwrite")
    said = "already exists: give --resume to continue it, or --overwrite to replace it, or another --output"
    assert_one_sentence(bara(*command), said)
    assert bara(*command, "--overwrite").code == 0
    assert_one_sentence(bara(*command[:5], asked, "--overwrite"), "the input")
    shown = bara("generate", run, "--prompt", "is the fox red ?", "--replies", 2, "--json")
    assert [row["number"] for row in json.loads(shown.out)] == [0, 1]
    unread = bara("generate", run, "--prompt", "xyzzy plugh", "--max-new-tokens", 2)
    assert "Note: 100 % of the tokens of the prompts are unknown to the tokenizer" in unread.out


def test_a_resumed_command_keeps_no_reply_to_another_prompt(
    run: Path, told: Place, tmp_path: Path, bara: Bara
) -> None:
    """What changes the prompt's tokens is refused, of texts and messages; fewer prompts are not."""
    speaking = word_tokenizer()
    speaking.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}Answer: "
    model = shutil.copytree(told.backbone, tmp_path / "model")
    speaking.save_pretrained(model)
    texts, messages, out = (tmp_path / f"{name}.jsonl" for name in ("texts", "messages", "replies"))
    asked = [{"id": row["id"], "prompt": row["question"]} for row in questions()[:3]]
    write_rows(texts, asked)
    write_rows(messages, [{**r, "prompt": [{"role": "user", "content": r["prompt"]}]} for r in asked])
    command = ("generate", run, "--model", model, "--output", out, "--max-new-tokens", 3, "--input")
    for file, chat in ((texts, ()), (texts, ("--chat",)), (messages, ())):
        out.unlink(missing_ok=True)
        assert bara(*command, file, *chat).code == 0
        whole, before = out.read_text(), file.read_text()
        out.write_text("".join(whole.splitlines(keepends=True)[:2]))
        kept = out.read_text()
        file.write_text(before.replace("is the", "is"))
        refused = bara(*command, file, *chat, "--resume")
        assert_one_sentence(refused, f"another prompt under the id {asked[0]['id']!r}", "--overwrite")
        assert out.read_text() == kept
        file.write_text(before)
        if file == texts:
            other = () if chat else ("--chat",)
            refused = bara(*command, file, *other, "--resume")
            assert_one_sentence(refused, "this prompt with other tokens", "chat setting")
            assert out.read_text() == kept
        assert bara(*command, file, *chat, "--resume").code == 0
        assert [row["reply"] for row in read_jsonl(out)] == [
            json.loads(line)["reply"] for line in whole.splitlines()
        ]
        assert bara(*command, file, *chat, "--resume", "--limit", 1, "--replies", 2).code == 0
        assert len(read_jsonl(out)) == 4


def test_a_batch_is_as_large_as_the_budget_allows(
    run: Path, bara: Bara, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what is generated and of what is judged; the replies are the same."""
    sizes: list[int] = []
    generated, told = GenerationMixin.generate, AdaptedLM.forward

    def counted(self: GenerationMixin, **options: Any) -> Any:
        sizes.append(len(options["input_ids"]))
        return generated(self, **options)

    def judged(self: AdaptedLM, batch: Batch) -> torch.Tensor:
        sizes.append(len(batch))
        return told(self, batch)

    monkeypatch.setattr(GenerationMixin, "generate", counted)
    monkeypatch.setattr(AdaptedLM, "forward", judged)
    command = ("generate", run, "--prompt", "is the fox red ?", "--replies", 4, "--max-new-tokens", 4)
    command = (*command, "--uncertainty", 2, "--json")
    found = []
    for options, expected in (((), [4, 4]), (("--memory-budget", 1), [1] * 8)):
        sizes.clear()
        shown = bara(*command, *options)
        assert shown.code == 0
        assert sizes == expected
        found.append([row["reply"] for row in json.loads(shown.out)])
    assert found[0] == found[1]


def test_a_page_of_what_was_generated(run: Path, tmp_path: Path, bara: Bara) -> None:
    out, page = tmp_path / "replies.jsonl", tmp_path / "replies.html"
    command = ("generate", run, "--max-new-tokens", 4, "--uncertainty", 3, "--page", page)
    command = (*command, "--prompt", "is the fox red ?", "--replies", 2)
    found = bara(*command, "--output", out, "--json")
    assert json.loads(found.out)["page"] == str(page)
    shown = page.read_text()
    assert "<h1>Replies of run</h1>" in shown
    assert "estimates from 3 draws" in shown
    assert shown.count("data-note=") == sum(row["tokens"] for row in read_jsonl(out))
    out.write_text(out.read_text().splitlines(keepends=True)[0])
    page.unlink()
    assert bara(*command, "--output", out, "--resume").code == 0
    assert page.read_text() == shown  # of the whole file, though half of it was there
    assert bara(*command, "--output", out, "--resume").code == 0  # the page is written anew
    assert_one_sentence(bara(*command), "replies.html already exists", "--overwrite")
    assert bara(*command, "--overwrite").code == 0  # without a file of replies
    page.write_text("<p>my own</p>")
    assert_one_sentence(bara(*command, "--overwrite"), "was not written by bara", "--page")
    assert page.read_text() == "<p>my own</p>"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--input"),
        (("--prompt", "is", "--page", "x.html"), "add for example --uncertainty 10"),
        (("--prompt", "is", "--page", "x.txt", "--uncertainty", "2"), "x.txt does not end in .html"),
        (("--prompt", "is", "--page", "/proc/x/x.html", "--uncertainty", "2"), "Cannot write"),
        (("--prompt", "is", "--input", "x.jsonl"), "--input x.jsonl and --prompt both give prompts"),
        (("--prompt", "is \udcff"), "is not valid Unicode"),
        (
            ("--prompt", "is", "--chat"),
            "leave out chat=True (--chat)",
        ),
        (("--prompt", "is", "--resume"), "--resume"),
        (("--prompt", "is", "--output", "x.csv"), ".jsonl"),
        (("--input", "absent.jsonl"), "absent.jsonl"),
        (("--prompt", "is", "--draws", "many"), "'many'"),
        (("--prompt", "is", "--top-p", "0"), "top_p is 0"),
        (
            ("--prompt", "is", "--draws", "mean", "--temperature", "0", "--seed", "5"),
            "--seed has no effect with --draws mean --temperature 0",
        ),
        (("--prompt", "is", "--memory-budget", "0"), "--memory-budget"),
        (("--prompt", "is", "--max-new-tokens", "64"), "(--max-new-tokens 63) or fewer"),
    ],
)
def test_generating_what_cannot_be(run: Path, bara: Bara, arguments: tuple[str, ...], said: str) -> None:
    assert_one_sentence(bara("generate", run, *arguments), said)


def test_tasks_of_replies() -> None:
    chat = load_replies("micro-chat", validation_rows=10)
    assert [len(rows) for rows in (chat.train, chat.validation, chat.test)] == [320, 10, 120]
    prompts = [{row.prompt for row in rows} for rows in (chat.train, chat.validation, chat.test)]
    assert not prompts[0] & prompts[2]
    code = load_replies("micro-code")
    assert [len(rows) for rows in (code.train, code.validation, code.test)] == [640, 100, 164]
    assert len({row.prompt for rows in (code.train, code.validation, code.test) for row in rows}) == 904
    with pytest.raises(DataError, match="Unknown task of replies 'boolq'"):
        load_replies("boolq")
    with pytest.raises(ConfigError, match="validation_rows is 81"):
        load_replies("micro-chat", validation_rows=81)


def test_rows_of_ones_own() -> None:
    rows = conversations()
    task = replies_from_rows(rows, name="mine", validation_rows=4)
    assert [len(part) for part in (task.train, task.validation, task.test)] == [28, 4, 8]
    again = replies_from_rows(rows[::-1], validation_rows=4)
    assert {row.id for row in again.test} == {row.id for row in task.test}
    with pytest.raises(DataError, match="too few rows"):
        replies_from_rows(rows[:2])
    with pytest.raises(DataError, match="share 40 ids"):
        replies_from_rows(rows, rows)
    with pytest.raises(ConfigError, match="test_fraction is 2"):
        replies_from_rows(rows, test_fraction=2)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"task.packing": True}, "packing=True needs likelihood='completion'"),
        (
            {"task.likelihood": "completion", "task.labels": "texts"},
            "labels='texts' needs likelihood='answer'",
        ),
        ({"task.likelihood": "completion", "task.text_column": "x"}, "text_column='x' needs"),
    ],
)
def test_settings_that_do_not_go_together(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config(overrides=settings)


def test_rows_of_the_other_kind(place: Place) -> None:
    with pytest.raises(ConfigError, match=r"ReplyTask: set task\.likelihood='completion'"):
        build_system(place.config(), task=replies_from_rows(conversations()))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="no reply to learn"):
        replies_from_rows([{"text": "a"}] * 4)


def test_the_page_tells_draws_that_differ(place: Place, tmp_path: Path, bara: Bara) -> None:
    """A point has one, an ensemble its members, whatever number is asked for."""
    for method, drawn in (("lora", "1 draw,"), ("ensemble", "3 draws,"), ("bara-gate", "5 draws,")):
        out, page = tmp_path / method, tmp_path / f"{method}.html"
        train(build_system(place.config(method__name=method, train__steps=2)), out)
        asked = ("--prompt", "is the fox", "--uncertainty", 5, "--max-new-tokens", 2, "--page", page)
        told = bara("generate", out, *asked)
        assert told.code == 0, told.err
        assert f"estimates from {drawn}" in " ".join(page.read_text().split())
