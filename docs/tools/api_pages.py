"""The pages of the API that follow from the code: the names of `bara_pyro`, the programs, the guides."""

import inspect
from importlib import import_module
from pkgutil import iter_modules

import bara_pyro
from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.program import AdaptedLM
from docs.tools.method_list import table

NAMES = """# bara_pyro

This page lists what `import bara_pyro as bp` offers: whole runs, as on the command line, and their parts
from loading to inference. The import is quick, because a name is loaded when it is first used. Every function
has an example that the tests run. When a name may change:
[what a version promises](../contributing.md#what-a-version-promises).
"""
MODELS = """# Models

This page documents the generative models: what is learned, what is drawn, and how it changes a frozen layer.
Each is one file in `models/`, with its formulas at the top.
"""
GUIDES = """# Guides

This page documents the variational families: the distributions that the posterior of a model's latents may
have. Each is one file in `guides/`.
"""


def api_pages() -> dict[str, str]:
    """Return the pages in Markdown, by their paths in docs/."""
    return {
        "api/index.md": names(),
        "api/models.md": MODELS + classes("bara_pyro.models", AdaptedLM),
        "api/guides.md": GUIDES + classes("bara_pyro.guides", SiteGuide),
    }


def names() -> str:
    """Return a table of the public names, each with its first sentence and a link."""
    rows = []
    for name in bara_pyro.__all__:
        thing = getattr(bara_pyro, name)
        first = (inspect.getdoc(thing) or "").split("\n")[0]
        page = f"({name}.md)" if inspect.ismodule(thing) else f"[{thing.__module__}.{thing.__qualname__}]"
        rows.append((f"[`{name}`]{page}", first))
    return f"{NAMES}\n{table(('name', 'what it is'), rows)}"


def classes(package: str, base: type) -> str:
    """Return a reference to every public subclass of `base` that a module of a package defines."""
    found = []
    for module in iter_modules(import_module(package).__path__, f"{package}."):
        for name, one in vars(import_module(module.name)).items():
            if isinstance(one, type) and issubclass(one, base) and one.__module__ == module.name:
                found += [f"\n::: {module.name}.{name}\n"] if name[0] != "_" else []
    return "".join(found)
