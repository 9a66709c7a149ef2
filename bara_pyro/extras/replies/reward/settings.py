"""Settings for training a reward model."""

import math
from dataclasses import dataclass

from bara_pyro.errors import ConfigError
from bara_pyro.runs.sections import MOST_SEED


@dataclass(frozen=True)
class RewardConfig:
    """Settings for training a reward model.

    Attributes:
        epochs: passes over the pairs.
        lr: peak learning rate of AdamW, with a warm-up over the first tenth of the steps and a decay to zero;
            None for 1e-4, or 1e-3 with `head_only`.
        batch_size: pairs per step.
        max_length: most tokens of prompt and reply together; see `rows.row_of`. None for 1024, or the
            language model's own limit if lower.
        head_only: train only the head, on features of the frozen model that are computed once; otherwise also
            train LoRA in all linear layers.
        r: rank of LoRA.
        lora_alpha: LoRA's change is multiplied by `lora_alpha / r`.
        weight_decay: weight decay of AdamW.
        dtype: type of the frozen and the saved weights; training uses float32.
        seed: seed of LoRA's initial values and of the order of the pairs.

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
        """The learning rate of AdamW, or its default if `lr` is None."""
        return self.lr if self.lr is not None else 1e-3 if self.head_only else 1e-4

    def steps(self, pairs: int) -> int:
        """Return the number of steps for `epochs` passes over the pairs."""
        return math.ceil(self.epochs * pairs / self.batch_size)
