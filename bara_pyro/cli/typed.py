"""What was typed, and is no default: an option that would change nothing is refused, or said."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from bara_pyro.cli import terminal
from bara_pyro.errors import ConfigError

if TYPE_CHECKING:
    from bara_pyro.runs.system import System


def refuse(names: Collection[str], why: str) -> None:
    """Refuse options that would change nothing, the first of them by its name.

    Args:
        names: of parameters of the command, `top_p` of `--top-p`.
        why: what an option needs that it changes something: "is of --page".

    Raises:
        ConfigError: one was typed.
    """
    for name in names:
        if name in terminal.mode.typed:
            raise ConfigError(f"--{name.replace('_', '-')} {why}, or leave it out.")


def check_overwrite(*outputs: object) -> None:
    """Refuse --overwrite where none of the files that may be written is named.

    Raises:
        ConfigError: there is none.
    """
    if not any(outputs):
        refuse(["overwrite"], "replaces a file, and none is written: name one")


def note_of_draws(system: "System", **given: object) -> None:
    """Say which options of draws were typed where nothing is drawn.

    Args:
        system: the run.
        given: parameters of the command with their values; 0 and None ask for no draw.
    """
    typed = [f"--{name.replace('_', '-')}" for name in given if given[name] and name in terminal.mode.typed]
    mean = given.get("samples") == 0
    if typed and (mean or _is_point(system)):
        method = system.config.method.name
        why = "--samples 0 draws nothing" if mean else f"{method} has no posterior to draw from"
        changes = "change" if len(typed) > 1 else "changes"
        terminal.remark(f"Note: {why}: {' and '.join(typed)} {changes} nothing.")


def _is_point(system: "System") -> bool:
    """Return whether no two draws of a run differ."""
    from bara_pyro.core.guide import SiteGuide

    model, guide = system.model, system.guide
    own = type(guide).predictive is not SiteGuide.predictive
    return not (own or system.corrections.distance is not None or (model.latents and guide.stochastic))
