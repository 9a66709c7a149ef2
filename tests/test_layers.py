"""The contract on imports in pyproject.toml, which `make lint` checks: it sees what breaks it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("importlinter")
ROOT = Path(__file__).parents[1]
COMMAND = "from importlinter.cli import lint_imports_command; lint_imports_command()"
UPWARD = "bara_pyro.core is not allowed to import bara_pyro."


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what the contract is about, the links of models/ and guides/ as folders."""
    for package in ("bara_pyro", "experiments"):
        shutil.copytree(
            ROOT / package,
            tmp_path / package,
            ignore=shutil.ignore_patterns("weights", "records", "__pycache__"),
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def lint(tree: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "--no-cache"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def plant(file: Path, line: str) -> None:
    file.write_text(f"{file.read_text(encoding='utf-8')}\n{line}\n", encoding="utf-8")


# File, a wrong import in it, and what is said of it.
WRONG = [
    ("core/modules.py", "import bara_pyro.runs.config", UPWARD + "runs"),
    ("core/noise.py", "def late():\n    import bara_pyro.models.lora", UPWARD + "models"),
    ("core/elbo.py", "import bara_pyro.extras.active", UPWARD + "extras"),
    ("cli/app.py", "import bara_pyro.extras.serve.command", "bara_pyro.cli is not allowed to import"),
    ("extras/serve/command.py", "import bara_pyro.extras.hub.export", "Rooms BROKEN"),
    ("data/types.py", "import bara_pyro.data.split", "No circles BROKEN"),
]


def test_wrong_imports_are_seen(tree: Path) -> None:
    for file, line, _ in WRONG:
        plant(tree / "bara_pyro" / file, line)
    code, said = lint(tree)
    assert code == 1
    assert [broken for *_, broken in WRONG if broken not in said] == []
