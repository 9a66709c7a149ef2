"""Things by name: methods, guides, priors and tasks, those of this package and those of others.

A package offers its own through an entry point, found where the package is installed and imported when its
name is first asked for::

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
    """A read-only mapping of names to things, filled by `register` and by installed packages.

    What installed packages offer is listed by name, and imported when it is asked for.

    Args:
        kind: what the things are, for messages: "method".
        group: the entry-point group in which other packages offer theirs: "bara_pyro.methods".
        modules: those of this package that register theirs when they are imported, which happens when a name
            is looked for that is not there yet; `package.*` stands for all modules of a package.
        of: class of what packages offer.
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
        """Add a thing under a name and return it; a name can be taken once.

        Raises:
            ConfigError: the name is no text, or is taken.
        """
        self._check_name(name)
        if self._items.get(name, item) is not item:
            raise ConfigError(f"The {self.kind} name {name!r} is already registered: choose another.")
        self._items[name] = item
        return item

    def named(self, name: str) -> Callable[[Kind], Kind]:
        """Return a decorator that registers what stands below it: `@REGISTRY.named("name")`.

        Raises:
            ConfigError: the name is no text, or is taken.
        """
        self._check_name(name)

        def decorator(item: Kind) -> Kind:
            self.register(name, cast(Item, item))
            return item

        return decorator

    def _check_name(self, name: object) -> None:
        if not isinstance(name, str) or not name:
            raise ConfigError(f'A {self.kind} needs a name, such as "mine", not {name!r}.')

    def find(self, name: object) -> Item:
        """Return the thing of a name.

        Raises:
            ConfigError: there is none, or the package that offers it cannot be imported.
        """
        if not isinstance(name, str) or name not in self:
            raise ConfigError(unknown(self.kind, name, self))
        return self[name]

    def usable(self) -> Iterator[tuple[str, Item]]:
        """Yield names and things but for those of packages that cannot be imported."""
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
        return isinstance(name, str) and (name in self._items or name in (*self,))

    def _import_own(self) -> None:
        """Import the modules of this package that register something, once."""
        modules, self._modules = self._modules, ()
        for module in modules:
            package, _, rest = module.rpartition(".")
            if rest != "*":
                import_module(module)
                continue
            for found in iter_modules(import_module(package).__path__):
                import_module(f"{package}.{found.name}")

    @cached_property
    def _offered(self) -> dict[str, EntryPoint]:
        """What installed packages offer, by name."""
        return {point.name: point for point in entry_points(group=self.group)}

    def _load(self, point: EntryPoint) -> Item:
        try:
            item: Item = point.load()
        except (Exception, SystemExit) as error:  # whatever somebody else's module does
            raise ConfigError(
                f"{self._offer(point)} cannot be imported ({error}): mend or uninstall that package."
            ) from error
        if not isinstance(item, self._of):
            raise ConfigError(
                f"{self._offer(point)} is a {type(item).__name__} and no {self._of.__name__}: mend or "
                "uninstall that package."
            )
        return item

    def _offer(self, point: EntryPoint) -> str:
        package = point.dist.name if point.dist else point.value
        return f"The {self.kind} {point.name!r} of the package {package}"


PLUGINS: list[str] = []
"""The modules that `load_plugin` has imported: a run remembers them, and is not read without them."""


def load_plugin(module: str) -> None:
    """Import a module that registers methods, guides, priors or tasks when it is imported.

    For what is not installed as a package with entry points.

    Raises:
        ConfigError: there is no such module, or it fails.
    """
    try:
        import_module(module)
    except (Exception, SystemExit) as error:  # whatever somebody else's module does
        absent = isinstance(error, ModuleNotFoundError) and module.startswith(error.name or "")
        way_out = "mend it"
        if absent:
            way_out = "give the name of a module that Python finds, for example through PYTHONPATH"
        raise ConfigError(f"The plug-in {module!r} cannot be imported ({error}): {way_out}.") from error
    if module not in PLUGINS:
        PLUGINS.append(module)
