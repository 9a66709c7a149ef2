"""A command that refuses contradicting options, and whose help is short unless you ask for all of it."""

from collections.abc import Iterable
from copy import copy
from functools import partial
from typing import Any

from typer.core import TyperCommand, TyperGroup

from bara_pyro.cli import terminal

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


class Once(TyperCommand):
    """A command that refuses two values of an option that cannot be repeated, of which click takes the last.

    Its `--help` shows the options that `listed` names, `--help-all` shows every one.
    """

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        _name_values(self.params)

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option `--help`, shown as a flag."""
        return _flag(super().get_help_option(ctx))

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
        """Run the command, and keep the names of the options that were typed."""
        sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
        terminal.mode.typed = frozenset(
            name for name, source in sources.items() if source.name == "COMMANDLINE"
        )
        return super().invoke(ctx)


class Group(TyperGroup):
    """A group of commands whose help names values in the same way as the help of its commands."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        _name_values(self.params)

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option `--help`, shown as a flag."""
        return _flag(super().get_help_option(ctx))


def _name_values(params: Iterable[Any]) -> None:
    """Let the help write NUMBER for an option's value where typer writes `<int>`."""
    for option in params:
        if option.param_type_name == "option" and option.metavar is None and hasattr(option, "bare_type"):
            option.metavar = VALUES.get(option.bare_type())  # typer has it since 0.29


def _flag(option: Any) -> Any:
    if option is not None:
        option.metavar = ""
    return option


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
