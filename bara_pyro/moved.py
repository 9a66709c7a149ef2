"""Old names of modules, classes and functions, kept for one version with a DeprecationWarning.

`moved.json` lists them under the names that they had.
"""

import json
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial, wraps
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

from bara_pyro.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")


def _now(name: str) -> str:
    """Return the new name of a module, or ""."""
    old = name
    while old and old not in MOVED:
        old = old.rpartition(".")[0]
    return MOVED[old] + name.removeprefix(old) if old else ""


def _in_place(table: dict[str, str]) -> dict[str, str]:
    """Return the table with the names of the modules in which Python looks for the old names."""
    places = ((old.rpartition("."), now) for old, now in table.items())
    return {f"{_now(module) or module}.{name}": now for (module, _, name), now in places}


_TABLES = json.loads(Path(__file__).with_name("moved.json").read_text(encoding="utf-8"))
COMMANDS: dict[str, str] = _TABLES["commands"]
"""Removed command -> what to do instead."""
MOVED: dict[str, str] = _TABLES["modules"]
"""Old module name -> new module name; its submodules are found as well."""
RENAMED = _in_place(_TABLES["names"])
"""Old name of an object -> new name, both with their modules."""
REMOVED = _in_place(_TABLES["removed"])
"""Name of an object or module that was removed -> what to use instead."""
OPTIONS: dict[str, str] = _TABLES["options"]
"""Removed option of a model -> what to use instead."""
KEPT = {"bara_pyro.peft"}
"""Old names without a warning: PEFT shows this one if bara_pyro is missing (`runs.writing.PEFT_TYPE`)."""
_PLACES = {name.rpartition(".")[0] for name in (*RENAMED, *REMOVED)}


class OldNames(MetaPathFinder, Loader):
    """Import hook that resolves an old module name to the moved module, so that classes are identical."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for a module that moved or has old names; None for any other."""
        if fullname in REMOVED:
            raise _removed(fullname)
        if _now(fullname):
            return spec_from_loader(fullname, self)
        spec = PathFinder.find_spec(fullname, path, target) if fullname in _PLACES else None
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _WithOldNames(spec.loader.name, spec.loader.path)
        return spec

    def exec_module(self, module: ModuleType) -> None:
        """Replace the empty module by the moved one."""
        old = module.__name__
        now = _now(old)
        if old in MOVED and old not in KEPT:
            warn_renamed(old, now)
        sys.modules[old] = import_module(now)


class _WithOldNames(SourceFileLoader):
    """Loads a module whose `__getattr__` also finds its old names."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, then wrap its own `__getattr__`, if it has one."""
        super().exec_module(module)
        own = vars(module).get("__getattr__", partial(_no_attribute, module.__name__))
        vars(module)["__getattr__"] = partial(_old_name, module.__name__, own)


def _old_name(module: str, otherwise: Callable[[str], Any], name: str) -> Any:
    old = f"{module}.{name}"
    if old in REMOVED:
        raise _removed(old)
    if old not in RENAMED:
        return otherwise(name)
    now = RENAMED[old]
    warn_renamed(old, now)
    place, _, attribute = now.rpartition(".")
    return getattr(import_module(place), attribute)


def _removed(name: str) -> ImportError:
    # `from module import name` would replace the sentence of an AttributeError by its own.
    return ImportError(f"{name.rpartition('.')[2]} was removed: {REMOVED[name]}.", name=name)


def _no_attribute(module: str, name: str) -> Any:
    raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name, obj=sys.modules[module])


def refuse_removed(create: Callable[P, R]) -> Callable[P, R]:
    """Return the constructor of a model that refuses removed options with a ConfigError."""

    @wraps(create)
    def checked(*args: P.args, **options: P.kwargs) -> R:
        for name in options.keys() & OPTIONS:
            raise ConfigError(f"{name} is no longer an option of a model: {OPTIONS[name]}.")
        return create(*args, **options)

    return checked


def warn_renamed(old: str, new: str) -> None:
    """Warn the caller of a function, property or import that it, or an argument of it, has a new name."""
    sentence = f"{old} is now {new}: the old name goes with the next version."
    warnings.warn(sentence, DeprecationWarning, stacklevel=3)


def find_moved() -> None:
    """Install the import hook first: Python would load a file of a moved package once per name."""
    sys.meta_path.insert(0, OldNames())
