"""How replies are drawn, and what can be wrong in that."""

from dataclasses import dataclass

from bara_pyro.errors import ConfigError
from bara_pyro.generation.sampling import warpers


@dataclass(frozen=True)
class Decoding:
    """How replies are drawn; see `generate`."""

    draws: int | str = "each"
    fresh_theta: bool = True
    mixture: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        warpers(self.temperature, self.top_p, self.top_k)
        for name, value in (("draws", self.draws), ("mixture", self.mixture)):
            if isinstance(value, bool) or (isinstance(value, int) and value < 1):
                raise ConfigError(f"{name} is {value}: give a number of draws, 1 or more.")
        if isinstance(self.draws, str) and self.draws not in ("each", "mean"):
            raise ConfigError(f"draws is {self.draws!r}: give 'each', 'mean' or a number of draws.")
        if self.mixture is not None and self.draws != "each":
            raise ConfigError(
                f"draws={self.draws!r} and mixture={self.mixture}: the mixture has its own draws, give "
                "one of the two."
            )
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            raise ConfigError(f"max_new_tokens is {self.max_new_tokens}: give 1 or more.")
        if not all(self.stop):
            raise ConfigError(f"stop is {self.stop!r}: give texts, none of them empty.")
