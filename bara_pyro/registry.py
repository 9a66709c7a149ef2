"""Registries of methods, guides, priors, metrics and tasks, which other packages can extend.

A package provides an item through an entry point. It is found once the package is installed, and imported
when its name is first used::

    [project.entry-points."bara_pyro.priors"]
    weibull = "my_package.priors:weibull"
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pkgutil import iter_modules
from typing import Generic, TypeVar, cast

from bara_pyro.errors import ConfigError, unknown

Item = TypeVar("Item")
Kind = TypeVar("Kind")


class Registry(Mapping[str, Item], Generic[Item]):
    """Read-only mapping of names to items, filled by `register` and by installed packages.

    Items of installed packages are listed by name and imported on first use.

    Args:
        kind: kind of the items, for messages, such as "method".
        group: entry-point group of other packages, such as "bara_pyro.methods".
        modules: modules of this package that register items on import; they are imported when an unknown name
            is looked up. `package.*` stands for all modules of a package.
        of: class that items of other packages must have.
    """

    def __init__(
        self, kind: str, group: str, modules: tuple[str, ...] = (), *, of: type[object] = object
    ) -> None:
        self.kind = kind
        self._of = of
        self.group = group
        self._modules = modules
        self._items: dict[str, Item] = {}

    def register(self, name: str, item: Item) -> Item:
        """Add an item under a name and return it.

        Raises:
            ConfigError: the name is empty or not a string, or it is taken.
        """
        self._check_name(name)
        if self._items.get(name, item) is not item:
            raise ConfigError(f"The {self.kind} name {name!r} is already registered: choose another.")
        self._items[name] = item
        return item

    def named(self, name: str) -> Callable[[Kind], Kind]:
        """Return a decorator that registers an item: `@REGISTRY.named("name")`; errors as for `register`."""
        self._check_name(name)

        def decorator(item: Kind) -> Kind:
            self.register(name, cast(Item, item))
            return item

        return decorator

    def _check_name(self, name: object) -> None:
        if not isinstance(name, str) or not name:
            raise ConfigError(f'A {self.kind} needs a name, such as "mine", not {name!r}.')

    def find(self, name: object) -> Item:
        """Return the item of a name.

        Raises:
            ConfigError: the name is unknown, or the package that provides it cannot be imported.
        """
        if not isinstance(name, str) or name not in self:
            raise ConfigError(unknown(self.kind, name, self))
        return self[name]

    def usable(self) -> Iterator[tuple[str, Item]]:
        """Yield names and items, except items whose package cannot be imported."""
        for name in self:
            with suppress(ConfigError):
                yield name, self[name]

    def __getitem__(self, name: str) -> Item:
        if name not in self._items:
            self._import_own()
        if name not in self._items and name in self._offered:
            self.register(name, self._load(self._offered[name]))
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        self._import_own()
        return iter(dict.fromkeys((*self._items, *self._offered)))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        if name not in self._items:
            self._import_own()
        return name in self._items or name in self._offered  # the installed packages are read last

    def _import_own(self) -> None:
        """Import the modules of this package that register something, once."""
        modules, self._modules = self._modules, ()
        for module in modules:
            package, _, rest = module.rpartition(".")
            if rest != "*":
                import_module(module)
                continue
            for entry in iter_modules(import_module(package).__path__):
                import_module(f"{package}.{entry.name}")

    @cached_property
    def _offered(self) -> dict[str, EntryPoint]:
        """Entry points of installed packages, by name."""
        return {point.name: point for point in entry_points(group=self.group)}

    def _load(self, point: EntryPoint) -> Item:
        try:
            item: Item = point.load()
        except (Exception, SystemExit) as error:  # another package's module may raise anything
            raise ConfigError(
                f"{self._offer(point)} cannot be imported ({error}): fix or uninstall that package."
            ) from error
        if not isinstance(item, self._of):
            raise ConfigError(
                f"{self._offer(point)} is a {type(item).__name__}, not a {self._of.__name__}: fix or "
                "uninstall that package."
            )
        return item

    def _offer(self, point: EntryPoint) -> str:
        package = point.dist.name if point.dist else point.value
        return f"The {self.kind} {point.name!r} of the package {package}"


PLUGINS: list[str] = []
"""Modules imported by `load_plugin`; a run records them and needs them to be read back."""


def load_plugin(module: str) -> None:
    """Import a module that registers methods, guides, priors, metrics or tasks, or raise a `ConfigError`.

    For plug-ins that are not installed as packages with entry points.
    """
    try:
        import_module(module)
    except (Exception, SystemExit) as error:  # another package's module may raise anything
        absent = isinstance(error, ModuleNotFoundError) and module.startswith(error.name or "")
        way_out = "fix it"
        if absent:
            way_out = "give a module that Python finds: with PYTHONPATH=., mine for ./mine.py"
        raise ConfigError(f"The plug-in {module!r} cannot be imported ({error}): {way_out}.") from error
    if module not in PLUGINS:
        PLUGINS.append(module)
