"""The bounds as a part of an inspection."""

from typing import Final

from bara_pyro.diagnostics.bounds.guarantees import Guarantees, guarantees
from bara_pyro.diagnostics.bounds.render import render_bounds
from bara_pyro.diagnostics.parts import Part

BOUNDS: Final = Part(Guarantees, guarantees, render_bounds)
