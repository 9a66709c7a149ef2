"""Run one Python program that nobody has read, such as one that a language model wrote."""

from functools import cache

from bara_pyro.errors import SandboxError
from bara_pyro.extras.replies.sandbox.bubblewrap import bwrap
from bara_pyro.extras.replies.sandbox.limits import Limits
from bara_pyro.extras.replies.sandbox.processes import Finished, start_python, supervise

PROBE = "print('isolated')"


def run_program(
    program: str, stdin: str = "", limits: Limits | None = None, *, unsandboxed: bool = False
) -> Finished:
    """Run a Python program, isolated by bubblewrap, and return what it left behind.

    The program has namespaces of its own and no network; sees of the system only /usr, its libraries and the
    Python installation of this interpreter (`python -I`, without the packages of a virtual environment), all
    read-only; may write to a small /tmp in memory; is given no environment; and is killed with all that it
    started once its time is up. What it prints and its exit code are its own to choose: they prove nothing
    about what it did (`sandbox.trial` does). The kernel's interface is the border: against a hole in the
    kernel it does not help, and how long a program takes can tell it what else the machine does.

    Args:
        program: its text.
        stdin: what it reads.
        limits: what it may use; None takes the defaults.
        unsandboxed: DANGEROUS: run it without isolation, as the user who calls. It can then read and delete
            all that the user can, use the network, and leave processes behind; the limits are still set.

    Raises:
        SandboxError: bubblewrap is not installed, or may not make namespaces here.

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
    """Raise `SandboxError` where programs cannot be isolated; what was found is kept.

    Examples:
        >>> from bara_pyro.extras.replies.sandbox import check_isolation
        >>> check_isolation()  # nothing is said where programs can be isolated
    """
    _probe(bwrap())


@cache
def _probe(path: str) -> None:
    limits = Limits()
    [finished] = supervise([start_python(PROBE, limits)], limits.seconds)
    if finished.stdout.strip() != "isolated":
        said = finished.stderr.strip().splitlines()
        raise SandboxError(
            f"{path} cannot isolate programs here ({said[-1] if said else finished.status}): allow user "
            "namespaces, or pass unsandboxed=True (--allow-unsandboxed) for programs that "
            "you would run yourself."
        )
