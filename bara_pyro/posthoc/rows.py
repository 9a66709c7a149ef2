"""Base of corrections that need a minimum number of training rows."""

from typing import ClassVar

from torch import nn

from bara_pyro.errors import DataError

FEWEST = 10


class FittedToRows(nn.Module):
    """Base of corrections that are fitted to training rows.

    Attributes:
        purpose: use of the rows, which completes the error message "training rows are too few to ..".
        option: the option that switches the correction on.
    """

    purpose: ClassVar[str]
    option: ClassVar[str]

    def check_rows(self, rows: int) -> None:
        """Check the number of training rows.

        Raises:
            DataError: there are fewer than `FEWEST` rows.
        """
        if rows < FEWEST:
            raise DataError(
                f"{rows} training rows are too few to {self.purpose}: give at least {FEWEST}, or leave out "
                f"{self.option}."
            )
