"""Limits on a program's time, memory and output."""

import math
from dataclasses import dataclass, fields

from bara_pyro.errors import ConfigError

MIB = 2**20
OPEN_FILES = 64


@dataclass(frozen=True)
class Limits:
    """Limits on one program. It uses at most `processes * memory + disk` bytes of memory.

    Attributes:
        seconds: seconds of wall-clock time, including the start of the interpreter; enforced from outside.
        memory: bytes of address space per process (RLIMIT_AS).
        processes: number of processes and threads at a time (RLIMIT_NPROC). If the caller is not root,
            bubblewrap is one of them.
        file_size: bytes per file (RLIMIT_FSIZE).
        disk: bytes of all files, which are kept in memory under /tmp and deleted with the program.
        output: bytes of stdout and stderr together, after which the program is killed.

    Raises:
        ConfigError: a limit is not a positive number.
    """

    seconds: float = 10.0
    memory: int = 512 * MIB
    processes: int = 4
    file_size: int = 16 * MIB
    disk: int = 64 * MIB
    output: int = MIB

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            expected = "positive number" if field.type is float else "positive whole number"
            kinds = (int, float) if field.type is float else (int,)
            if type(value) not in kinds or not 0 < value < math.inf:
                raise ConfigError(f"The limit {field.name} is {value!r}: give a {expected}.")

    def resources(self) -> dict[str, tuple[int, int]]:
        """Return resource (its name in the module `resource`) -> soft and hard limit."""
        # Above the wall-clock limit, because several processes may compute at the same time.
        cpu = math.ceil(self.seconds) + 1
        same = {
            "RLIMIT_AS": self.memory,
            "RLIMIT_NPROC": self.processes,
            "RLIMIT_FSIZE": self.file_size,
            "RLIMIT_NOFILE": OPEN_FILES,
            "RLIMIT_CORE": 0,
            "RLIMIT_MEMLOCK": 0,
            "RLIMIT_MSGQUEUE": 0,
        }
        return {"RLIMIT_CPU": (cpu, cpu + 1)} | {name: (value, value) for name, value in same.items()}
