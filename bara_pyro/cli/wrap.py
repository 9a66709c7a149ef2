"""What every command shares: --json, --quiet and --debug, and how it ends when it is stopped."""

import inspect
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import Parameter
from types import FrameType
from typing import Annotated

import typer

from bara_pyro.cli import terminal
from bara_pyro.cli.once import Once
from bara_pyro.errors import TERMINATION, Stopped
from bara_pyro.registry import load_plugin

Command = Callable[..., None]
PANEL = "Output"
SHARED = {
    "json": typer.Option("--json", help="Print the result as JSON and nothing else.", rich_help_panel=PANEL),
    "quiet": typer.Option("--quiet", "-q", help="No progress and no remarks.", rich_help_panel=PANEL),
    "debug": typer.Option("--debug", help="Show the traceback of an error.", rich_help_panel=PANEL),
}


Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="MODULE",
        help="Import a module that registers methods, guides, priors or tasks of your own; can be repeated.",
        rich_help_panel="Extensions",
    ),
]


def wrap(command: Command) -> Command:
    """Return a command with the options that all have, which says in one line that it was stopped."""
    own = inspect.signature(command, eval_str=True)
    shared = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, option])
        for name, option in SHARED.items()
    ]
    shared.append(Parameter("plugin", Parameter.KEYWORD_ONLY, default=None, annotation=Plugins))

    @wraps(command)
    def wrapped(*args: object, **given: object) -> None:
        mode = {name: bool(given.pop(name)) for name in SHARED}
        vars(terminal.mode).update(mode)
        for name, value in given.items():
            if any(
                isinstance(one, str) and not one.strip()
                for one in (value if isinstance(value, list) else [value])
            ):
                raise typer.BadParameter("it is empty", param_hint=f"'--{name.replace('_', '-')}'")
        plugins = given.pop("plugin")
        try:
            with terminated_as_interrupted():
                for module in plugins if isinstance(plugins, list) else ():
                    load_plugin(module)
                command(*args, **given)
        except KeyboardInterrupt as stop:
            typer.echo(str(stop) or "Stopped.", err=True)
            code = stop.code if isinstance(stop, Stopped) else Stopped.code
            raise typer.Exit(code) from stop

    return with_parameters(wrapped, [*own.parameters.values(), *shared])


def add_command(app: typer.Typer, command: Command, name: str | None = None) -> None:
    """Add a command to a group, wrapped; each of its plain options takes one value."""
    app.command(name or command.__name__.replace("_", "-"), cls=Once)(wrap(command))


def group(help_text: str) -> typer.Typer:
    """Return a command that has commands of its own, which by itself prints its help."""
    app = typer.Typer(help=help_text)

    @app.callback(invoke_without_command=True)
    def bare(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            typer.echo(context.get_help())

    return app


def with_parameters(function: Command, parameters: Iterable[Parameter]) -> Command:
    """Give a function a signature of its own, which typer reads."""
    signature = inspect.Signature([p.replace(kind=Parameter.KEYWORD_ONLY) for p in parameters])
    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__annotations__ = {name: p.annotation for name, p in signature.parameters.items()}
    return function


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end what is running as Ctrl-C does, so that it can say what is kept.

    What is ignored (under nohup) still is.
    """

    def stop(number: int, _: FrameType | None) -> None:
        raise Stopped("Stopped.", number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handled = [number for number in TERMINATION if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
