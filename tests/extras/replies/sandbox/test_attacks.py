"""Programs that mean harm do none, and never pass; without isolation they would."""

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from attack_cases import ATTACKS, HARMLESS, SUCCEEDED, attack
from host_cases import Host

from bara_pyro.extras.replies.sandbox import Limits, run_program, try_function

MIB = 2**20
# Time enough on any machine for what ends, or comes to another limit, and little for what does not.
SMALL = Limits(seconds=120.0, memory=256 * MIB, file_size=4 * MIB, disk=8 * MIB, output=MIB)
BRIEF = replace(SMALL, seconds=2.0)
TEST = "def check(candidate):\n    assert candidate(1) == 2"
RIGHT = "def f(x):\n    return x + 1\n"

pytestmark = pytest.mark.usefixtures("isolation")


@pytest.mark.parametrize("name", ATTACKS)
def test_no_attack_does_harm_or_passes(host: Host, name: str) -> None:
    code, reason = attack(name)
    limits = BRIEF if reason in ("timeout", "any") else SMALL
    outcome = try_function(host.fill(code) + RIGHT, "f", TEST, limits=limits)
    assert not outcome.passed
    assert reason in (outcome.reason, "any"), outcome
    assert "succeeded" not in outcome.message or name in HARMLESS
    host.assert_unharmed()


@pytest.mark.parametrize(
    "name",
    [
        "fork bomb",
        "10 GB at once",
        "read the host's files",
        "write to the host's files",
        "the host's processes",
        "the memory of its parent",
        "a symbolic link out",
        "a server of the host",
    ],
)
def test_what_is_forbidden_fails_and_shows_nothing(host: Host, name: str) -> None:
    finished = run_program(host.fill(attack(name)[0]), limits=BRIEF)
    assert "succeeded" not in finished.stderr
    assert host.secret not in finished.stdout + finished.stderr
    host.assert_unharmed()


@pytest.mark.parametrize("stream", [1, 2])
def test_output_is_kept_up_to_the_limit(stream: int) -> None:
    endless = f"import os\nwhile True: os.write({stream}, b'a' * 2**16)"
    finished = run_program(endless, limits=SMALL)
    assert finished.status == "output"
    assert len(finished.stdout) + len(finished.stderr) == SMALL.output


def test_output_of_exactly_the_limit_is_allowed() -> None:
    finished = run_program(f"print('a' * {MIB - 1})", limits=SMALL)
    assert (finished.status, len(finished.stdout)) == ("ended", MIB)


def test_the_environment_is_not_seen(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BARA_TEST_SECRET", host.secret)
    finished = run_program("import os; print(os.environ, os.environb)")
    assert "HOME" in finished.stdout
    assert host.secret not in finished.stdout


def test_the_files_seen_are_those_of_python() -> None:
    walk = """
import os, sys
for folder, folders, files in os.walk("/"):
    if folder in ("/usr", sys.base_prefix) or folder.startswith("/lib"):
        folders.clear()
    else:
        print(*(os.path.join(folder, name) for name in files), sep="\\n")
"""
    finished = run_program(walk)
    assert not finished.stderr
    devices = {f"/dev/{name}" for name in ("null", "zero", "random", "urandom")}
    assert set(finished.stdout.split()) - {"/etc/ld.so.cache"} == devices | {"/program.py"}


def test_it_keeps_no_file_but_its_standard_three() -> None:
    finished = run_program("""
import os
for number in range(3, 1024):
    try:
        os.fstat(number)
    except OSError:
        continue
    print(number)
""")
    assert finished.stdout == ""
    assert finished.code == 0


def test_its_input_cannot_be_written() -> None:
    finished = run_program("import os\nprint(os.read(0, 9)); os.write(0, b'mine')", stdin="read only")
    assert finished.stdout == "b'read only'\n"
    assert "Bad file descriptor" in finished.stderr


DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in range(3):
            os.close(number)
        time.sleep(1e6)
    os._exit(0)
os.wait()
"""


def test_a_process_does_not_outlive_its_program(host: Host) -> None:
    assert run_program(DAEMON, limits=SMALL).status == "ended"
    assert try_function(DAEMON + RIGHT, "f", TEST, limits=SMALL).passed
    assert not host.left_behind()


def test_a_thread_does_not_outlive_its_program(host: Host) -> None:
    thread = "import threading, time\nthreading.Thread(target=time.sleep, args=(1e6,)).start()\n"
    assert run_program(thread, limits=BRIEF).status == "timeout"
    assert try_function(thread + RIGHT, "f", TEST, limits=SMALL).passed
    assert not host.left_behind()


CALLER = """
from bara_pyro.extras.replies.sandbox import Limits, check_isolation, run_program
from bara_pyro.extras.replies.sandbox.bubblewrap import ENVIRONMENT
check_isolation()
ENVIRONMENT["MARK"] = "{mark}"
run_program("import time; time.sleep(1e6)", limits=Limits(seconds=600))
"""


def test_nothing_outlives_a_caller_that_is_killed(host: Host) -> None:
    paths = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-c", CALLER.format(mark=host.mark)]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths}) as caller:
        host.wait_for_one()
        caller.send_signal(signal.SIGKILL)
    assert not host.left_behind()


@pytest.mark.parametrize(
    "name", ["read the host's files", "the memory of its parent", "a server of the host"]
)
def test_without_isolation_they_succeed(host: Host, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    finished = run_program(host.fill(attack(name)[0]), limits=SMALL, unsandboxed=True)
    assert "succeeded" in finished.stderr
    assert host.connected() == (name == "a server of the host")
    assert (host.secret in finished.stdout) == (name == "read the host's files")


def test_without_isolation_a_file_is_written(host: Host) -> None:
    run_program(host.fill("open(HOME + '/secret.txt', 'w').write('mine')"), unsandboxed=True)
    assert host.files() != host.before


def test_without_isolation_the_limits_are_set_and_the_group_is_ended(host: Host) -> None:
    for name in ("endless loop", "10 GB at once", "1 GB of output", "10 GB in a file of /tmp"):
        code = host.fill(attack(name)[0]).replace("/tmp/big", str(host.home / "big"))
        assert not try_function(code + RIGHT, "f", TEST, limits=BRIEF, unsandboxed=True).passed
    assert (host.home / "big").stat().st_size <= SMALL.file_size
    assert not host.left_behind()


def test_an_attack_that_could_not_fail_is_no_test() -> None:
    assert "succeeded" in run_program(SUCCEEDED).stderr
    assert "succeeded" in try_function(SUCCEEDED + RIGHT, "f", TEST).message
