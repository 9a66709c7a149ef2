"""The bounds as a part of an inspection."""

from typing import Final

from bara_pyro.diagnostics.parts import InspectionPart
from bara_pyro.extras.bounds.guarantees import Guarantees, guarantees
from bara_pyro.extras.bounds.render import render_bounds

BOUNDS: Final = InspectionPart(Guarantees, guarantees, render_bounds)
