"""A command whose options take one value each: of two that contradict each other neither gives way."""

from functools import partial
from typing import Any

from typer.core import TyperCommand

from bara_pyro.cli import terminal

# How click stores an option that takes one value, and one that is a flag.
PLAIN = {"store", "store_const"}


class Once(TyperCommand):
    """A command that refuses two values of an option which cannot be repeated; click takes the last one."""

    def make_parser(self, ctx: Any) -> Any:
        """Return the parser, whose options compare what comes with what came."""
        parser: Any = super().make_parser(ctx)
        for option in {*parser._long_opt.values(), *parser._short_opt.values()}:
            if option.action in PLAIN:
                option.process = partial(_store, option, option.process, ctx)
        return parser

    def invoke(self, ctx: Any) -> Any:
        """Run the command, with the names of what was typed at hand."""
        sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
        terminal.mode.typed = frozenset(
            name for name, source in sources.items() if source.name == "COMMANDLINE"
        )
        return super().invoke(ctx)


def _store(option: Any, store: Any, ctx: Any, value: Any, state: Any) -> None:
    given = state.opts.get(option.dest)
    store(value, state)
    taken = state.opts[option.dest]
    if given is not None and taken != given:
        ctx.fail(f"{_typed(option.obj, given)} and {_typed(option.obj, taken)} contradict each other")


def _typed(option: Any, value: Any) -> str:
    """Return an option and its value as they are typed."""
    if option.is_flag:
        return str((option.opts if value else option.secondary_opts)[0])
    return f"{option.opts[0]} {value}"
