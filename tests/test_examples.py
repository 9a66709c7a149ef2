"""Every public function has an example in its docstring; every example of the package prints what it says.

Public is what `bara_pyro` offers by name and what the pages of the API document.
"""

import doctest
import inspect
import pkgutil
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest

import bara_pyro as bp
from bara_pyro.core.priors import PRIORS
from bara_pyro.data.registry import TASKS
from bara_pyro.errors import SandboxError
from bara_pyro.extras.replies.sandbox import check_isolation
from bara_pyro.guides.families import FAMILIES
from bara_pyro.methods import METHODS
from bara_pyro.metrics.base import METRICS
from bara_pyro.registry import Registry

PAGES = Path(__file__).parents[1] / "docs" / "api"
DOCUMENTED = re.compile(r"^::: (\S+)", flags=re.MULTILINE)


def path_of(thing: Any) -> str:
    """Where something is defined."""
    return f"{thing.__module__}.{thing.__qualname__}"


def named(path: str) -> Any:
    """What a dotted path of a page names: a module, or something that one defines."""
    try:
        return import_module(path)
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        return getattr(import_module(module), name)


def documented() -> Iterator[Any]:
    """What the pages of the API show."""
    for page in sorted(PAGES.glob("*.md")):
        for path in DOCUMENTED.findall(page.read_text(encoding="utf-8")):
            thing = named(path)
            shown = [getattr(thing, name) for name in thing.__all__] if inspect.ismodule(thing) else [thing]
            yield from (one for one in shown if callable(one))


REGISTRIES: tuple[Registry, ...] = (PRIORS, FAMILIES, METHODS, METRICS, TASKS)
# All modules that register something are imported now: in their own order, which is not that of the pages,
# and not into the copies that examples register in.
KNOWN = [[*registry] for registry in REGISTRIES]
ISOLATED = {
    f"bara_pyro.extras.replies.sandbox.{name}" for name in ("humaneval.judge", "runner.check_isolation")
}
ISOLATED |= {
    f"bara_pyro.extras.replies.sandbox.{name}" for name in ("runner.run_program", "trial.try_function")
}
OFFERED = [thing for name in bp.__all__ if not isinstance(thing := getattr(bp, name), ModuleType)]
OFFERED.append(bp.guides.register_guide)
SHOWN = {path_of(thing): thing for thing in (*OFFERED, *documented())}
# Classes that are not offered by name are, for the most part, what functions return: those show them.
NEEDED = {path_of(thing) for thing in OFFERED} | {
    path for path, thing in SHOWN.items() if not isinstance(thing, type)
}
MODULES = [found.name for found in pkgutil.walk_packages(bp.__path__, "bara_pyro.")]
EXAMPLES = {
    found.name: found
    for name in MODULES
    if not name.endswith("__main__")
    for found in doctest.DocTestFinder().find(import_module(name), name)
    if found.examples
}


def failures(example: doctest.DocTest) -> str:
    """What an example prints otherwise than it says."""
    said: list[str] = []
    doctest.DocTestRunner(verbose=False).run(example, out=said.append, clear_globs=False)
    return "".join(said)


def test_every_public_function_has_an_example() -> None:
    assert not sorted(NEEDED - EXAMPLES.keys())


def path_parameters() -> dict[str, tuple[Any, ...]]:
    """The types of each parameter of a public function that takes a path, by function and parameter."""
    types = {
        f"{path} {name}": get_args(parameter.annotation) or (parameter.annotation,)
        for path, thing in SHOWN.items()
        if not isinstance(thing, type)  # settings are read by pydantic, which makes paths of strings
        for name, parameter in inspect.signature(thing, eval_str=True).parameters.items()
    }
    return {name: taken for name, taken in types.items() if Path in taken}


def test_where_a_public_function_takes_a_path_it_takes_a_string() -> None:
    found = path_parameters()
    assert "bara_pyro.runs.train.train out" in found
    assert not [name for name, taken in found.items() if str not in taken]


@pytest.fixture
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder for what an example writes, and registries that forget what it adds."""
    monkeypatch.chdir(tmp_path)
    for registry in REGISTRIES:
        monkeypatch.setattr(registry, "_items", dict(registry._items))


@pytest.mark.usefixtures("apart", "small_pictures")
@pytest.mark.parametrize("path", EXAMPLES)
def test_the_example(path: str) -> None:
    if path in ISOLATED:
        try:
            check_isolation()
        except SandboxError as error:
            pytest.skip(f"programs cannot be isolated here: {error}")
    assert not failures(EXAMPLES[path])


def test_the_section_is_one_that_the_site_shows() -> None:
    """Under another heading, `Example:` for one, mkdocstrings takes `>>>` for a quotation."""
    shown = {
        path: inspect.cleandoc(EXAMPLES[path].docstring or "") for path in SHOWN.keys() & EXAMPLES.keys()
    }
    assert not [path for path, text in shown.items() if "Examples:\n    >>> " not in text]


def test_an_example_that_is_wrong_is_found() -> None:
    wrong = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, None)
    assert "Expected:\n    3\nGot:\n    2" in failures(wrong)
