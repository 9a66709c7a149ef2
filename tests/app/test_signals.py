"""Ctrl-C, SIGTERM, SIGHUP: a line on what is kept, the right exit code, and the same bits after --resume."""

import os
import pty
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from app_cases import Bara, Place, assert_one_sentence

from bara_pyro.cli.terminal import Outlet
from bara_pyro.core.svi import SVI
from bara_pyro.runs import evaluate as evaluation
from bara_pyro.runs import train as training
from bara_pyro.runs.manifest import CHECKPOINT

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
def test_stopped_while_training(
    number: signal.Signals,
    place: Place,
    finished: Path,
    tmp_path: Path,
    bara: Bara,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, steps = SVI.step, [0]

    def step(svi: SVI, *batches: object) -> float:
        steps[0] += 1
        if steps[0] == 5:
            os.kill(os.getpid(), number)  # in the middle of the fifth step
        return real(svi, *batches)

    before = signal.getsignal(number)
    out = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(SVI, "step", step)
        result = bara(*place.arguments(out))
    assert signal.getsignal(number) is before
    assert result.code == CODES[number]
    said = result.err.splitlines()[-1]
    assert all(part in said for part in ("step 5 of 8", f"`bara train --resume --out {out}`"))
    again = bara("evaluate", out)
    assert again.code == 2
    assert "--resume" in again.err
    assert bara("train", "--resume", "--out", out).code == 0
    for name in ("adapter_model.safetensors", "guide.safetensors", "predictions.jsonl"):
        assert (out / name).read_bytes() == (finished / name).read_bytes()


def test_what_nohup_ignores_is_ignored(place: Place, tmp_path: Path, bara: Bara) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    real = SVI.step

    def step(svi: SVI, *batches: object) -> float:
        os.kill(os.getpid(), signal.SIGHUP)
        return real(svi, *batches)

    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(SVI, "step", step)
            assert bara(*place.arguments(tmp_path / "run")).code == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


ON_A_TERMINAL = """
import os, signal, sys
os.close(os.open(os.ttyname(0), os.O_RDWR))  # of a new session: its terminal from now on
signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, "-m", "bara_pyro", *sys.argv[1:]])
"""


@pytest.mark.slow
def test_a_terminal_that_is_closed(place: Place, tmp_path: Path) -> None:
    """Nothing can be said there any more, and the last words of a bar are tried all the same."""
    ours, theirs = pty.openpty()
    out = tmp_path / "run"
    arguments = place.arguments(out, **{"train.steps": 1_000_000})
    process = subprocess.Popen(
        [sys.executable, "-c", ON_A_TERMINAL, *arguments],
        **dict.fromkeys(("stdin", "stdout", "stderr"), theirs),  # type: ignore[call-overload]
        start_new_session=True,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(theirs)
    try:
        seen = b""
        while b"nll" not in seen and (part := os.read(ours, 4096)):
            seen += part
        os.close(ours)
        assert process.wait(300) == 129
    finally:
        process.kill()
    assert (out / CHECKPOINT).exists()


READERS = {"train --help": 0, "nonsense": 2}


@pytest.mark.parametrize("arguments", READERS)
def test_a_reader_that_is_gone_changes_no_exit_code(arguments: str) -> None:
    """As `head` is when it has read enough."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "bara_pyro", *arguments.split()]
    try:
        done = subprocess.run(command, stdout=write, stderr=write, check=False, timeout=300)
    finally:
        os.close(write)
    assert done.returncode == READERS[arguments]


def test_what_nobody_reads_is_dropped() -> None:
    read, write = os.pipe()
    os.close(read)
    with Outlet(write, "w") as outlet:
        assert [outlet.write(b"some"), outlet.write(b"more!")] == [4, 5]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_an_error_once() -> None:
    with Outlet(os.open("/dev/full", os.O_WRONLY), "w") as outlet:
        with pytest.raises(OSError, match="space"):
            outlet.write(b"some")
        assert outlet.write(b"more!") == 5  # at the end of the process, for what is still buffered


GONE = {
    "training": (SVI, "step", 3),
    "fitting": (training, "_fit_corrections", 1),
    "evaluating": (evaluation, "environment", 1),
}


@pytest.mark.parametrize(
    ("when", "how"),
    [("training", "removed"), ("training", "moved"), ("fitting", "moved"), ("evaluating", "removed")],
)
def test_a_folder_that_is_gone_while_it_is_written(
    when: str, how: str, place: Place, tmp_path: Path, bara: Bara, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, calls, (owner, name, at) = tmp_path / "run", [0], GONE[when]
    real = getattr(owner, name)

    def gone(*given: object) -> object:
        calls[0] += 1
        if calls[0] == at:
            shutil.rmtree(out) if how == "removed" else out.rename(tmp_path / "elsewhere")
        return real(*given)

    monkeypatch.setattr(owner, name, gone)
    found = bara(*place.arguments(out))
    assert_one_sentence(found, str(out), "removed or replaced")
    assert not out.exists()


def test_stopped_before_anything_is_written(
    place: Place, tmp_path: Path, bara: Bara, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("bara_pyro.runs.system.load_backbone", load)
    result = bara(*place.arguments(tmp_path / "run"))
    assert result.code == 143
    assert result.err.strip().startswith("Stopped")
    assert not (tmp_path / "run").exists()


def test_stopped_while_evaluating(
    place: Place, tmp_path: Path, bara: Bara, monkeypatch: pytest.MonkeyPatch
) -> None:
    def evaluate(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("bara_pyro.cli.running.evaluate_system", evaluate)
        result = bara(*place.arguments(tmp_path / "run"))
    assert result.code == 130
    assert "bara train --resume" in result.err.splitlines()[-1]


def test_what_nobody_foresaw_is_one_sentence_and_a_file(bara: Bara, monkeypatch: pytest.MonkeyPatch) -> None:
    def catalogue() -> None:
        raise KeyError("surprise")

    monkeypatch.setattr("bara_pyro.cli.catalogue.catalogue", catalogue)
    result = bara("methods")
    assert result.code == 1
    (line,) = result.err.splitlines()
    assert "KeyError" in line
    assert line.startswith("Error: ")
    file = Path(next(word for word in line.split() if "bara-traceback-" in word).rstrip(","))
    assert "in catalogue" in file.read_text()
    file.unlink()
    assert "Traceback" in bara("methods", "--debug").err
