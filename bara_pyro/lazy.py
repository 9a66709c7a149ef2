"""Fast imports: load the names of a package when they are first used, and pause garbage collection."""

import gc
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from typing import Any


def lazy(package: str, home: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package.

    Args:
        package: name of the package.
        home: public name -> module of the package that defines it; "" if the name is itself a module.
    """

    def load(name: str) -> Any:
        if name not in home:
            folded = {known.casefold(): known for known in home}
            near = [folded[one] for one in get_close_matches(name.casefold(), folded)]
            hint = f": did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")
        with uncollected():
            module = import_module(f"{package}.{home[name] or name}")
        value = getattr(module, name) if home[name] else module
        vars(sys.modules[package])[name] = value
        return value

    return load, lambda: sorted(home)


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause garbage collection while the block runs, and count what it made among the old objects.

    For imports of torch and transformers: they create some million objects, none of them garbage, and the
    collector would look through all of them again and again.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if not gc.get_freeze_count():  # unfreeze would also release what the caller froze
                gc.freeze()
                gc.unfreeze()
            gc.enable()
