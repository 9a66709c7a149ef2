"""Installed packages and CI actions are pinned by hash, and the lock files agree with pyproject.toml."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))


def entries(path: Path) -> list[tuple[Requirement, int]]:
    """Return each requirement of a lock file with the number of its hashes."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    found = re.split(r"\n(?=\S)", "\n".join(lines).strip())
    return [(Requirement(one.split(" \\\n")[0]), one.count("--hash=sha256:")) for one in found]


LOCKED = {path.stem: entries(path) for path in LOCKS}
PINS = [pin for stem in LOCKED for pin, _ in LOCKED[stem]]


@pytest.mark.parametrize("stem", LOCKED)
def test_every_package_is_pinned_with_a_hash(stem: str) -> None:
    assert LOCKED[stem]
    for pin, hashes in LOCKED[stem]:
        assert hashes, pin
        assert [one.operator for one in pin.specifier] == ["=="], pin


def test_what_pyproject_asks_for_is_locked_within_its_range() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for text in [*project["dependencies"], *project["optional-dependencies"]["dev"]]:
        wanted = Requirement(text)
        pins = [pin for pin in PINS if canonicalize_name(pin.name) == canonicalize_name(wanted.name)]
        assert pins, f"{text}: run `make lock`"
        for pin in pins:
            assert wanted.specifier.contains(next(iter(pin.specifier)).version), f"{text}: run `make lock`"


def test_pins_of_constraints_are_those_of_the_lock() -> None:
    env = {"python_version": "3.11", "python_full_version": "3.11.7"}
    locked = {
        canonicalize_name(p.name): p
        for p in PINS
        if Marker(str(p.marker or "python_version>'3'")).evaluate(env)
    }
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line.startswith("#") or not (pin := locked.get(canonicalize_name(Requirement(line).name))):
            continue  # of an extra that is installed by itself
        version = next(iter(pin.specifier)).version.removesuffix("+cpu")
        assert Requirement(line).specifier.contains(version), f"{line}: run `make lock`"


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github/workflows").glob("*.yml")), ids=lambda path: path.name
)
def test_actions_are_pinned_by_commit_and_keep_no_credentials(path: Path) -> None:
    jobs = yaml.safe_load(path.read_text())["jobs"].values()
    steps = [step for job in jobs for step in job["steps"] if "uses" in step]
    assert steps
    for step in steps:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step["uses"]), step["uses"]
        if step["uses"].startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
