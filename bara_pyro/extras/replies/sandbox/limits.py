"""What one program may use."""

import math
from dataclasses import dataclass, fields

from bara_pyro.errors import ConfigError

MIB = 2**20
OPEN_FILES = 64


@dataclass(frozen=True)
class Limits:
    """Bounds on one program. The most memory that it can take is `processes * memory + disk`.

    Attributes:
        seconds: of wall-clock time, start of the interpreter included; measured and enforced from outside.
        memory: bytes of address space of each of its processes (RLIMIT_AS).
        processes: processes and threads at a time (RLIMIT_NPROC). Where the caller is not root, one of them
            is bubblewrap's own.
        file_size: bytes of one file (RLIMIT_FSIZE).
        disk: bytes of all files; they lie in memory, under /tmp, and are gone with the program.
        output: bytes that it may write to stdout and stderr together before it is ended.

    Raises:
        ConfigError: one of them is not a positive number.
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
            wanted = "positive number" if field.type is float else "positive whole number"
            kinds = (int, float) if field.type is float else (int,)
            if type(value) not in kinds or not 0 < value < math.inf:
                raise ConfigError(f"Limit {field.name} is {value!r}: give a {wanted}.")

    def resources(self) -> dict[str, tuple[int, int]]:
        """Return the soft and the hard limit of each resource, by its name in the module `resource`."""
        # Above the wall clock: it is for processes that share the time between them.
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
