"""Memory limits of processes that read untrusted files."""

import subprocess
from contextlib import suppress
from pathlib import Path


def limit_memory(process: "subprocess.Popen[bytes]", more: int) -> None:
    """Limit a process to its present memory plus `more` bytes, on systems that support such limits."""
    with suppress(ImportError, OSError, ValueError, AttributeError):
        import resource

        pages = int(Path(f"/proc/{process.pid}/statm").read_text(encoding="ascii").split()[0])
        most = pages * resource.getpagesize() + more
        resource.prlimit(process.pid, resource.RLIMIT_AS, (most, most))
