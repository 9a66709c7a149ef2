"""Run an untrusted program, or test one of its functions so that it cannot forge the result.

A tested function runs in one sandbox and its test in another. The test compares plain values of built-in
types, which it receives over a pipe, and its own process prints the verdict after a random word.
"""

import json
import os
import secrets
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal, cast

from bara_pyro.errors import SandboxError
from bara_pyro.extras.replies.sandbox.bubblewrap import bwrap
from bara_pyro.extras.replies.sandbox.limits import Limits
from bara_pyro.extras.replies.sandbox.processes import Finished, Started, start_python, supervise

PROBE = "print('isolated')"


def run_program(
    program: str, stdin: str = "", limits: Limits | None = None, *, unsandboxed: bool = False
) -> Finished:
    """Run a Python program in isolation (bubblewrap) and return its output and exit status.

    The program runs in separate namespaces without network and without environment variables. Of the system
    it sees only /usr, the libraries and the Python installation of this interpreter (`python -I`, without the
    packages of a virtual environment), all read-only. It may write to a small /tmp in memory. When its time
    is up, it is killed with all processes that it started.

    A program chooses its output and its exit code, so they prove nothing about what it did; use
    `try_function` to test it. Isolation does not protect against holes in the kernel, and a program can learn
    from its own running time how busy the machine is.

    Args:
        program: text of the program.
        stdin: its standard input.
        limits: limits on the program; None: the defaults.
        unsandboxed: DANGEROUS: run it without isolation as the current user. It can then read and delete the
            user's files, use the network, and leave processes behind; the limits still apply.

    Raises:
        SandboxError: bubblewrap is not installed, or cannot create namespaces on this machine.

    Examples:
        >>> from bara_pyro.extras.replies.sandbox import run_program
        >>> finished = run_program("print(input()[::-1])", stdin="hello")
        >>> finished.code, finished.stdout.strip()
        (0, 'olleh')
    """
    if not unsandboxed:
        check_isolation()
    limits = limits or Limits()
    [finished] = supervise(
        [start_python(program, limits, stdin=stdin, unsandboxed=unsandboxed)], limits.seconds
    )
    return finished


def check_isolation() -> None:
    """Check that programs can be isolated on this machine; the answer is cached.

    Raises:
        SandboxError: bubblewrap is not installed, or cannot create namespaces on this machine.

    Examples:
        >>> from bara_pyro.extras.replies.sandbox import check_isolation
        >>> check_isolation()  # returns None if programs can be isolated
    """
    _probe(bwrap())


@cache
def _probe(path: str) -> None:
    limits = Limits()
    [finished] = supervise([start_python(PROBE, limits)], limits.seconds)
    if finished.stdout.strip() != "isolated":
        lines = finished.stderr.strip().splitlines()
        raise SandboxError(
            f"{path} cannot isolate programs ({lines[-1] if lines else finished.status}): allow user "
            "namespaces, or pass unsandboxed=True (--allow-unsandboxed) if you trust the programs."
        )


Reason = Literal["passed", "wrong", "error", "timeout", "memory", "output"]
"""Why a program passed or failed. A program can choose how it fails, but it cannot forge "passed"."""

LONGEST_MESSAGE = 300


@dataclass(frozen=True)
class Outcome:
    """The result of a trial.

    Attributes:
        reason: "passed"; "wrong" if the test rejected a value; "error" if the program raised an exception,
            ended or returned other than plain data; "timeout", "memory" or "output" if it reached a limit.
        message: details in one printable line, which the program may have chosen.
        seconds: wall-clock time in seconds.
    """

    reason: Reason
    message: str
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether the program passed the test."""
        return self.reason == "passed"


def try_function(
    program: str,
    entry_point: str,
    test: str,
    *,
    prompt: str = "",
    limits: Limits | None = None,
    unsandboxed: bool = False,
) -> Outcome:
    """Test one function of a program.

    Arguments and return values may be None, bool, int, float, complex, str, bytes, and list, tuple, dict, set
    and frozenset of these; `Counter`, `OrderedDict` and `defaultdict` are sent as dict. A program fails if it
    raises an exception or returns anything else, such as an object of its own class. The test does not see
    changes that the program makes to its arguments.

    Args:
        program: text of the program.
        entry_point: name of the function.
        test: trusted Python text that defines `check(candidate)`, which raises an exception if a value is
            wrong.
        prompt: trusted Python text whose names the test may use.
        limits: limits on each of the two processes; `seconds` is for both together.
        unsandboxed: DANGEROUS: see `run_program`. The program could then also find the test's process.

    Raises:
        SandboxError: bubblewrap is not installed, or cannot create namespaces on this machine.

    Examples:
        >>> from bara_pyro.extras.replies.sandbox import try_function
        >>> test = "def check(candidate): assert candidate(2) == 4"
        >>> try_function("def double(x): return x + x", "double", test).reason
        'passed'
        >>> try_function("def double(x): return x", "double", test).reason
        'wrong'
    """
    if not unsandboxed:
        check_isolation()
    limits = limits or Limits()
    nonce = secrets.token_hex(16)
    pair = _start(program, entry_point, test, prompt, nonce, limits, unsandboxed)
    tester, tested = supervise(pair, limits.seconds)
    return _outcome(tester, tested, nonce)


def _start(
    program: str, entry_point: str, test: str, prompt: str, nonce: str, limits: Limits, unsandboxed: bool
) -> list[Started]:
    """Start both processes, the one with the test first."""
    inside = files("bara_pyro.extras.replies.sandbox").joinpath("inside.py").read_text(encoding="utf-8")
    hears, asks = os.pipe()
    listens, answers = os.pipe()
    test_call = f"examine({prompt!a}, {test!a}, {entry_point!a}, {nonce!a}, {asks}, {listens})"
    program_call = f"answer_calls({program!a}, {entry_point!a}, {hears}, {answers})"
    started: list[Started] = []
    try:
        for call, pipes in ((test_call, (asks, listens)), (program_call, (hears, answers))):
            text = f"{inside}\n\n{call}\n"
            started.append(start_python(text, limits, pipes=pipes, unsandboxed=unsandboxed))
    except BaseException:
        if started:
            supervise(started, 0.0)
        raise
    finally:
        for end in (hears, asks, listens, answers):
            os.close(end)
    return started


def _outcome(tester: Finished, tested: Finished, nonce: str) -> Outcome:
    seconds = tester.seconds
    if "output" in (tester.status, tested.status):
        return Outcome("output", "more output than allowed", seconds)
    if tester.status == "timeout":
        return Outcome("timeout", f"not finished after {seconds:.1f} seconds", seconds)
    word, _, verdict = tester.stdout.partition(" ")
    if tester.code != 0 or word != nonce:
        return Outcome("error", f"the test itself ended with exit code {tester.code}", seconds)
    reason, message = json.loads(verdict)
    # Control characters could move a terminal's cursor.
    message = "".join(sign if sign.isprintable() else " " for sign in message[:LONGEST_MESSAGE])
    return Outcome(cast(Reason, reason), message, seconds)
