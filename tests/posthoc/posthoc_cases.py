"""What the tests of corrections share: training rows without a program."""

from types import SimpleNamespace
from typing import Any

from bara_pyro.posthoc.correction import TrainingRows


class Evidence(TrainingRows):
    """Training rows of which these properties are known, those of a program whose draws differ."""

    def __init__(self, **known: Any) -> None:
        usual = {"groups": None, "offered": None, "guide": SimpleNamespace(stochastic=True)}
        self.__dict__.update(usual | known)

    def first(self, count: int) -> TrainingRows:
        return self
