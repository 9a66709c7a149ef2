"""Where programs cannot be isolated they are refused; what limits and filter of system calls say holds."""

import errno
import struct
from pathlib import Path

import pytest

from bara_pyro.errors import ConfigError, SandboxError
from bara_pyro.extras.replies.sandbox import Limits, check_isolation, judge, run_program, try_function
from bara_pyro.extras.replies.sandbox.processes import start_python
from bara_pyro.extras.replies.sandbox.seccomp import REFUSED, seccomp_filter


def refusals() -> dict:
    return {
        "program": lambda: run_program("print(1)"),
        "function": lambda: try_function("def f(x): return x", "f", "def check(c): c(1)"),
        "judge": lambda: judge([], []),
        "check": check_isolation,
    }


@pytest.mark.parametrize("name", refusals())
def test_without_bubblewrap_programs_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxError, match=r"^Programs cannot be isolated without bwrap: install [^.]*\.$"):
        refusals()[name]()


@pytest.mark.parametrize("name", refusals())
def test_without_namespaces_programs_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    bwrap = tmp_path / "bwrap"
    bwrap.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n")
    bwrap.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(SandboxError, match=r"cannot isolate programs \(bwrap: No permissions to create"):
        refusals()[name]()


@pytest.mark.usefixtures("isolation")
def test_a_python_that_shares_the_home_folder_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.base_prefix", str(tmp_path))
    for home in (tmp_path, tmp_path / "user"):
        monkeypatch.setenv("HOME", str(home))
        with pytest.raises(SandboxError, match=f"installed in {tmp_path}, which contains {home}"):
            start_python("print(1)", Limits())


def test_they_run_where_the_caller_insists(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    finished = run_program("print(input()); raise SystemExit(3)", stdin="hello", unsandboxed=True)
    assert (finished.status, finished.code, finished.stdout) == ("ended", 3, "hello\n")
    test = "def check(candidate): assert candidate(1) == 2"
    assert try_function("def f(x): return x + 1", "f", test, unsandboxed=True).passed
    assert try_function("def f(x): return x", "f", test, unsandboxed=True).reason == "wrong"


def test_an_insisting_caller_finds_no_files_left_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run_program("open('mine', 'w')", unsandboxed=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("isolation")
def test_a_program_reads_prints_and_exits() -> None:
    program = "import sys\nprint(input()[::-1]); print('é', file=sys.stderr); sys.exit(3)"
    finished = run_program(program, stdin="hello\nworld")
    assert (finished.status, finished.code) == ("ended", 3)
    assert (finished.stdout, finished.stderr) == ("olleh\n", "é\n")
    assert finished.seconds > 0


@pytest.mark.usefixtures("isolation")
def test_a_program_may_write_to_its_own_tmp_and_start_processes() -> None:
    program = """
import os, subprocess, sys, threading
open("here.txt", "w").write("kept")
assert os.path.abspath("here.txt") == "/tmp/here.txt"
thread = threading.Thread(target=print, args=("thread",)); thread.start(); thread.join()
print(subprocess.check_output([sys.executable, "-c", "print(open('/tmp/here.txt').read())"], text=True))
"""
    finished = run_program(program)
    assert finished.stdout.split() == ["thread", "kept"], finished
    assert run_program("import os; print(os.listdir('/tmp'))").stdout == "[]\n"


@pytest.mark.usefixtures("isolation")
@pytest.mark.parametrize("unsandboxed", [False, True])
def test_a_program_finds_its_limits_set(unsandboxed: bool) -> None:
    limits = Limits(seconds=2.5, memory=2**28, processes=3, file_size=2**20)
    program = """
from resource import *
for limit in (RLIMIT_CPU, RLIMIT_AS, RLIMIT_NPROC, RLIMIT_FSIZE, RLIMIT_NOFILE, RLIMIT_CORE, RLIMIT_MEMLOCK):
    print(*getrlimit(limit))
"""
    printed = run_program(program, limits=limits, unsandboxed=unsandboxed).stdout
    found = [tuple(map(int, line.split())) for line in printed.splitlines()]
    assert found[0] == (4, 5)
    assert found[1:] == [(value, value) for value in (2**28, 3, 2**20, 64, 0, 0)]


@pytest.mark.usefixtures("isolation")
def test_a_program_that_a_signal_ended_says_which() -> None:
    program = """
import os, resource
resource.setrlimit(resource.RLIMIT_CPU, (1, 1))
while True: pass
"""
    finished = run_program(program, limits=Limits(seconds=120.0))
    assert (finished.status, finished.code) == ("ended", 128 + 9)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seconds", 0), ("seconds", -1.0), ("seconds", float("inf")), ("seconds", float("nan")),
        ("seconds", "2"), ("memory", 0), ("memory", 1.5), ("processes", True),
        ("output", None), ("disk", -1), ("file_size", 0),
    ],
)  # fmt: skip
def test_a_limit_that_is_no_positive_number_is_refused(name: str, value: object) -> None:
    with pytest.raises(
        ConfigError, match=rf"^The limit {name} is {value!r}: give a positive (whole )?number\.$"
    ):
        Limits(**{name: value})


