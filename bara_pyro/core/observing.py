"""A program that observes something else for a while: what was fitted on replies answers questions."""

from collections.abc import Iterator
from contextlib import contextmanager

from bara_pyro.core.likelihood import Likelihood
from bara_pyro.core.program import AdaptedLM
from bara_pyro.core.threads import PROGRAM


@contextmanager
def observing(model: AdaptedLM, likelihood: Likelihood) -> Iterator[None]:
    """Give a program another likelihood while the block runs; other threads wait."""
    own = model.likelihood
    with PROGRAM:
        model.likelihood = likelihood
        try:
            yield
        finally:
            model.likelihood = own
