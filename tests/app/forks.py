"""The same work in several processes, forks of this one, joined as a launcher would join them."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

from bara_pyro.errors import BaraError


def processes(count: int, work: Callable[[], None], out: Path) -> list[list[object]]:
    """Run the same in `count` processes; return of each its exit code and the sentence that it ended with."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    out.parent.mkdir(parents=True, exist_ok=True)
    children = []
    for rank in range(count):
        child = os.fork()
        if child == 0:
            if count > 1:
                os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(count)}
                os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            said = ""
            try:
                work()
            except (BaraError, KeyboardInterrupt) as error:
                said = f"{type(error).__name__}: {error}"
            (out.parent / f"{out.name}.{rank}.txt").write_text(said)
            os._exit(0)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    files = [out.parent / f"{out.name}.{rank}.txt" for rank in range(count)]
    return [[code, file.read_text() if code == 0 else ""] for code, file in zip(codes, files, strict=True)]