def verdict(code: bytes, architecture: int, number: int, first: int = 0) -> str:
    """Run a filter as the kernel does, instruction by instruction."""
    data = struct.pack("=IIQ6Q", number, architecture, 0, first, 0, 0, 0, 0, 0)
    lines = list(struct.iter_unpack("=HBBI", code))
    at = accumulator = 0
    while True:
        kind, if_true, if_false, value = lines[at]
        at += 1
        if kind == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif kind == 0x06:
            action, number = value & 0xFFFF0000, value & 0xFFFF
            return {0x7FFF0000: "allow", 0x80000000: "kill", 0x00050000: errno.errorcode.get(number, "")}[
                action
            ]
        else:
            holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}
            at += if_true if holds[kind] else if_false


# AUDIT_ARCH_*, and numbers of read, clone, socket and clone3 of the kernel's tables.
MACHINES = {"x86_64": (0xC000003E, 0, 56, 41, 435), "aarch64": (0xC00000B7, 63, 220, 198, 435)}


@pytest.mark.parametrize("machine", MACHINES)
def test_the_filter_refuses_what_it_should(machine: str) -> None:
    code = seccomp_filter(machine)
    architecture, read, clone, socket, clone3 = MACHINES[machine]

    def said(number: int, first: int = 0) -> str:
        return verdict(code, architecture, number, first)

    assert said(read) == "allow"
    assert {said(number) for number in REFUSED[machine].values()} == {"EPERM"}
    assert {said(number) for number in (425, 428, 432, 442, 447)} == {"EPERM"}
    assert said(clone3) == "ENOSYS"
    assert said(clone, 0x01200011) == "allow"  # what libc's fork passes
    assert said(clone, 0x10000000 | 17) == "EPERM"
    assert [said(socket, family) for family in (1, 2, 10)] == ["allow"] * 3
    assert {said(socket, family) for family in (0, 3, 16, 17, 38, 40, 2**31)} == {"EAFNOSUPPORT"}
    others = set(range(470)) - set(REFUSED[machine].values())
    assert sum(said(number, 1) != "allow" for number in others) == 12


def test_the_filter_ends_programs_of_another_machine() -> None:
    code = seccomp_filter("x86_64")
    assert verdict(code, 0x40000003, 0) == "kill"  # 32-bit calls
    assert verdict(code, 0xC000003E, 0x40000000 | 1) == "kill"  # x32


def test_an_unknown_machine_is_refused() -> None:
    with pytest.raises(SandboxError, match="cannot be isolated on sparc: only x86_64 and aarch64"):
        seccomp_filter("sparc")
