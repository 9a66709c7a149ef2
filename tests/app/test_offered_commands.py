"""Commands that packages offer by the entry points `bara_pyro.commands`."""

import re
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from app_cases import Bara, assert_one_sentence

from bara_pyro.cli import app as offering
from bara_pyro.cli.app import ORDER, app
from bara_pyro.errors import ConfigError
from bara_pyro.registry import Registry, load_plugin

ROOT = Path(__file__).parents[2]
MODULE = '''
import typer
from bara_pyro.cli.wrap import DECIDE, listed

app = typer.Typer(help="Several.")

@app.command()
def one() -> None:
    """The first."""
    typer.echo("one is run")

@app.command()
def two() -> None:
    """The second."""

def plain(number: int = 1) -> None:
    """Print a number."""
    typer.echo(f"number {number}")

@listed(DECIDE)
def chosen() -> None:
    """Choose a group."""

def unreadable(what: "Nowhere") -> None:
    """Take what typer cannot read."""

nothing = 3
'''
VALUES = {
    "plain": "theirs:plain",
    "chosen": "theirs:chosen",
    "several": "theirs:app",
    "absent": "no_such_package:command",
    "unreadable": "theirs:unreadable",
    "nothing": "theirs:nothing",
    "train": "theirs:plain",
}


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offer the commands of a package beside those of `bara`."""
    (tmp_path / "theirs.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    points = [EntryPoint(name, value, "bara_pyro.commands") for name, value in VALUES.items()]
    real = offering.OFFERED._offered
    registry = Registry("command", "bara_pyro.commands", of=offering.OFFERED._of)
    vars(registry)["_offered"] = real | {point.name: point for point in points}
    monkeypatch.setattr(offering, "OFFERED", registry)


@pytest.mark.usefixtures("theirs")
def test_functions_and_groups_are_commands(bara: Bara) -> None:
    assert bara("plain", "--number", 4).out == "number 4\n"
    assert_one_sentence(bara("plain", "--number", 4, "--number", 5), "--number 4 and --number 5")  # as all do
    assert bara("several", "one").out == "one is run\n"
    assert "number" not in bara("train", "--help").out.split("Options")[0]  # its own command stays


@pytest.mark.usefixtures("theirs")
@pytest.mark.parametrize("name", ["absent", "unreadable", "nothing"])
def test_what_cannot_be_read_says_so_and_stops_no_other(name: str, bara: Bara) -> None:
    assert_one_sentence(bara(name, "--what", "RUN"), repr(name), "uninstall")
    listed = bara("--help")
    assert listed.code == 0
    assert f"│ {name} " in listed.out
    assert listed.out.index("│ reward ") < listed.out.index(f"│ {name} ")


def test_a_package_is_imported_when_its_command_is_asked_for(
    bara: Bara, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []

    class Point(EntryPoint):
        def load(self) -> object:
            loaded.append(self.name)
            return lambda: None

    registry = Registry("command", "bara_pyro.commands")
    names = ("mine", "others")
    vars(registry)["_offered"] = {name: Point(name, "a:b", "bara_pyro.commands") for name in names}
    monkeypatch.setattr(offering, "OFFERED", registry)
    assert bara("--version").code == 0
    assert loaded == []
    bara("mine")
    assert loaded == ["mine"]


def test_an_older_installation_is_told_to_install_again(bara: Bara, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offering, "OFFERED", Registry("command", "no.such.group"))
    assert_one_sentence(bara("serve", "RUN", "--port", 1), "serve", "pip install -e .")
    listed = bara("--help").out
    assert all(f"│ {name} " in listed for name in ORDER)


def headings(listed: str) -> dict[str, list[str]]:
    """Return the commands in `bara --help` by their heading."""
    found: dict[str, list[str]] = {}
    for line in listed.splitlines():
        if heading := re.match(r"╭─ (.+?) ─", line):
            found[heading[1]] = []
        elif name := re.match(r"│ ([a-z-]+) ", line):
            found[[*found][-1]].append(name[1])
    return found


def test_commands_are_listed_in_groups(bara: Bara) -> None:
    found = headings(bara("--help").out)
    del found["Options"]
    assert [*found] == ["Train and evaluate", "Decide", "Text", "Share", "Look inside", "Study"]
    assert tuple(name for names in found.values() for name in names) == ORDER


@pytest.mark.usefixtures("theirs")
def test_a_package_chooses_the_group_of_its_command(bara: Bara) -> None:
    found = headings(bara("--help").out)
    assert "chosen" in found["Decide"]
    assert {"plain", "several"} <= {*found["Plug-ins"]}
    assert {"absent", "unreadable", "nothing"} == {*found["Not available"]}


def test_the_order_names_every_command() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    own = [command.name for command in app.registered_commands]
    own += [group.name for group in app.registered_groups]
    assert sorted(ORDER) == sorted([*own, *project["entry-points"]["bara_pyro.commands"]])


@pytest.mark.parametrize("text", ["raise RuntimeError('no')", "import sys; sys.exit(3)", "def ("])
def test_a_plug_in_that_fails_is_to_blame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (tmp_path / "broken_plugin.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="plug-in 'broken_plugin' cannot be imported"):
        load_plugin("broken_plugin")
