"""All commands of `bara`, with the options of each."""

from collections.abc import Iterator
from typing import Any

import typer

from bara_pyro.cli.app import app


def commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the commands of a group and of the groups in it, by what is typed for them."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


COMMANDS = dict(commands(typer.main.get_command(app)))


def options_of(name: str) -> list[Any]:
    """Return the options of a command."""
    return [option for option in COMMANDS[name].params if option.param_type_name == "option"]
