"""Keep the progress of a training that is stopped by a signal or by a loss that is not finite."""

import signal
import threading
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from bara_pyro.core.svi import SVI
from bara_pyro.errors import TERMINATION


class SignalHandler:
    """Defers Ctrl-C and other handled signals to the end of a step; a second signal takes effect at once.

    Attributes:
        signal: the number of the signal received; 0 if none.
    """

    def __init__(self) -> None:
        self.signal = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "SignalHandler":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, *TERMINATION):
                if callable(before := signal.getsignal(number)):
                    self._before[number] = before
                    signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal:
            self._before[number](number, frame)
        self.signal = number


class LastFinite:
    """The parameters with which the last finite loss was computed.

    Parameters that gave a non-finite loss are not worth keeping.
    """

    def __init__(self, svi: SVI) -> None:
        self.parameters = [p.detach() for p in svi.parameters]
        self._before = [p.clone() for p in self.parameters]
        self._good: list[Tensor] | None = None

    def before(self) -> None:
        """Remember the parameters at the start of a step."""
        torch._foreach_copy_(self._before, self.parameters)

    def after(self) -> None:
        """Mark the remembered parameters as good, because the step's loss was finite."""
        spare = [p.clone() for p in self.parameters] if self._good is None else self._good
        self._good, self._before = self._before, spare

    def restore(self) -> bool:
        """Restore the last good parameters; return whether there are any."""
        if self._good is not None:
            torch._foreach_copy_(self.parameters, self._good)
        return self._good is not None
