"""What is fitted to the training rows of a run, and needs some of them."""

from typing import ClassVar

from torch import nn

from bara_pyro.errors import DataError

FEWEST = 10


class FittedToRows(nn.Module):
    """Base of corrections that are fitted to training rows.

    Attributes:
        purpose: what the rows are for, as a sentence goes on.
        option: what asks for it.
    """

    purpose: ClassVar[str]
    option: ClassVar[str]

    def check_rows(self, rows: int) -> None:
        """Raise `DataError` for fewer than `FEWEST` training rows."""
        if rows < FEWEST:
            raise DataError(
                f"There are {rows} training rows to {self.purpose}, and {FEWEST} are the least: leave out "
                f"{self.option}."
            )
