"""Settings of the training of a reward model."""

import math
from dataclasses import dataclass

from bara_pyro.errors import ConfigError
from bara_pyro.runs.sections import MOST_SEED


@dataclass(frozen=True)
class RewardConfig:
    """How a reward model is trained.

    Attributes:
        epochs: times that every pair is seen.
        lr: rate of AdamW, which rises over the first tenth of the steps and falls to zero by the last; None
            for 1e-4, and 1e-3 of the head alone.
        batch_size: pairs a step.
        max_length: the most tokens of prompt and reply together; see `rows.row_of`. None for 1024, and fewer
            where the language model takes fewer.
        head_only: train the head on features of the frozen model, which are computed once; else LoRA in all
            linear layers, too.
        r: rank of LoRA.
        lora_alpha: its change is multiplied by `lora_alpha / r`.
        weight_decay: of AdamW.
        dtype: type of the frozen weights, and of those written; what is trained is in float32 until then.
        seed: of the first values of LoRA and the order of the pairs.

    Raises:
        ConfigError: a value is out of range.
    """

    epochs: int = 2
    lr: float | None = None
    batch_size: int = 8
    max_length: int | None = None
    head_only: bool = False
    r: int = 8
    lora_alpha: float = 16.0
    weight_decay: float = 0.01
    dtype: str = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "max_length", "r"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigError(f"{name} is {value}: choose 1 or more.")
        for name, number in (("lr", self.rate), ("lora_alpha", self.lora_alpha)):
            if not 0 < number < math.inf:
                raise ConfigError(f"{name} is {number}: choose a positive number.")
        if not 0 <= self.weight_decay < math.inf:
            raise ConfigError(f"weight_decay is {self.weight_decay}: choose 0 or more.")
        if not 0 <= self.seed <= MOST_SEED:
            raise ConfigError(f"seed is {self.seed}: choose 0 to {MOST_SEED}.")

    @property
    def rate(self) -> float:
        """The rate of AdamW, the default one where none is set."""
        return self.lr if self.lr is not None else 1e-3 if self.head_only else 1e-4

    def steps(self, pairs: int) -> int:
        """Return the number of steps that see every one of so many pairs `epochs` times."""
        return math.ceil(self.epochs * pairs / self.batch_size)
