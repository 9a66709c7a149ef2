"""The colours of pages, figures and the site as CSS custom properties, for light and dark mode."""

from collections.abc import Iterable, Mapping

from bara_pyro.report.style import GREY, GRID, INK, PALE, PALETTE

DAY = {
    "ink": INK,
    "soft": GREY,
    "line": "#d1d9e0",
    "grid": GRID,
    "pale": PALE,
    "page": "#ffffff",
    "stripe": "#f6f8fa",
    "mark": PALETTE[0].lower(),
    **{f"c{i}": colour.lower() for i, colour in enumerate(PALETTE[:-1])},
}
NIGHT = {
    "ink": "#e6edf3",
    "soft": "#9aa4af",
    "line": "#3d444d",
    "grid": "#2b323b",
    "pale": "#4d5661",
    "page": "#0d1117",
    "stripe": "#161b22",
    "mark": "#58a6e0",
    "c0": "#58a6e0",
    "c1": "#ff8a3d",
    "c2": "#2fc596",
    "c3": "#e39cc4",
    "c4": "#f0b429",
    "c5": "#8fd0f7",
}


def properties(colours: Mapping[str, str] = DAY) -> str:
    """Return CSS declarations of colours."""
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


def as_the_system(names: Iterable[str] = DAY) -> str:
    """Return CSS that defines these colours for light mode, and for dark mode if the system uses it."""
    day, night = (properties({name: theme[name] for name in names}) for theme in (DAY, NIGHT))
    # Print in light colours, because paper is white.
    return f":root {{ {day} }}\n@media screen and (prefers-color-scheme: dark) {{ :root {{ {night} }} }}"
