"""What the tests of this folder share."""

import json
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SAMPLES = 6
"""Posterior draws of the engine that is served."""
PATIENCE = 120


@dataclass
class Served:
    """A server of a process of its own.

    Attributes:
        process: the process.
        about: what it says of itself, `url` among it.
        errors: the file of what it prints on standard error.
    """

    process: subprocess.Popen[str]
    about: dict[str, Any]
    errors: Path

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.about["url"].removeprefix("http://").split(":")
        return host, int(port)

    def rss(self) -> int:
        """Return the bytes of memory that it has now."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        [line] = [line for line in status.splitlines() if line.startswith("VmRSS")]
        return 1024 * int(line.split()[1])


@contextmanager
def serving(run: Path, *options: object) -> Iterator[Served]:
    """A server on a free port."""
    command = [sys.executable, "-m", "bara_pyro", "serve", str(run), "--port", "0", "--json"]
    with tempfile.NamedTemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [*command, *map(str, options)], stdout=subprocess.PIPE, stderr=errors, text=True
        )
        assert process.stdout is not None
        try:
            said = ""
            for line in process.stdout:
                said += line
                if line == "}\n":
                    break
            assert said, Path(errors.name).read_text()
            yield Served(process, json.loads(said), Path(errors.name))
        finally:
            process.kill()
            process.communicate()


@contextmanager
def server(run: Path, *options: object) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A server on a free port, and what it says of itself."""
    with serving(run, *options) as served:
        yield served.process, served.about


def ask(url: str, path: str, rows: list[dict] | None = None) -> Any:
    body = None if rows is None else json.dumps({"rows": rows}).encode()
    request = urllib.request.Request(f"{url}{path}", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return json.load(answer)
