"""A base class for bounds that always print with their assumptions."""

from abc import ABC, abstractmethod
from collections.abc import Iterable


class Stated(ABC):
    """A bound whose `str` and `repr` are its statement."""

    @abstractmethod
    def statement(self) -> str:
        """Return the bound in sentences, with its assumptions."""

    def __str__(self) -> str:
        return self.statement()

    __repr__ = __str__


def numbered(assumptions: Iterable[str]) -> str:
    """Return numbered assumptions, for the end of a statement."""
    return "Assumed: " + " ".join(f"({i}) {sentence}" for i, sentence in enumerate(assumptions, 1))
