"""A host to be attacked, and whether it was harmed."""

import socket
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bara_pyro.extras.replies.sandbox.bubblewrap import PROGRAM


@dataclass
class Host:
    """What an attack aims at.

    Attributes:
        home: a folder with a secret file.
        secret: in that file and in the environment of the test.
        server: listens on the loopback device.
        mark: in the environment of the programs, by which they are found from outside.
    """

    home: Path
    secret: str
    server: socket.socket
    mark: str
    before: dict[str, bytes] = field(default_factory=dict)

    def fill(self, code: str) -> str:
        """Tell an attack where its aim is."""
        return code.replace("HOME", repr(str(self.home))).replace("PORT", str(self.server.getsockname()[1]))

    def files(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in self.home.rglob("*") if path.is_file()}

    def connected(self) -> bool:
        try:
            self.server.accept()[0].close()
        except BlockingIOError:
            return False
        return True

    def running(self) -> list[psutil.Process]:
        """Return the programs that run."""
        return [process for process in psutil.process_iter() if self.marked(process)]

    def left_behind(self) -> list[psutil.Process]:
        """Return programs that still run some seconds after they should be gone."""
        for _ in range(100):
            if not (found := self.running()):
                return []
            time.sleep(0.05)
        return found

    def wait_for_one(self) -> None:
        """Wait until a program runs, past its launcher."""
        for _ in range(600):
            if any(process.cmdline()[-1:] == [PROGRAM] for process in self.running()):
                return
            time.sleep(0.05)
        raise AssertionError("no program was started")

    def marked(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get("MARK") == self.mark
        except psutil.Error:
            return False

    def assert_unharmed(self) -> None:
        assert self.files() == self.before
        assert not self.connected()
        assert not self.left_behind()
