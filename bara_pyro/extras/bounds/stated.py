"""What a bound says in sentences, which no way of printing it leaves out."""

from abc import ABC, abstractmethod
from collections.abc import Iterable


class Stated(ABC):
    """A bound that shows as its statement however it is printed."""

    @abstractmethod
    def statement(self) -> str:
        """Return the bound in sentences, with its assumptions."""

    def __str__(self) -> str:
        return self.statement()

    __repr__ = __str__


def numbered(assumptions: Iterable[str]) -> str:
    """Return the assumptions of a bound as the end of its statement."""
    return "Assumed: " + " ".join(f"({i}) {sentence}" for i, sentence in enumerate(assumptions, 1))
