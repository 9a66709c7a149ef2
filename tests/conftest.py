"""What every test starts from: fixed seeds, an empty Pyro parameter store, one torch thread."""

import os
import signal
from collections.abc import Iterator

import pyro
import pytest
import torch
from app_cases import Bara, Place, make_bara, questions, save_backbone, write_rows
from core_cases import shared_states
from once import draw_worlds_once, load_lm_once, verify_once

from bara_pyro.cli import terminal
from bara_pyro.core import program
from bara_pyro.lm import loading

# Of what tests start, too, as `make test` has it: several processes of two threads are slower than of one.
os.environ.setdefault("OMP_NUM_THREADS", "1")
loading.verify_once = program.verify_once = verify_once
loading._load_lm = load_lm_once
draw_worlds_once()
# torch keeps a seed for a device that it may find later, with the stack: milliseconds for each seed.
for device in (torch.cuda, torch.mtia, torch.xpu):
    if not device.is_available():
        device.manual_seed_all = lambda seed: None
# No file of a test has to outlast a power failure.
os.fsync = lambda descriptor: None


@pytest.fixture(autouse=True)
def clean_state() -> Iterator[None]:
    """Seed every generator and clear what a test before this one may have left behind."""
    torch.set_num_threads(1)
    pyro.set_rng_seed(0)  # Python's, NumPy's and torch's generators
    pyro.clear_param_store()
    terminal.mode = terminal.Mode()  # of a command called before with --json or --quiet
    yield
    pyro.clear_param_store()


@pytest.fixture(autouse=True, scope="module")
def shared_models() -> Iterator[None]:
    """Fail where a module has changed a language model that tests share."""
    before = shared_states()
    yield
    after = shared_states()
    changed = [arch for arch, state in before.items() if after[arch] != state]
    assert not changed, f"the language models {changed} that tests share are no longer what they were"


@pytest.fixture(autouse=True)
def interruptible() -> None:
    """Let signals reach what is tested, also in the background of a shell and under nohup."""
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A tiny language model and a file of rows."""
    folder = tmp_path_factory.mktemp("place")
    return Place(save_backbone(folder / "backbone"), write_rows(folder / "colours.jsonl", questions()))


@pytest.fixture
def small_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few pixels: nobody looks at them."""
    monkeypatch.setattr("bara_pyro.report.style.DPI", 40)


@pytest.fixture
def bara(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Bara:
    """The command line, run in this process."""
    return make_bara(monkeypatch, capsys)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many attacks on the sandbox were tried: without bubblewrap none is, and nothing fails."""
    counts = {
        kind: sum("sandbox/test_attacks.py" in report.nodeid for report in terminalreporter.getreports(kind))
        for kind in ("passed", "failed", "error", "skipped")
    }
    if any(counts.values()):
        tried = counts["passed"] + counts["failed"] + counts["error"]
        left = "bubblewrap is missing, or may not isolate here" if counts["skipped"] else "none left out"
        terminalreporter.write_line(
            f"Attacks on the sandbox: {tried} tests run, {counts['passed']} passed, {counts['skipped']} "
            f"skipped ({left})"
        )
