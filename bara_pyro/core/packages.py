"""Packages that only some settings need, which are asked for before anything is loaded."""

from collections.abc import Iterable
from importlib.util import find_spec

from bara_pyro.errors import BackboneError


def require_packages(what: str, packages: Iterable[str], extra: str) -> None:
    """Refuse to go on where a package is not installed.

    Args:
        what: what needs it, as the subject of a sentence.
        packages: names that are imported.
        extra: of this package, which brings them.

    Raises:
        BackboneError: one of them is not installed.
    """
    for package in packages:
        if find_spec(package) is None:
            raise BackboneError(f"{what} needs the package {package}: pip install 'bara-pyro[{extra}]'.")
