"""Find the commands that packages offer by the entry points `bara_pyro.commands`.

A package offers a function, whose parameters typer reads, or a typer app for several commands. The package is
imported when you call the command or `bara --help`. A command that cannot be imported says why.

A function chooses its heading in `bara --help` by `bara_pyro.cli.wrap.listed`, an app by `rich_help_panel`;
without one it is listed under "Plug-ins".
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, cast

import typer

from bara_pyro.cli.wrap import PLUG_INS, Command, Group, add_command, group_of
from bara_pyro.errors import ConfigError
from bara_pyro.registry import Registry

COMMANDS: Registry[Command | typer.Typer] = Registry(
    "command", "bara_pyro.commands", of=cast(type[object], Callable)
)
ORDER: Final = (
    *("demo", "train", "predict", "evaluate", "compare", "tasks", "methods"),  # train and evaluate
    *("abstain", "conformal", "detect", "acquire"),  # decide
    *("generate", "best-of-n", "reward"),  # text
    *("serve", "export", "push", "backbone"),  # share
    *("inspect", "params"),  # look inside
    *("humaneval", "lm-eval", "microworld"),  # study
)
"""The commands of this distribution in the order of `bara --help`, group by group; plug-ins follow."""
NOT_AVAILABLE: Final = "Not available"
"""The heading over commands that cannot be imported."""


class Commands(Group):
    """`bara`: its own commands and those that packages offer."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = cast(dict[str, Any], Offered(self.commands))


class Offered(Mapping[str, Any]):
    """Commands by name, each made when it is looked up; `own` have no entry point."""

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
    """Return a command as click reads it; one that cannot be imported says why."""
    if name not in COMMANDS:
        return _refusing(
            name,
            f"The installed bara-pyro is older than the command {name}: install it again, in a checkout with "
            "`pip install -e .`.",
        )
    app = typer.Typer(pretty_exceptions_enable=False)
    try:
        offered = COMMANDS[name]
        if isinstance(offered, typer.Typer):
            panel = offered.rich_help_panel
            app.add_typer(offered, name=name, rich_help_panel=panel if isinstance(panel, str) else PLUG_INS)
        else:
            add_command(app, offered, name, panel=group_of(offered))
        return typer.main.get_group(app).commands[name]
    except ConfigError as error:
        return _refusing(name, str(error))
    except Exception as error:  # noqa: BLE001 - typer's, of whatever somebody else's function takes
        return _refusing(
            name, f"The command {name!r} cannot be read ({error}): mend or uninstall its package."
        )


def _refusing(name: str, sentence: str) -> Any:
    """Return a command that takes anything and says why it is not available."""

    def refuse(context: typer.Context) -> None:
        raise ConfigError(sentence)

    app = typer.Typer(pretty_exceptions_enable=False)
    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    app.command(name, help=sentence, context_settings=anything, rich_help_panel=NOT_AVAILABLE)(refuse)
    return typer.main.get_group(app).commands[name]
