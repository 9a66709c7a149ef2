"""Where the settings of a method are looked for, so that all have the same number of trials."""

from dataclasses import dataclass

# Above the last one LoRA itself falls to chance (docs/results.md, the study of learning rates).
RATES = (3e-4, 6e-4, 1.2e-3, 2.4e-3)


@dataclass(frozen=True)
class SearchSpace:
    """The trials of one method.

    Attributes:
        regulariser: the dotted setting of a regularisation strength; None where the method has none.
        values: the values of it to try besides the default one.
        lr: four learning rates, rising.
    """

    regulariser: str | None = None
    values: tuple[float, ...] = ()
    lr: tuple[float, ...] = RATES
