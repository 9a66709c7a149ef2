"""Start programs as processes, read their output up to a limit, and end them with all their children."""

import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal

from bara_pyro.extras.replies.sandbox.bubblewrap import ENVIRONMENT, isolated, launch
from bara_pyro.extras.replies.sandbox.limits import Limits
from bara_pyro.extras.replies.sandbox.seccomp import seccomp_filter

Status = Literal["ended", "timeout", "output"]
"""How a program ended: by itself, or killed for its time or its output."""

CHUNK = 2**16
# Seconds to wait until the last process of a killed sandbox has closed its output.
AFTER_KILL = 5.0


@dataclass(frozen=True)
class Finished:
    """The output and exit status of a program.

    Attributes:
        status: "ended" by itself, or killed for its "timeout" or "output".
        code: its exit code; if a signal ended it, 128 plus the signal's number, or minus that number.
        stdout: its standard output, cut at the limit; bytes that are not UTF-8 are replaced.
        stderr: its standard error, likewise.
        seconds: wall-clock time in seconds.
    """

    status: Status
    code: int
    stdout: str
    stderr: str
    seconds: float


@dataclass
class Started:
    """A running program."""

    process: subprocess.Popen[bytes]
    limits: Limits
    folder: "tempfile.TemporaryDirectory[str] | None" = None
    status: Status = "ended"
    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)

    def take(self, stream: bytearray, chunk: bytes) -> None:
        """Append output to a stream, up to the limit."""
        room = self.limits.output - len(self.stdout) - len(self.stderr)
        stream += chunk[:room]
        if len(chunk) > room:
            self.status = "output"

    def finished(self, seconds: float) -> Finished:
        """Return the result of the program, which has ended."""
        stdout, stderr = (bytes(stream).decode(errors="replace") for stream in (self.stdout, self.stderr))
        return Finished(self.status, self.process.returncode, stdout, stderr, seconds)


def start_python(
    program: str, limits: Limits, *, stdin: str = "", pipes: Sequence[int] = (), unsandboxed: bool = False
) -> Started:
    """Start a Python program.

    Args:
        program: text of the program.
        limits: limits on the program.
        stdin: its standard input.
        pipes: file descriptors that it inherits, under the same numbers.
        unsandboxed: run it without isolation as the current user; the limits still apply.

    Raises:
        SandboxError: bubblewrap is not installed.
    """
    text = program.encode(errors="surrogatepass")
    with ExitStack() as files:
        entry = files.enter_context(_readable(stdin.encode(errors="surrogatepass")))
        folder = None
        if unsandboxed:
            folder = tempfile.TemporaryDirectory(prefix="bara-program-", ignore_cleanup_errors=True)
            path = Path(folder.name, "program.py")
            path.write_bytes(text)
            command, inherited = launch(limits, str(path)), list(pipes)
        else:
            parts = [files.enter_context(_readable(part)).fileno() for part in (text, seccomp_filter())]
            command, inherited = isolated(limits, *parts), [*pipes, *parts]
        process = subprocess.Popen(  # noqa: S603 - no shell
            command,
            stdin=entry,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=inherited,
            env=ENVIRONMENT,
            cwd=folder.name if folder else "/",
            start_new_session=True,
        )
    return Started(process, limits, folder)


def _readable(data: bytes) -> BinaryIO:
    """Return a read-only file without a name."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        return open(file.name, "rb")


def supervise(programs: Sequence[Started], seconds: float) -> list[Finished]:
    """Read the output of programs until the first program has ended, then kill the others.

    Killing a program includes all processes that it started. All programs are killed if one exceeds its limit
    of output, or if the time is up.

    The program to wait for comes first; `seconds` limit the wall-clock time.
    """
    begin = time.monotonic()
    try:
        _read(programs, begin + seconds)
        took = time.monotonic() - begin
    finally:
        for program in programs:
            _end(program)
    return [program.finished(took) for program in programs]


def _read(programs: Sequence[Started], deadline: float) -> None:
    first = programs[0].process
    with selectors.DefaultSelector() as selector:
        for program in programs:
            for pipe, stream in _streams(program):
                selector.register(pipe, selectors.EVENT_READ, (program, stream))
        while {first.stdout, first.stderr} & {key.fileobj for key in selector.get_map().values()}:
            left = deadline - time.monotonic()
            if left <= 0:
                programs[0].status = "timeout"
                return
            for key, _ in selector.select(left):
                program, stream = key.data
                chunk = os.read(key.fd, CHUNK)
                program.take(stream, chunk)
                if program.status == "output":
                    return
                if not chunk:
                    selector.unregister(key.fileobj)
    # Without isolation a program may close its output and continue.
    try:
        first.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        programs[0].status = "timeout"


def _streams(program: Started) -> list[tuple[BinaryIO, bytearray]]:
    process = program.process
    pairs = ((process.stdout, program.stdout), (process.stderr, program.stderr))
    return [(pipe, stream) for pipe, stream in pairs if pipe is not None]  # type: ignore[misc]


def _end(program: Started) -> None:
    """Kill the program if it still runs, and wait until all its processes have closed its output."""
    process = program.process
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    deadline = time.monotonic() + AFTER_KILL
    for pipe, _ in _streams(program):
        _drain(pipe, deadline)
        pipe.close()
    if program.folder:
        program.folder.cleanup()


def _drain(pipe: BinaryIO, deadline: float) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0 and selector.select(left):
            if not os.read(pipe.fileno(), CHUNK):
                return
