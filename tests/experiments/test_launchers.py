"""In whatever processes the runs are worked on: every item has its result, a lost process costs one."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from launcher_cases import Number, square
from study_cases import load_records

from bara_pyro.atomic import write_json
from bara_pyro.errors import ConfigError
from experiments.engine import results
from experiments.engine.launchers import Lost, on_ray, processes, serial
from experiments.engine.results import locked
from experiments.engine.sweep import Run, sweep, work

ROOT = Path(__file__).parents[2]


def test_in_this_process_one_after_the_other() -> None:
    results = serial(square, [Number(1), Number(3)], 2)
    assert next(results)[1]["square"] == 1
    assert next(results)[1]["process"] == os.getpid()


@pytest.mark.slow
def test_a_killed_process_costs_the_item_it_was_at_and_is_replaced() -> None:
    numbers = [Number(value) for value in (1, 2, 3, 4)]
    results = dict(processes(square, numbers, 1))
    assert results.pop(Number(2)) == Lost("Its process was lost: killed, or out of memory.")
    assert [result["square"] for result in results.values()] == [1, 9, 16]
    assert {result["threads"] for result in results.values()} == {1}
    before, *after = (result["process"] for result in results.values())
    assert before != after[0] == after[1]
    assert os.getpid() not in (before, *after)


@pytest.mark.slow
def test_a_killed_sweep_goes_on_to_the_same_scores(job: Callable[..., Run], tmp_path: Path) -> None:
    """The sweep's own process is killed while its two workers are training: they end with it."""
    settings = {"train.steps": 50, "train.checkpoint_every": 15, "task.limit": 8}
    killed = tmp_path / "killed"
    jobs = [replace(job(method, **settings), folder=killed) for method in ("bara", "bara-gate")]
    outs = [run.out for run in jobs]
    driver = Path(__file__).with_name("sweep_driver.py")
    command = [sys.executable, str(driver), json.dumps([dict(j.settings) for j in jobs]), str(killed)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not any(lines(out / "train_log.jsonl") >= 20 for out in outs):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it was over before it could be killed"
    for out in outs:
        with locked(out):  # free once its worker is gone
            pass
    assert any((out / "checkpoint.safetensors").exists() for out in outs)
    assert not (killed / "records").exists()
    gone_on = sweep(jobs, launcher="serial")
    undisturbed = sweep([replace(j, folder=tmp_path / "undisturbed") for j in jobs], launcher="serial")
    for name, one in gone_on.items():
        for key in ("metrics", "sparsity", "config_hash"):
            assert one[key] == undisturbed[name][key]


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_a_run_waits_for_another_sweep_that_is_at_it(
    job: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is handed the lock finds the record that the other one wrote, and repeats nothing."""
    run = job()
    (record,) = sweep([replace(run, folder=tmp_path / "elsewhere")], launcher="serial").values()
    waiting, real = threading.Event(), results.fcntl.flock

    def flock(*arguments: Any) -> None:
        waiting.set()
        real(*arguments)

    with ThreadPoolExecutor(1) as pool, locked(run.out):
        monkeypatch.setattr(results.fcntl, "flock", flock)
        result = pool.submit(work, run)
        assert waiting.wait(timeout=60)
        assert not result.done()
        write_json(run.path, record)
    assert result.result() == record
    assert not (run.out / "train_log.jsonl").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # Ray's own sockets
def test_on_a_local_ray_cluster(job: Callable[..., Run], tmp_path: Path) -> None:
    pytest.importorskip("ray")
    jobs = [job(), job("bara"), job(**{"train.lr": 1e30})]
    found = sweep(jobs, launcher="ray", workers=2)
    here = sweep([replace(j, folder=tmp_path / "here") for j in jobs], launcher="serial")
    for j in jobs[:2]:
        assert found[j.name]["metrics"] == here[j.name]["metrics"]
    assert found[jobs[2].name]["failed"] == here[jobs[2].name]["failed"]
    assert load_records(tmp_path / "records") == sorted(found.values(), key=lambda r: r["config_hash"])


def test_without_ray_a_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"bara-pyro\[ray\]"):
        list(on_ray(square, [Number(1)], 1))
