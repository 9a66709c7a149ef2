"""The sections of studies of sampled replies: tables and figures, from their entries."""

from collections.abc import Iterable

from experiments.engine.results import Results
from experiments.page.parts import Part

QUESTION = "Replies"


def parts(results: Results) -> Iterable[Part]:
    """Return the tables and figures."""
    return []
