"""Limits of processes that work on what somebody else wrote."""

import subprocess
from contextlib import suppress
from pathlib import Path


def limit_memory(process: "subprocess.Popen[bytes]", more: int) -> None:
    """Let a process take so many bytes more than it has; where the system knows no such limit, any."""
    with suppress(ImportError, OSError, ValueError, AttributeError):
        import resource

        pages = int(Path(f"/proc/{process.pid}/statm").read_text(encoding="ascii").split()[0])
        most = pages * resource.getpagesize() + more
        resource.prlimit(process.pid, resource.RLIMIT_AS, (most, most))
