"""Whether a function that nobody has read passes a test, in a way that the function cannot forge.

The function runs in one sandbox, its test in another: what the test compares are plain values of built-in
types, sent over a pipe, and the verdict comes from the test's own process, behind a random word.
"""

import json
import os
import secrets
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal, cast

from bara_pyro.extras.replies.sandbox.limits import Limits
from bara_pyro.extras.replies.sandbox.processes import Finished, Started, start_python, supervise
from bara_pyro.extras.replies.sandbox.runner import check_isolation

Reason = Literal["passed", "wrong", "error", "timeout", "memory", "output"]
"""Why a program passed or not. All but "passed" may be what the program wants it to be."""

LONGEST_MESSAGE = 300


@dataclass(frozen=True)
class Outcome:
    """What came of a trial.

    Attributes:
        reason: "passed"; "wrong", the test found a value wrong; "error", the program raised, ended or gave
            no plain value; "timeout", "memory" or "output", it came to a limit.
        message: more about it, one printable line; its words may be the program's.
        seconds: of wall-clock time.
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

    Arguments and values may be None, bool, int, float, complex, str, bytes, and list, tuple, dict, set and
    frozenset of them; `Counter`, `OrderedDict` and `defaultdict` are sent as dict. A program that raises or
    gives anything else, such as an object of a class of its own, fails. What the program does to its
    arguments is not seen by the test.

    Args:
        program: its text.
        entry_point: name of the function.
        test: trusted Python text that defines `check(candidate)`, which raises where a value is wrong.
        prompt: trusted Python text that the test may use names of.
        limits: what each of the two processes may use, and the seconds of both together.
        unsandboxed: DANGEROUS: see `run_program`. The program could then also find the test's process.

    Raises:
        SandboxError: bubblewrap is not installed, or may not make namespaces here.

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
        return Outcome("output", "more output than is allowed", seconds)
    if tester.status == "timeout":
        return Outcome("timeout", f"not done after {seconds:.1f} seconds", seconds)
    word, _, verdict = tester.stdout.partition(" ")
    if tester.code != 0 or word != nonce:
        return Outcome("error", f"the test itself ended with exit code {tester.code}", seconds)
    reason, message = json.loads(verdict)
    return Outcome(cast(Reason, reason), _printable(message), seconds)


def _printable(message: str) -> str:
    """Return a message without what could move a terminal's cursor."""
    return "".join(sign if sign.isprintable() else " " for sign in message[:LONGEST_MESSAGE])
