"""Two processes train as one does with all rows; one that is lost costs nothing that was written."""

import json
import re
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from app_cases import ONCE, Bara, Place, assert_one_sentence, files_of
from ranks_driver import REPEATS, SETTINGS
from safetensors.torch import load_file
from torch.testing import assert_close

from bara_pyro.core.noise import seeded
from bara_pyro.errors import ConfigError
from bara_pyro.runs.config import load_config
from bara_pyro.runs.manifest import check_run
from bara_pyro.runs.sections import TrainConfig
from bara_pyro.runs.steps import check_shares, noise_of
from bara_pyro.runs.system import build_system
from bara_pyro.runs.train import train
from bara_pyro.untrusted.files import read_json, read_jsonl

WEIGHTS = ("adapter_model.safetensors", "guide.safetensors")


@pytest.fixture(scope="module")
def ran(place: Place, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list]]:
    root = tmp_path_factory.mktemp("ranks")
    settings = {
        "backbone.name": str(place.backbone),
        "task.name": str(place.rows),
        "train.steps": 8,
        "train.batch_size": 4,
        "train.checkpoint_every": 3,
        **ONCE,
    }
    driver = Path(__file__).parent / "ranks_driver.py"
    command = [sys.executable, str(driver), json.dumps(settings), str(root)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return root, json.loads(done.stdout.splitlines()[-1])


def weights(run: Path) -> dict[str, torch.Tensor]:
    return {name + key: value for name in WEIGHTS for key, value in load_file(run / name).items()}


def log(run: Path) -> list[dict]:
    return [{**record, "seconds": 0} for record in read_jsonl(run / "train_log.jsonl")]


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_two_processes_are_one_with_all_rows(name: str, ran) -> None:
    root, ends = ran
    for run in ("2", "1"):
        assert all(end == [0, ""] for end in ends[f"{name}: {run}"]), ends
    two, one = root / name / "two", root / name / "one"
    ours, theirs = weights(two), weights(one)
    for key, value in theirs.items():
        assert torch.equal(ours[key], value), key  # halves and doubles are exact
    for own, other in zip(log(two), log(one), strict=True):
        assert own == pytest.approx(other, rel=1e-6)


@pytest.mark.slow
def test_two_processes_are_one_with_all_rows_at_once(ran) -> None:
    root, ends = ran
    assert ends["lora at once"] == [[0, ""]]
    assert_close(weights(root / "lora" / "two"), weights(root / "lora" / "whole"), atol=1e-5, rtol=0)


@pytest.mark.slow
def test_the_gradient_is_the_same_in_expectation(ran) -> None:
    """Each process draws its own Phi, one alone draws one for all rows: both are unbiased."""
    root, _ = ran
    one, two = (load_file(root / f"gradients{count}") for count in (1, 2))
    error = ((one["variance"] + two["variance"]) / REPEATS).sqrt()
    z = (one["mean"] - two["mean"]) / error.clamp_min(1e-12)
    assert z[error > 0].square().mean() < 1.2
    assert z.abs().max() < 6


@pytest.mark.slow
def test_each_process_draws_noise_of_its_own(ran) -> None:
    """On a CPU, whose generator keeps the lower half of a seed; nor is it that of the initial values."""
    root, ends = ran
    assert ends["noise"] == [[0, ""], [0, ""]]
    with seeded(torch.device("cpu"), 0):  # the seed of the run
        initial = torch.rand(4).tolist()
    first, second = (read_json(root / f"noise{rank}.json") for rank in (0, 1))
    assert first != second
    assert initial not in (first, second)


def test_seeds_of_noise_differ_in_what_a_generator_keeps() -> None:
    """Neither runs nor processes share a seed, nor one with the initial values of a run."""
    seeds = [noise_of(seed, rank) for seed in range(200) for rank in range(8)]
    kept = {seed % 2**32 for seed in seeds} | set(range(200))
    assert len(kept) == len(seeds) + 200


@pytest.mark.slow
@pytest.mark.parametrize("name", ["killed", "first", "interrupted"])
def test_going_on_gives_the_same_bits(name: str, ran) -> None:
    root, ends = ran
    assert all(end == [0, ""] for end in ends[f"{name}, again"])
    run, whole = root / "stopped" / name, root / "stopped" / "whole"
    assert files_of(run) == files_of(whole)
    for file in (*WEIGHTS, "bara_config.json"):
        assert (run / file).read_bytes() == (whole / file).read_bytes(), file
    assert log(run) == log(whole)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "lost"), [("killed", 1), ("killed first", 0)])
