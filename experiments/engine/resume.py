"""Results files that grow: what is there is gone on with, and never overwritten by something else."""

from argparse import ArgumentParser
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bara_pyro.errors import ConfigError
from bara_pyro.runs.store import read_json
from experiments.engine.runner import RESULTS


def results_option(parser: ArgumentParser, name: str, folder: Path = RESULTS) -> None:
    """Add --results: where the results go."""
    place = folder / f"{name}.json"
    parser.add_argument("--results", metavar="FILE", type=Path, default=place, help="default: %(default)s")


def resumed(
    path: Path, about: Mapping[str, Any], empty: Mapping[str, Any], key: str = "about"
) -> dict[str, Any]:
    """Return what a results file holds, or the beginning of one.

    Args:
        path: of the file.
        about: what its results depend on; as JSON holds it, so lists and no tuples.
        empty: what else a file without results holds.
        key: under which `about` is kept.

    Raises:
        ConfigError: the file holds results of other settings.
    """
    if not path.exists():
        return {key: dict(about), **empty}
    stored: dict[str, Any] = read_json(path)
    for name, value in about.items():
        if stored[key].get(name) != value:
            raise ConfigError(
                f"{path} holds results with {name}={stored[key].get(name)}, not {value}: give another file "
                "with --results, or remove it."
            )
    return stored
