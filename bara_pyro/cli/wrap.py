"""Add to every command --json, --quiet, --debug and --plugin, its place in the help, and a clean stop.

A command refuses contradicting options, and its help is short unless you ask for all of it.
"""

import inspect
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import partial, wraps
from inspect import Parameter
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from bara_pyro.cli import terminal
from bara_pyro.errors import TERMINATION, Stopped
from bara_pyro.registry import load_plugin

# How click stores an option with one value, and a flag.
PLAIN = {"store", "store_const"}
HELP_ALL_ASKED = "bara.help_all"
"""The key of a context's `meta` that is true while `--help-all` prints."""
# The type of a value as Python writes it -> as the help does; a flag has none.
VALUES = {
    "bool": "",
    "Path": "PATH",
    **dict.fromkeys(("str", "list[str]"), "TEXT"),
    **dict.fromkeys(("int", "list[int]", "float"), "NUMBER"),
}


class _NamedValues:
    """Lets the help write NUMBER for an option's value where typer writes `<int>`, and nothing for a flag."""

    params: Any

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        for option in self.params:
            if option.param_type_name == "option" and option.metavar is None and hasattr(option, "bare_type"):
                option.metavar = VALUES.get(option.bare_type())  # typer has it since 0.29

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option `--help`, shown as a flag."""
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            option.metavar = ""
        return option


class Once(_NamedValues, TyperCommand):
    """A command that refuses two values of an option that cannot be repeated, of which click takes the last.

    Its `--help` shows the options that `listed` names, `--help-all` shows every one.
    """

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help: without `--help-all` only the options that most people need."""
        everyday = getattr(self.callback, "help_options", ())
        if not everyday or ctx.meta.get(HELP_ALL_ASKED):
            super().format_help(ctx, formatter)
            return
        named: dict[str | None, Any] = {param.name: copy(param) for param in self.params}
        chosen = [named[name] for name in (*everyday, "help_all")]
        for option in chosen:
            option.rich_help_panel = None
        arguments = [param for param in self.params if param.param_type_name == "argument"]
        shown = [param for param in self.params if not getattr(param, "hidden", False)]
        short, others = copy(self), len(shown) - len(arguments) - len(chosen)
        short.params = [*arguments, *chosen]
        short.epilog = f"`{ctx.command_path} --help-all` shows the other {others} options, by section."
        super(Once, short).format_help(ctx, formatter)

    def make_parser(self, ctx: Any) -> Any:
        """Return the parser, whose options refuse a second, different value."""
        parser: Any = super().make_parser(ctx)
        for option in {*parser._long_opt.values(), *parser._short_opt.values()}:
            if option.action in PLAIN:
                option.process = partial(_store, option, option.process, ctx)
        return parser

    def invoke(self, ctx: Any) -> Any:
        """Run the command, and keep the names of the options that were typed; refuse empty texts."""
        sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
        terminal.mode.typed = frozenset(
            name for name, source in sources.items() if source.name == "COMMANDLINE"
        )
        for param in self.params:
            value = ctx.params.get(param.name)
            if any(isinstance(one, str) and not one.strip() for one in _listed(value)):
                raise typer.BadParameter("it is empty", ctx, param)
        return super().invoke(ctx)


class Group(_NamedValues, TyperGroup):
    """A group of commands whose help names values in the same way as the help of its commands."""


def _listed(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else [value]


def _store(option: Any, store: Any, ctx: Any, value: Any, state: Any) -> None:
    earlier = state.opts.get(option.dest)
    store(value, state)
    taken = state.opts[option.dest]
    if earlier is not None and taken != earlier:
        ctx.fail(f"{_typed(option.obj, earlier)} and {_typed(option.obj, taken)} contradict each other")


def _typed(option: Any, value: Any) -> str:
    """Return an option and its value as the user types them."""
    if option.is_flag:
        return str((option.opts if value else option.secondary_opts)[0])
    return f"{option.opts[0]} {value}"


Command = Callable[..., None]
TRAIN, DECIDE, TEXT = "Train and evaluate", "Decide", "Text"
SHARE, INSIDE, STUDY = "Share", "Look inside", "Study"
PLUG_INS = "Plug-ins"
"""The group of a command whose package does not choose one."""
PANEL = "Output"
SHARED = {
    "json": typer.Option("--json", help="Print only the result, as JSON.", rich_help_panel=PANEL),
    "quiet": typer.Option("--quiet", "-q", help="Print no progress and no remarks.", rich_help_panel=PANEL),
    "debug": typer.Option("--debug", help="Print the traceback of an error.", rich_help_panel=PANEL),
}


Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="MODULE",
        help="Import your module that registers methods, guides, priors, metrics or tasks. Can be repeated.",
        rich_help_panel="Extensions",
    ),
]


