"""The rooms of `bara_pyro.extras`: what each needs beside the package, and what is said without it."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
IMPORT = """
import sys
from importlib import import_module
from bara_pyro.errors import BaraError
for words in sys.argv[1:]:
    package, module, extra = words.split()
    sys.modules[package] = None
    try:
        import_module(f"bara_pyro.extras.{module}")
    except BaraError as error:
        print(error)
    del sys.modules[package]
"""
MISSING = (
    ("fastapi", "serve.http", "serve"),
    ("uvicorn", "serve.http", "serve"),
    ("lm_eval", "lmeval.harness", "lm-eval"),
    ("peft", "hub.peft", "peft"),
    ("accelerate", "hub.trainer", "trainer"),
)


@pytest.mark.slow
def test_what_is_missing_is_named_with_its_extra() -> None:
    """Where a package cannot be imported, in a process of its own."""
    arguments = [sys.executable, "-c", IMPORT, *map(" ".join, MISSING)]
    said = subprocess.run(arguments, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    for line, (package, _, extra) in zip(said.splitlines(), MISSING, strict=True):
        assert line.endswith(f": pip install 'bara-pyro[{extra}]'."), said
        named = PROJECT["optional-dependencies"][extra]
        assert any(re.split(r"[\[>=<]", one)[0] == package.replace("_", "-") for one in named)


def test_every_extra_that_is_named_is_there() -> None:
    texts = [file.read_text(encoding="utf-8") for file in (ROOT / "bara_pyro").rglob("*.py")]
    texts += [file.read_text(encoding="utf-8") for file in (ROOT / "docs").rglob("*.md")]
    texts += [one for named in PROJECT["optional-dependencies"].values() for one in named]
    found = {
        name
        for text in texts
        for names in re.findall(r"bara-pyro\[([\w,-]+)\]", text)
        for name in names.split(",")
    }
    assert {"serve", "peft"} <= found
    assert found <= PROJECT["optional-dependencies"].keys()
