"""Refuse, or remark on, options that were typed and would change nothing."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from bara_pyro.cli import terminal
from bara_pyro.errors import ConfigError

if TYPE_CHECKING:
    from bara_pyro.runs.system import System


def refuse(names: Collection[str], why: str) -> None:
    """Raise a `ConfigError` for an option (`top_p` for `--top-p`) that was typed and would change nothing.

    It names the first of them; `why`, such as "needs --page", follows its name in the message.
    """
    for name in names:
        if name in terminal.mode.typed:
            raise ConfigError(f"--{name.replace('_', '-')} {why}, or leave it out.")


def check_overwrite(*outputs: object) -> None:
    """Raise a `ConfigError` if --overwrite was typed, but all `outputs` are None."""
    if not any(outputs):
        refuse(["overwrite"], "replaces a file, but this command writes none: name a file to write")


def show_every_column(verbose: bool) -> None:
    """Let the table of scores show every column, if --verbose was typed, which --json refuses."""
    if terminal.mode.json:
        refuse(["verbose"], "adds columns to a table, which --json does not print: leave out --json")
    terminal.mode.verbose = verbose


def note_of_draws(system: "System", **given: object) -> None:
    """Remark on options of draws that change nothing, because nothing is drawn.

    `given` are parameters of the command with their values; 0 and None draw nothing.
    """
    from bara_pyro.core.guide import SiteGuide

    typed = [f"--{name.replace('_', '-')}" for name in given if given[name] and name in terminal.mode.typed]
    mean, guide = given.get("samples") == 0, system.guide
    overridden = type(guide).predictive is not SiteGuide.predictive
    varies = overridden or system.noisy_answers or (system.model.latents and guide.stochastic)
    if typed and (mean or not varies):
        method = system.config.method.name
        why = "--samples 0 draws nothing" if mean else f"{method} has no posterior to draw from"
        changes = "change" if len(typed) > 1 else "changes"
        terminal.remark(f"Note: {why}: {' and '.join(typed)} {changes} nothing.")
