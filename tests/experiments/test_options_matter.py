"""Every option of every study: what is typed changes the planned runs, or what is written.

Studies are started as they are typed. What would train, sweep or measure notes its arguments instead.
"""

import ast
import inspect
import sys
from argparse import Action, Namespace
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

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

    def __contains__(self, key: object) -> bool:
        return False


def shown(value: object) -> str:
    """Return what a value says, without what the study was given as a whole."""
    return "" if isinstance(value, Namespace) else repr(value)


def read_in(module: ModuleType) -> set[str]:
    """Return the names that a module reads from its arguments: `args.steps`."""
    read = (
        node for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.Attribute)
    )
    return {node.attr for node in read if isinstance(node.value, ast.Name) and node.value.id == "args"}


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
