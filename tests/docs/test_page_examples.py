"""The examples of pages that train something: run as they are printed, or with fewer steps, they learn."""

import math
import re
from pathlib import Path
from typing import Any

import pytest

import bara_pyro
from bara_pyro.core.prediction import predict

ROOT = Path(__file__).parents[2]


def blocks(page: str, short: dict[str, str] | None = None) -> list[str]:
    """Return the Python of a page, with what makes it short; each text has to be there."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for old, new in (short or {}).items():
        assert old in text
        text = text.replace(old, new)
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def run(code: str, names: dict[str, Any]) -> dict[str, Any]:
    exec(compile(code, "page", "exec"), names)
    return names


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_readme(capsys: pytest.CaptureFixture[str]) -> None:
    """The example prints a line for each text, here of a run with the bundled language model."""
    texts = ("My parcel has", "You charged my card", "Which films are")
    classes = ("wine", "cider")
    rows = [{"text": f"in spring number {i}", "label": classes[i % 2]} for i in range(12)]
    bara_pyro.train(task=rows, out="runs/tickets", steps=2, calibrated=False)
    [example] = blocks("README.md", dict.fromkeys(texts, "in spring number 1"))
    run(example, {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(texts)
    assert {line.split()[0] for line in lines} <= {*classes}


def test_from_adapter() -> None:
    """The example writes three files of the microworld's rows, which the commands below it read."""
    _, example = blocks("docs/from_adapter.md")
    run(example, {})
    for name, rows in (("own", 40), ("new", 40), ("test", 200)):
        task = bara_pyro.load_task(f"{name}.csv")
        assert len(task.train) + len(task.test) == rows
        assert task.labels == ("A", "B", "C", "D")


@pytest.mark.slow
def test_generation(capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = blocks("docs/generation.md")
    replies = run(code, {})["replies"]
    assert len(replies) == 12
    assert len(capsys.readouterr().out.splitlines()) == 24
    # It has learnt how replies go: three clauses, each with its full stop, and then the end.
    assert sum(reply["ended"] for reply in replies) >= 10
    assert sum(reply["reply"].count(" .") for reply in replies) >= 24


def nats_per_token(names: dict[str, Any]) -> float:
    """Score the replies of `test` under the mixture of draws."""
    rows = range(len(names["test"]))
    log_probs = predict(names["model"], names["guide"], names["test"].batch(rows), samples=10)
    tokens = sum(len(reply.reply) for row in rows for reply in names["test"].rows[row])
    return float((math.log(len(log_probs)) - log_probs.logsumexp(0)).sum()) / tokens


@pytest.mark.slow
def test_replies() -> None:
    _, block = blocks("docs/generation.md")
    given = {"bp": bara_pyro, "chat": bara_pyro.load_replies("micro-chat")}
    untrained = nats_per_token(run(block.split("for step in")[0], dict(given)))
    assert nats_per_token(run(block, dict(given))) < untrained - 0.05


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated", "ignore:'pin_memory' argument")
def test_reward() -> None:
    pytest.importorskip("trl")
    [block] = blocks("docs/reward.md")
    found = run(block, {})
    assert found["right"] > 0.15 + max(found["longer"], 1 - found["longer"])


@pytest.mark.slow
def test_transformers(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("accelerate")
    quiet = 'max_steps=60, disable_tqdm=True, save_strategy="no", dataloader_pin_memory=False'
    short = {"max_steps=200": quiet, "(task.train, task.test)": "(task.train[:128], task.test[:64])"}
    names: dict[str, Any] = {}
    train, generate, _ = blocks("docs/transformers.md", short)  # the third is for lm-eval
    run(train, names)
    run(generate, names)
    history = [logged for logged in names["trainer"].state.log_history if "nll" in logged]
    assert history[-1]["nll"] < history[0]["nll"]
    assert {"loss", "nll", "kl_phi", "kl_theta", "grad_norm", "learning_rate"} <= history[0].keys()
    said = capsys.readouterr().out
    assert "eval_accuracy" in said
    assert said.count("the guest lives in") == 4


def test_the_readme_is_short_and_its_links_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    for target in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", text):
        assert (ROOT / target).exists(), target