def listed(group: str, *everyday: str) -> Callable[[Command], Command]:
    """Return a decorator that places a command in the help.

    Args:
        group: the heading in `bara --help`: `TRAIN`, `DECIDE`, .. or one of your own.
        everyday: the parameters that the command's own `--help` shows, `label_column` for `--label-column`.
            The command then has a `--help-all`, which shows every option. Without any, `--help` does.
    """

    def placed(command: Command) -> Command:
        vars(command).update(help_group=group, help_options=everyday)
        return command

    return placed


def group_of(command: Command) -> str:
    """Return the heading in `bara --help` that a command is listed under."""
    return str(vars(command).get("help_group", PLUG_INS))


def _show_all(context: typer.Context, typed: bool) -> None:
    if typed and not context.resilient_parsing:
        context.meta[HELP_ALL_ASKED] = True
        typer.echo(context.get_help())
        raise typer.Exit


HELP_ALL = typer.Option("--help-all", help="Show every option and exit.", is_eager=True, callback=_show_all)


def wrap(command: Command) -> Command:
    """Return a command with the options that all commands share, which prints one line if it is stopped."""
    signature = inspect.signature(command, eval_str=True)
    shared = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, option])
        for name, option in SHARED.items()
    ]
    shared.append(Parameter("plugin", Parameter.KEYWORD_ONLY, default=None, annotation=Plugins))
    if vars(command).get("help_options"):
        shared.append(
            Parameter("help_all", Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, HELP_ALL])
        )

    @wraps(command)
    def wrapped(*args: object, **given: object) -> None:
        given.pop("help_all", None)  # which ended the command where it was typed
        mode = {name: bool(given.pop(name)) for name in SHARED}
        vars(terminal.mode).update(mode, verbose=False)
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

    return with_parameters(wrapped, [*signature.parameters.values(), *shared])


def add_command(
    app: typer.Typer, command: Command, name: str | None = None, panel: str | None = None
) -> None:
    """Add a command to an app; an option that cannot be repeated takes one value.

    `panel` is the heading that the app's help lists it under.
    """
    name = name or command.__name__.replace("_", "-")
    # Typer keeps the line breaks of later paragraphs, which are those of the source.
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    app.command(name, cls=Once, help=text, rich_help_panel=panel)(wrap(command))


def group(help_text: str, listed_in: str = PLUG_INS) -> typer.Typer:
    """Return an app for commands of commands, which prints its help if none is named."""
    app = typer.Typer(cls=Group, help=help_text, rich_help_panel=listed_in)

    @app.callback(invoke_without_command=True)
    def bare(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            typer.echo(context.get_help())

    return app


def with_parameters(function: Command, parameters: Iterable[Parameter]) -> Command:
    """Give a function the signature that typer reads."""
    signature = inspect.Signature([p.replace(kind=Parameter.KEYWORD_ONLY) for p in parameters])
    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__annotations__ = {name: p.annotation for name, p in signature.parameters.items()}
    return function


def in_place_of(
    name: str, options: Mapping[str, Parameter], read: Callable[[dict[str, Any]], object]
) -> Callable[[Command], Command]:
    """Return a decorator that gives a command options in place of one parameter.

    The parameter receives what `read` makes of their values.
    """

    def taking(command: Command) -> Command:
        @wraps(command)
        def wrapped(**arguments: Any) -> None:
            values = {option: arguments.pop(option) for option in options}
            command(**arguments, **{name: read(values)})

        parameters: list[Parameter] = []
        for one in inspect.signature(command, eval_str=True).parameters.values():
            parameters += options.values() if one.name == name else [one]
        return with_parameters(wrapped, parameters)

    return taking


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Make SIGTERM and SIGHUP stop a command like Ctrl-C, so that it can say what was saved.

    A signal that is ignored, as under nohup, stays ignored.
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
