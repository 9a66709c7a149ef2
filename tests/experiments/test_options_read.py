"""Options of the studies that have no --set: each is read by the study itself, none by its parser alone."""

import ast
import inspect
from importlib import import_module
from types import ModuleType

import pytest
from test_typed_settings import BY_OPTIONS
from test_typed_twice import parser_of

# What typed options are called in a study: the arguments, the settings made of them, a name of one in turn.
HOLDERS = {"args", "settings"}


def read_in(module: ModuleType) -> set[str]:
    """Return the names that a module reads from its arguments: `args.steps`, `parser.parse_args().out`.

    Those that it loops over count, too: `{name: getattr(args, name) for name in ("start", "count")}`.
    """
    found: set[str] = set()
    tree = ast.parse(inspect.getsource(module))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            held = node.value
            if isinstance(held, ast.Call) and isinstance(held.func, ast.Attribute):
                found |= {node.attr} if held.func.attr == "parse_args" else set()
            elif isinstance(held, ast.Name) and held.id in HOLDERS:
                found.add(node.attr)
    if any(isinstance(n, ast.Call) and getattr(n.func, "id", "") == "getattr" for n in ast.walk(tree)):
        tuples = (node for node in ast.walk(tree) if isinstance(node, ast.Tuple))
        found |= {one.value for node in tuples for one in node.elts if isinstance(one, ast.Constant)}
    return found


@pytest.mark.parametrize("study", sorted(BY_OPTIONS))
def test_every_option_is_read(study: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {option.dest for option in parser_of(study, monkeypatch)._actions} - {"help", "quick"}
    assert options
    assert options <= read_in(import_module(f"experiments.studies.{study}.study"))
