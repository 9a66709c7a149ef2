"""Commands by their entry points, `bara_pyro.commands`: those of bara_pyro.extras and of other packages.

A package offers a function, whose parameters typer reads, or a typer app with commands of its own. It is
imported when its command or the list of all is asked for; what cannot be imported says so in its place.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, cast

import typer
from typer.core import TyperGroup

from bara_pyro.cli.wrap import Command, add_command
from bara_pyro.errors import ConfigError
from bara_pyro.registry import Registry

COMMANDS: Registry[Command | typer.Typer] = Registry(
    "command", "bara_pyro.commands", of=cast(type[object], Callable)
)
ORDER: Final = (
    *("train", "evaluate", "compare", "predict", "conformal", "abstain", "detect", "acquire"),
    *("generate", "best-of-n", "humaneval", "lm-eval", "inspect", "prune", "serve", "export"),
    *("push", "params", "methods", "tasks", "demo", "backbone", "microworld", "reward"),
)
"""The commands of this distribution as `bara --help` lists them; those of others follow."""


class Commands(TyperGroup):
    """`bara`: its own commands, and those that packages offer."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = cast(dict[str, Any], Offered(self.commands))


class Offered(Mapping[str, Any]):
    """Commands by name, each made when it is asked for.

    Args:
        own: those that are there without an entry point.
    """

    def __init__(self, own: Mapping[str, Any]) -> None:
        self._made = dict(own)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*ORDER, *self._made, *sorted(COMMANDS))))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            if name not in (*self,):
                raise KeyError(name)
            self._made[name] = _made(name)
        return self._made[name]


def _made(name: str) -> Any:
    """Return a command as click has them."""
    if name not in COMMANDS:
        before = f"bara-pyro was installed before {name} had an entry point"
        return _refusing(name, f"{before}: install it again, in a checkout by `pip install -e .`.")
    try:
        return _command(name, COMMANDS[name])
    except ConfigError as error:
        return _refusing(name, str(error))
    except Exception as error:  # noqa: BLE001 - typer's, of whatever somebody else's function takes
        return _refusing(
            name, f"The command {name!r} cannot be read ({error}): mend or uninstall its package."
        )


def _command(name: str, offered: Command | typer.Typer) -> Any:
    app = typer.Typer(pretty_exceptions_enable=False)
    if isinstance(offered, typer.Typer):
        app.add_typer(offered, name=name)
    else:
        add_command(app, offered, name)
    return typer.main.get_group(app).commands[name]


def _refusing(name: str, sentence: str) -> Any:
    """Return a command that says why it is not there, whatever it is given."""

    def refuse(context: typer.Context) -> None:
        raise ConfigError(sentence)

    app = typer.Typer(pretty_exceptions_enable=False)
    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    app.command(name, help=sentence, context_settings=anything)(refuse)
    return typer.main.get_group(app).commands[name]
