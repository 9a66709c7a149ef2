"""Ranks of single modules, below the rank of all others; PEFT calls them a rank pattern."""

from collections.abc import Mapping, Sequence

from bara_pyro.core.targets import Target
from bara_pyro.errors import ConfigError, unknown


def checked_ranks(ranks: Mapping[str, int], targets: Sequence[Target], r: int) -> dict[str, int]:
    """Return path of a module -> its rank; refuse an unknown module, and a rank that is not 1 to r."""
    known = [target.path for target in targets]
    for path, rank in ranks.items():
        if path not in known:
            raise ConfigError(unknown("module of the rank pattern", path, known))
        check_rank(path, rank, r)
    return dict(ranks)


def check_rank(path: str, rank: int, r: int) -> None:
    """Refuse a rank of a module's own that is not 1 to r."""
    if not 1 <= rank <= r:
        raise ConfigError(f"The rank pattern gives {path} a rank of {rank}: choose 1 to r={r}.")
