"""A training that is stopped, by a signal or by a loss that is not finite, keeps what it had."""

import signal
import threading
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from bara_pyro.core.svi import SVI
from bara_pyro.errors import TERMINATION


class SignalHandler:
    """Ctrl-C, and what else stops a process and is handled, take effect when a step is whole.

    A second one takes effect at once.

    Attributes:
        signal: the number of the one that came; 0 while there is none.
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
    """The parameters that the last finite loss was computed with.

    Those that a non-finite loss was computed with are the ones that broke it: they are not worth keeping.
    """

    def __init__(self, svi: SVI) -> None:
        self.parameters = [p.detach() for p in svi.parameters]
        self._before = [p.clone() for p in self.parameters]
        self._good: list[Tensor] | None = None

    def before(self) -> None:
        """Note the parameters that a step starts from."""
        torch._foreach_copy_(self._before, self.parameters)

    def after(self) -> None:
        """Note that the step's loss was finite."""
        spare = [p.clone() for p in self.parameters] if self._good is None else self._good
        self._good, self._before = self._before, spare

    def restore(self) -> bool:
        """Put the good parameters back; return whether there are any."""
        if self._good is not None:
            torch._foreach_copy_(self.parameters, self._good)
        return self._good is not None
