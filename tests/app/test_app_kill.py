"""A run killed by SIGKILL at any moment and gone on with is the uninterrupted run, bit for bit."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from app_cases import Bara, Place, files_of
from kill_driver import MOMENTS

from bara_pyro.untrusted.files import read_json, read_jsonl

EXACT = (
    *("bara_config.json", "adapter_config.json", "adapter_model.safetensors", "guide.safetensors"),
    "predictions.jsonl",
)


def assert_same_run(one: Path, other: Path) -> None:
    """Compare two runs: bytes, and what holds wall-clock times without them."""
    assert files_of(one) == files_of(other)
    for name in EXACT:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    first, second = (
        [{**r, "seconds": 0} for r in read_jsonl(run / "train_log.jsonl")] for run in (one, other)
    )
    assert first == second
    untimed = {"wall_clock_train_s": 0, "wall_clock_evaluate_s": 0}
    assert read_json(one / "metrics.json") | untimed == read_json(other / "metrics.json") | untimed


@pytest.fixture(scope="module")
def killed(place: Place, tmp_path_factory: pytest.TempPathFactory):
    root = tmp_path_factory.mktemp("killed")
    settings = {
        "backbone.name": str(place.backbone),
        "task.name": str(place.rows),
        "train.steps": 12,
        "train.checkpoint_every": 5,
        "train.lr": 0.01,
        "predict.samples": [2],
    }
    driver = Path(__file__).parent / "kill_driver.py"
    command = [sys.executable, str(driver), json.dumps(settings), str(root)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return root, json.loads(done.stdout)


@pytest.mark.slow
def test_every_process_was_killed_and_every_one_after_it_finished(killed) -> None:
    _, ends = killed
    assert ends.pop("") == [0]
    assert ends.pop("often") == [-signal.SIGKILL] * 3 + [0]
    assert set(ends) == set(MOMENTS)
    assert all(end == [-signal.SIGKILL, 0] for end in ends.values()), ends


@pytest.mark.parametrize("name", [*map(str, range(len(MOMENTS))), "often"], ids=[*MOMENTS, "again and again"])
@pytest.mark.slow
def test_going_on_after_a_kill_gives_the_same_bits(name: str, killed) -> None:
    root, _ = killed
    assert_same_run(root / name, root / "uninterrupted")


# `bara`, which says so when it begins its 25th step, and waits there.
HELD = """
import itertools, signal, sys
from bara_pyro.runs import steps
begun, real = itertools.count(1), steps.micro_batches
def held(*given, **more):
    if next(begun) == 25:
        print("under way", file=sys.stderr, flush=True)
        signal.pause()
    return real(*given, **more)
steps.micro_batches = held
from bara_pyro.cli import app
app.main()
"""


@pytest.mark.slow
def test_the_command_killed_from_outside(place: Place, tmp_path: Path, bara: Bara) -> None:
    """`bara train`, killed when it is under way; then `bara train --resume`, no settings."""
    settings = {"train.steps": 80, "train.checkpoint_every": 3, "task.limit": 8}
    assert bara(*place.arguments(tmp_path / "whole", **settings)).code == 0
    out = tmp_path / "killed"
    command = [sys.executable, "-c", HELD, *place.arguments(out, **settings), "--quiet"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "under way\n" in process.stderr
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert (out / "checkpoint.safetensors").exists()
    assert bara("train", "--out", out, "--resume").code == 0
    assert_same_run(out, tmp_path / "whole")