def test_one_that_is_killed_stops_the_other_with_a_sentence(name: str, lost: int, ran) -> None:
    _, ends = ran
    assert ends[name][lost] == [-signal.SIGKILL, ""]
    code, said = ends[name][1 - lost]
    assert code == 0
    assert said.startswith("ProcessLostError: Stopped after step 5 of 8, because another process")
    assert said.endswith("with resume=True (--resume).")


@pytest.mark.slow
def test_a_signal_to_one_stops_both_at_the_same_step(ran) -> None:
    _, ends = ran
    (_, first), (_, second) = ends["interrupted"]
    assert first == second
    assert first.startswith("Stopped: Stopped after step 5 of 8")


@pytest.mark.slow
def test_a_loss_that_breaks_in_one_stops_both(ran) -> None:
    root, ends = ran
    (_, first), (_, second) = ends["infinite"]
    assert first == second
    assert first.startswith("TrainingError: Training stopped at step 4, the parameters after step 2 are kept")
    assert (root / "stopped" / "infinite" / "guide.safetensors").exists()


@pytest.mark.slow
def test_rows_that_cannot_be_shared_are_refused_before_anything_is_written(ran) -> None:
    assert not (ran[0] / "stopped" / "uneven").exists()
    for _, said in ran[1]["uneven"]:
        assert said.startswith("ConfigError: train.batch_size=3 cannot be divided evenly among 2 proc")


def test_shares_are_looked_at_before_processes_join(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    system = build_system(load_config(overrides={"method": "lora", "task.limit": 8, "train.batch_size": 3}))
    monkeypatch.setenv("WORLD_SIZE", "2")  # nobody else is there to join
    with pytest.raises(ConfigError, match="cannot be divided evenly among 2 processes"):
        train(system, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("batch_size", "accumulate", "processes", "said"),
    [
        (
            3,
            1,
            2,
            "train.batch_size=3 cannot be divided evenly among 2 processes: choose a multiple of 2.",
        ),
        (
            4,
            4,
            2,
            "train.accumulate=4 must divide the 2 rows per step of each of 2 processes: choose another",
        ),
        (4, 4, 1, ""),
        (6, 3, 2, ""),
    ],
)
def test_shares_of_a_step(batch_size: int, accumulate: int, processes: int, said: str) -> None:
    c = TrainConfig(batch_size=batch_size, accumulate=accumulate)
    with pytest.raises(ConfigError, match=re.escape(said)) if said else nullcontext():
        check_shares(c, processes)


def test_a_batch_that_cannot_be_shared_removes_no_run(
    place: Place, bara: Bara, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what --overwrite replaces nothing is gone, and a new folder is not begun."""
    out = tmp_path / "run"
    assert bara(*place.arguments(out, "lora")).code == 0
    monkeypatch.setenv("WORLD_SIZE", "2")
    for folder in (out, tmp_path / "new"):
        arguments = [*place.arguments(folder, "lora"), "--overwrite", "--batch-size", 3]
        assert_one_sentence(bara(*arguments), "train.batch_size=3", "2 processes")
    check_run(out)
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_launched(place: Place, tmp_path: Path, bara: Bara) -> None:
    """The command under a launcher: one process writes and prints, and another command reads the run."""
    command = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    out = tmp_path / "run"
    arguments = [*place.arguments(out, "lora"), "--json"]
    done = subprocess.run(
        [sys.executable, "-m", *command, "-m", "bara_pyro", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == read_json(out / "metrics.json")
    assert bara("evaluate", out).code == 0
    alone = tmp_path / "alone"
    assert bara(*place.arguments(alone, "lora")).code == 0
    assert_close(weights(out), weights(alone), atol=1e-5, rtol=0)


@pytest.mark.slow
def test_a_language_model_that_is_sharded(place: Place, tmp_path: Path) -> None:
    """By the block of docs/scale.md, against the whole one."""
    driver, out = Path(__file__).parent / "fsdp_driver.py", tmp_path / "found.json"
    command = [sys.executable, str(driver), str(place.backbone), str(out)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = read_json(out)
    assert found["sharded"]["losses"] == pytest.approx(found["whole"]["losses"], rel=1e-5)
    assert found["sharded"]["probabilities"] == pytest.approx(found["whole"]["probabilities"], abs=1e-6)
    assert found["sharded"]["weights"] < 0.6 * found["whole"]["weights"]
