"""Run one untrusted Python program, for example one that a language model wrote."""

from functools import cache

from bara_pyro.errors import SandboxError
from bara_pyro.extras.replies.sandbox.bubblewrap import bwrap
from bara_pyro.extras.replies.sandbox.limits import Limits
from bara_pyro.extras.replies.sandbox.processes import Finished, start_python, supervise

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
