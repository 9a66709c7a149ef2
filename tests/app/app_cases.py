"""A tiny random language model, a task in a file, and the command line, for all tests of this folder."""

import json
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from once import parser
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from bara_pyro.cli import app as cli
from bara_pyro.cli import app as offering
from bara_pyro.metrics.base import METRICS, Metric, register_metric
from bara_pyro.runs.config import RunConfig, load_config

COLOURS = ("red", "blue", "green", "grey")
THINGS = ("fox", "hen", "cat", "owl", "bee", "ant", "cow", "pig", "ram", "elk")
WORDS = ("is", "the", "?", "\n", "Answer:", "A)", "B)", "no", "yes", "A", "B", *COLOURS, *THINGS)


def save_backbone(folder: Path, seed: int = 0, tokenizer: PreTrainedTokenizerFast | None = None) -> Path:
    """Write a random Qwen2 of two layers as an ordinary Hugging Face folder."""
    tokenizer = tokenizer or word_tokenizer()
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        initializer_range=0.5,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=1,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def word_tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {word: i for i, word in enumerate(["<unk>", "<end>", *WORDS])}
    core = Tokenizer(models.WordLevel(vocabulary, "<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", eos_token="<end>")


def questions() -> list[dict[str, str]]:
    """Forty rows: is a thing of a colour? Things early in the alphabet are red or blue."""
    return [
        {
            "id": f"{thing}-{colour}",
            "question": f"is the {thing} {colour} ?",
            "answer": "yes" if (thing < "d") == (colour in ("red", "blue")) else "no",
        }
        for thing in THINGS
        for colour in COLOURS
    ]


def write_rows(path: Path, rows: Iterable[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


ONCE = {"adapter.calibrated": False}


@dataclass
class Place:
    """Where the backbone and the rows are, and what every run here is started with.

    Without split-half calibration, which so few rows have by default: what trains twice has its own tests.
    """

    backbone: Path
    rows: Path

    def config(self, **settings: object) -> RunConfig:
        """The configuration of a run here; of a dotted key, `__` stands for the dot."""
        named = {"backbone.name": str(self.backbone), "task.name": str(self.rows), **ONCE}
        return load_config(overrides=named | {key.replace("__", "."): v for key, v in settings.items()})

    def arguments(self, out: Path, method: str = "bara-gate", **settings: object) -> list[str]:
        settings = {"predict.samples": [0, 3], "train.steps": 8, **ONCE, **settings}
        pairs = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        paths = ["--out", str(out), "--model", str(self.backbone), "--task", str(self.rows)]
        return ["train", "--method", method, *paths, *pairs]


@dataclass
class Result:
    code: int
    out: str
    err: str


Bara = Callable[..., Result]
COMMANDS = offering.OFFERED


def make_bara(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Bara:
    """Return the command line as it is installed, run in this process."""

    def run(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["bara", *map(str, arguments)])
        if offering.OFFERED is COMMANDS:  # where a test offers others a parser of its own is built
            monkeypatch.setattr("typer.main.get_command", lambda _: parser())
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        printed = capsys.readouterr()
        return Result(int(stopped.value.code or 0), printed.out, printed.err)

    return run


def assert_one_sentence(result: Result, *parts: str) -> None:
    """Assert that a command failed as a user's mistake should: one sentence, no traceback."""
    assert result.code != 0
    assert "Traceback" not in result.out + result.err
    lines = [line for line in result.err.splitlines() if line.strip()]
    assert len(lines) == 1, result.err
    assert lines[0].startswith("Error: ")
    assert lines[0].endswith(".")
    assert ". " not in lines[0].removeprefix("Error: ")[:-1], "more than one sentence"
    for part in parts:
        assert part in lines[0], (part, lines[0])


def assert_answers(rows: list[dict], names: list[str]) -> None:
    """Assert that predictions are distributions over these names, with uncertainty in two parts."""
    for row in rows:
        assert set(row) >= {"id", "label", "probs", "total", "aleatoric", "epistemic"}
        assert list(row["probs"]) == names
        assert sum(row["probs"].values()) == pytest.approx(1)
        assert row["label"] == max(row["probs"], key=row["probs"].__getitem__)
        assert row["total"] == pytest.approx(row["aleatoric"] + row["epistemic"], abs=1e-9)
        assert row["epistemic"] >= 0


def files_of(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def files_below(folder: Path) -> dict[str, bytes | str]:
    """Everything below a folder: the content of files, where links point, "folder" of a folder."""
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"link to {os.readlink(path)}"
        else:
            found[name] = "folder" if path.is_dir() else path.read_bytes()
    return found


def register_surprise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the NLL once more, as a metric named `surprise` of plain tensors, until the end of a test."""
    monkeypatch.setattr(METRICS, "_items", dict(METRICS))

    def surprise(log_probs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return -log_probs.gather(1, torch.as_tensor(labels)[:, None])[:, 0]

    def total(log_probs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return surprise(log_probs, labels).mean()

    register_metric(Metric("surprise", total, "nats", "min", 2, surprise, "surprise", "surprise"))
