"""Every option of every study: what is typed changes the planned runs, or what is written.

Studies are started as they are typed. What would train, sweep or measure notes its arguments instead.
"""

import ast
import inspect
import sys
from argparse import Action, Namespace
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from test_typed_settings import CHOSEN, parser_of

from bara_pyro.errors import BaraError
from experiments.engine import run, sweep
from experiments.engine.results import study_names

WORK = ("sweep", "find_results")  # what would train, or read what was trained
OTHERS = {"methods": "lora", "tasks": "micro-obqa", "assignments": "train.accumulate=2", "device": "cuda:1"}


class Anything:
    """Stands for results of work that was not done."""

    def __getattr__(self, name: str) -> "Anything":
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __getitem__(self, key: object) -> "Anything":
        return self

    def __call__(self, *_: object, **__: object) -> "Anything":
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __contains__(self, key: object) -> bool:
        return False

    def __len__(self) -> int:
        return 10_000

    def __format__(self, form: str) -> str:
        return ""

    def __repr__(self) -> str:
        return ""

    def keys(self) -> list[str]:
        return []


def shown(value: object) -> str:
    """Return what a value says, without what the study was given as a whole."""
    if isinstance(value, Namespace):
        return ""
    if isinstance(value, partial):
        return repr((value.args, value.keywords))
    return repr(value)


# What typed options are called in a study: the arguments, the settings made of them, a name of one in turn.
HOLDERS = {"args", "settings"}


def read_in(module: ModuleType) -> set[str]:
    """Return the names that a module reads from its arguments: `args.steps`, `parser.parse_args().out`.

    Those that it loops over also count: `{name: getattr(args, name) for name in ("start", "count")}`.
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


@pytest.fixture
def observed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., str]:
    """Return what gives all that a study asks for, or why it refuses what was typed."""
    monkeypatch.chdir(tmp_path)

    def of(study: str, *words: str) -> str:
        seen: list[str] = []

        def work(*given: object, **named: object) -> Anything:
            seen.append(", ".join(map(shown, (*given, *sorted(named.items())))))
            return Anything()

        def nothing(*given: object) -> None:
            work(*given)

        instead = {"find_results": nothing}
        module = import_module(f"experiments.studies.{study}.study")
        with monkeypatch.context() as patched:
            for place in (module, run, sweep):
                patched.setattr(place, "chosen", lambda *_, **__: dict(CHOSEN), raising=False)
                for name in WORK:
                    if hasattr(place, name):
                        patched.setattr(place, name, instead.get(name, work))
            patched.setattr(sys, "argv", [study, *words])
            try:
                module.main()
            except BaraError as error:
                seen.append(str(error))
            except (TypeError, ValueError, KeyError, ZeroDivisionError):  # of results that are none
                assert seen
        return "\n".join(seen)

    return of


def words_of(option: Action) -> tuple[str, ...]:
    """Return an option with a value that is not its default."""
    word = option.option_strings[-1]
    if option.nargs == 0:
        return (word,)
    if option.choices is not None:
        default = option.default if isinstance(option.default, list) else [option.default]
        others = [str(one) for one in option.choices if one not in default] or [str(default[-1])]
        return (word, OTHERS["methods"] if OTHERS["methods"] in others else others[0])
    if option.dest in OTHERS:
        return (word, OTHERS[option.dest])
    if option.type is Path or option.type is str or option.type is None:
        return (word, f"other-{option.dest}")
    return (word, "0.3" if option.type is float else "7")


@pytest.mark.parametrize("study", study_names())
def test_every_option_matters_or_is_refused(
    study: str, observed: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = observed(study)
    assert before, "nothing is asked for"
    # What is only read when runs are looked at, which there are none of here.
    module = import_module(f"experiments.studies.{study}.study")
    read = set().union(*map(read_in, (module, run, sweep)))
    options = [option for option in parser_of(study, monkeypatch)._actions if option.dest != "help"]
    for option in options:
        typed = words_of(option)
        after = observed(study, *typed)
        assert after != before or option.dest in read, f"{study} ignores {' '.join(typed)}"
