"""Things by name: what is registered, what is imported when asked for, what other packages offer."""

import subprocess
import sys
from pathlib import Path

import pytest

from bara_pyro.cli.catalogue import catalogue, check_method
from bara_pyro.errors import ConfigError
from bara_pyro.methods.base import METHODS, method_config
from bara_pyro.registry import Registry, load_plugin


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on Python's path that holds an installed package with entry points."""
    (tmp_path / "colours.py").write_text("RED = 'ff0000'\nNUMBER = 3\n")
    (tmp_path / "broken_colours.py").write_text("X = = 3\n")
    about = tmp_path / "colours-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: colours\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[test.colours]\nred = colours:RED\ngone = colours:GONE\nlost = no_such_module:X\n"
        "broken = broken_colours:X\nnumber = colours:NUMBER\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "colours", raising=False)
    return tmp_path


def test_a_name_is_taken_once() -> None:
    colours: Registry[str] = Registry("colour", "test.none")
    assert colours.register("blue", "0000ff") == "0000ff"
    colours.register("blue", "0000ff")  # the same thing again, as a module that is reloaded does
    with pytest.raises(ConfigError, match="'blue' is already registered"):
        colours.register("blue", "00f")
    with pytest.raises(ConfigError, match="A colour needs a name"):
        colours.register("", "0")
    assert dict(colours) == {"blue": "0000ff"}
    with pytest.raises(ConfigError, match="Unknown colour 'green': choose one of blue"):
        colours.find("green")


def test_what_a_package_offers_is_imported_when_asked_for(package: Path) -> None:
    colours: Registry[str] = Registry("colour", "test.colours", of=str)
    assert set(colours) == {"red", "gone", "lost", "broken", "number"}
    assert "colours" not in sys.modules
    assert colours.find("red") == "ff0000"
    assert "colours" in sys.modules
    for name in ("gone", "lost", "broken"):
        with pytest.raises(ConfigError, match=f"The colour '{name}' of the package colours cannot be"):
            colours.find(name)
    with pytest.raises(ConfigError, match="The colour 'number' of the package colours is a int, not a str"):
        colours.find("number")
    assert dict(colours.usable()) == {"red": "ff0000"}


def test_a_package_that_fails_stops_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Methods are looked up before every training, and for every setting that one does not have."""
    about = tmp_path / "broken-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[bara_pyro.methods]\nbroken = broken_method:METHOD\n")
    (tmp_path / "broken_method.py").write_text("METHOD = = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(METHODS.__dict__, "_offered", raising=False)
    try:
        check_method("lora")
        lines = {entry["name"]: entry["summary"] for entry in catalogue()["methods"]}
        assert lines["broken"].startswith("The method 'broken' of the package broken cannot be imported")
        assert "bara-gate" in lines
        with pytest.raises(ConfigError, match=r"Unknown setting 'method\.betaphi'"):
            method_config({"name": "bara-gate", "betaphi": 1})
    finally:
        METHODS.__dict__.pop("_offered", None)


def test_a_module_of_the_package_registers_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    colours: Registry[str] = Registry("colour", "test.none", ("late_colours.*",))
    (tmp_path / "late_colours").mkdir()
    for name, value in (("green", "0f0"), ("violet", "f0f")):
        text = f"import sys\nsys.registry_of_test.register('{name}', '{value}')\n"
        (tmp_path / "late_colours" / f"{name}.py").write_text(text)
    (tmp_path / "late_colours" / "__init__.py").touch()
    monkeypatch.setattr(sys, "registry_of_test", colours, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert "late_colours" not in sys.modules
    assert colours["green"] == "0f0"
    assert set(colours) == {"green", "violet"}


@pytest.mark.slow
def test_a_metric_is_one_file(tmp_path: Path) -> None:
    """In a process of its own, where nothing has been imported."""
    (tmp_path / "counted.py").write_text(
        "from bara_pyro.metrics.base import Metric, register_metric\n"
        "register_metric(Metric('counted', lambda p, y: float(len(y)), '', 'max', 0))\n"
    )
    code = (
        f"import bara_pyro.metrics as m; m.__path__.append({str(tmp_path)!r}); "
        "print(m.evaluate([[-0.1, -2.352]], [0])['counted'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "1.0"


def test_a_plugin_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="'no_such_plugin' cannot be imported"):
        load_plugin("no_such_plugin")
