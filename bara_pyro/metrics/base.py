"""What a metric is, and the registry of metrics."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

from torch import Tensor

from bara_pyro.errors import ConfigError, unknown
from bara_pyro.registry import Registry

PerRow = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Metric:
    """A score of a predictive distribution, as evaluation, comparisons and tables know it.

    Attributes:
        name: its key in `metrics.json`.
        function: `(log_probs, labels) -> float`: `n x C` log-probabilities (nats), averaged over draws, and
            `n` labels; with `of_truth` `(log_probs, truth)`, `n x C` true probabilities in their place.
        unit: "%", "points", "nats" or "".
        best: which is better, the largest or the smallest.
        digits: behind the decimal point, where it is printed.
        per_row: `(log_probs, labels) -> n x k`, of which it is the sum of the absolute values of the column
            means; two runs are compared by a metric that has this.
        title: what it is called; its name if "".
        heading: of its column in the table of scores; it has none if "".
        of_truth: whether it needs the true probabilities.
    """

    name: str
    function: Callable[..., float]
    unit: str
    best: Literal["max", "min"]
    digits: int
    per_row: PerRow | None = None
    title: str = ""
    heading: str = ""
    of_truth: bool = False

    @property
    def difference_unit(self) -> str:
        """The unit of a difference: percentages differ by points."""
        return "points" if self.unit == "%" else self.unit


METRICS: Registry[Metric] = Registry("metric", "bara_pyro.metrics", ("bara_pyro.metrics.scores",), of=Metric)
"""Those of this package, and those that installed packages offer as entry points."""


def register_metric(metric: Metric) -> Metric:
    """Add a metric to the registry; a name can be taken once.

    Raises:
        ConfigError: the name is taken.

    Examples:
        >>> import bara_pyro as bp
        >>> import torch
        >>> from bara_pyro.metrics.base import Metric, register_metric
        >>> def worst(log_probs, labels):
        ...     return float(-log_probs.gather(1, labels[:, None]).min())
        >>> mine = register_metric(Metric("worst_nll", worst, "nats", "min", 3))
        >>> log_probs = torch.tensor([[0.5, 0.5], [0.25, 0.75]]).log()
        >>> round(bp.metrics.evaluate(log_probs, [0, 0])["worst_nll"], 4)  # log 4
        1.3863
    """
    return METRICS.register(metric.name, metric)


def compared() -> dict[str, Metric]:
    """Return the metrics by which two runs are compared, by name."""
    return {name: metric for name, metric in METRICS.items() if metric.per_row is not None}


def rows_of(name: str) -> PerRow:
    """Return the `per_row` of a metric.

    Raises:
        ConfigError: there is no such metric, or runs are not compared by it.
    """
    known = compared()
    if name not in known:
        raise ConfigError(unknown("metric", name, known))
    return cast(PerRow, known[name].per_row)


def scored(log_probs: Tensor, against: Any, *, of_truth: bool) -> dict[str, float]:
    """Return all metrics of checked inputs that need true probabilities, or all that need none."""
    wanted = [metric for metric in METRICS.values() if metric.of_truth == of_truth]
    return {metric.name: metric.function(log_probs, against) for metric in wanted}
