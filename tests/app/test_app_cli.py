"""The commands as a stranger meets them: help, lists, tables at 80 columns, the demonstration."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from app_cases import Bara, Place, assert_one_sentence, files_of, save_backbone

from bara_pyro.cli import demo as demonstration
from bara_pyro.data import SOURCES
from bara_pyro.methods import METHODS
from bara_pyro.microworld import TASKS
from bara_pyro.microworld.tokenizer import build_tokenizer
from bara_pyro.runs.store import read_json

COMMANDS = (
    *("train", "evaluate", "predict", "inspect", "prune", "params", "methods", "tasks", "demo"),
    "microworld",
)
OPTIONS = (
    *("--method", "--model", "--task", "--data-dir", "--out", "--seed", "--steps", "--batch-size", "--lr"),
    *("--samples", "--device", "--dtype", "--resume", "--set", "--config", "--labels", "--too-long"),
    *("--test-file", "--test-fraction", "--validation-rows", "--revision"),
)


def imported_by(arguments: str) -> set[str]:
    code = (
        "import sys; from bara_pyro.cli import app as cli; sys.argv = ['bara', *sys.argv[1:]]\n"
        "try:\n    cli.main()\nexcept SystemExit:\n    pass\n"
        "print('LOADED', *sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments.split()], capture_output=True, text=True, check=True
    )
    return set(done.stdout.rsplit("LOADED", 1)[1].split())


def test_help_loads_nothing_heavy() -> None:
    assert not imported_by("--help") & {"torch", "transformers", "pydantic", "matplotlib"}


def test_lists_load_no_scores_and_no_pyplot() -> None:
    assert not imported_by("methods") & {"torchmetrics", "matplotlib.pyplot", "datasets"}


@pytest.mark.parametrize("command", [[], *([c] for c in COMMANDS), ["microworld", "build"]])
def test_help_says_what_everything_is(command: list[str], bara: Bara) -> None:
    result = bara(*command, "--help")
    assert result.code == 0
    assert "Usage: bara" in result.out
    # Each option's line goes on, or the next one starts, with words about it.
    for line in result.out.splitlines():
        option = re.match(r"│ \*?\s*(--[a-z-]+)\s+(<.*?>|[A-Z=]+)?(.*)│", line)
        if option:
            assert re.search(r"[a-z]{2}", option.group(3)), line
    if not command:
        assert all(name in result.out for name in COMMANDS)


def test_train_has_the_options_that_error_texts_name(bara: Bara) -> None:
    text = bara("train", "--help").out
    assert all(option in text for option in OPTIONS)


def test_usage_errors(bara: Bara) -> None:
    for arguments in (["train"], ["nothing"], ["train", "--out", "x", "--steps", "many"]):
        result = bara(*arguments)
        assert result.code == 2
        assert "Traceback" not in result.err


def test_lists(bara: Bara) -> None:
    methods = bara("methods")
    assert methods.code == 0
    assert all(name in methods.out for name in METHODS)
    tasks = bara("tasks")
    assert tasks.code == 0
    assert all(name in tasks.out for name in (*SOURCES, *TASKS))
    assert max(map(len, (methods.out + tasks.out).splitlines())) <= 90


def test_rows_of_a_task(place: Place, bara: Bara) -> None:
    result = bara("tasks", place.rows, "--rows", 1)
    assert result.code == 0
    assert "answers no, yes" in result.out
    assert "Answer:" in result.out
    assert bara("tasks", "micro-wgs").code == 0
    assert_one_sentence(bara("tasks", "nothing"), "'nothing'")


@pytest.fixture(scope="module")
def small_world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The microworld's vocabulary under random weights: tasks that know the truth, in no time."""
    return save_backbone(tmp_path_factory.mktemp("world"), tokenizer=build_tokenizer())


def test_demo_with_the_truth(small_world: Path, tmp_path: Path, bara: Bara) -> None:
    out = tmp_path / "demo"
    result = bara("demo", "--quick", "--out", out, "--model", small_world)
    assert result.code == 0, result.err
    assert files_of(out) == {
        "lora",
        "bara",
        "bara-gate",
        "index.html",
        "results.json",
        "results.md",
        "reliability-s10.png",
        "reliability-s0.png",
        "elbo.png",
    }
    rows = read_json(out / "results.json")["rows"]
    names = [(row["method"], row.get("S")) for row in rows]
    assert names == [
        ("no training", None),
        *((name, s) for name in ("LoRA", "BaRA", "BaRA gate") for s in (0, 10)),
        ("truth", None),
    ]
    assert float(rows[-1]["kl_truth"]) == 0
    assert all(row["kl_truth"] > 0 for row in rows[:-1])
    page = (out / "index.html").read_text()
    assert page.count("<img") == 3
    assert all(word in page for word in ("truth", "quick run", "S = 10", "chance alone"))
    table = result.out[result.out.index("acc, ECE") : result.out.index("Open ")]
    assert all(len(line) <= 80 for line in table.splitlines())
    assert "…" not in table


def test_demo_again_and_after_an_interruption(
    place: Place, tmp_path: Path, bara: Bara, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demonstration, "QUICK", {"train.steps": 3, "train.log_every": 1, "task.limit": 6})
    out = tmp_path / "demo"
    arguments = ["demo", "--quick", "--out", out, "--model", place.backbone, "--task", place.rows]
    assert bara(*arguments).code == 0
    (out / "lora" / "notes.txt").write_text("mine")
    trained: list[str] = []
    real = demonstration.run

    def run(config, folder, **options):
        if stop and config.method.name == "bara-gate":
            raise KeyboardInterrupt
        before = (folder / "guide.safetensors").exists()
        report = real(config, folder, **options)
        trained.append(f"{config.method.name} {'kept' if before else 'trained'}")
        return report

    monkeypatch.setattr(demonstration, "run", run)
    stop = True
    assert bara(*arguments).code != 0
    assert trained == ["lora trained", "bara trained"]  # a finished demonstration starts again
    stop = False
    trained.clear()
    result = bara(*arguments)
    assert result.code == 0
    assert trained == ["lora kept", "bara kept", "bara-gate trained"]  # an interrupted one goes on
    assert "truth" not in result.out
    trained.clear()
    assert bara(*arguments, "--seed", 1).code == 0
    assert set(trained) == {"lora trained", "bara trained", "bara-gate trained"}
    assert (out / "lora" / "notes.txt").read_text() == "mine"


def test_microworld_build(tmp_path: Path, bara: Bara) -> None:
    result = bara("microworld", "build", "--out", tmp_path / "world", "--steps", 1)
    assert result.code == 0, result.err
    assert "parameters" in result.out
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= files_of(tmp_path / "world")
