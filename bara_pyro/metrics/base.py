"""The definition of a metric, and the registry of metrics."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

from torch import Tensor

from bara_pyro.errors import ConfigError, unknown
from bara_pyro.registry import Registry

PerRow = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Metric:
    """A score of a predictive distribution, used by evaluation, comparisons and tables.

    Attributes:
        name: the key in `metrics.json`.
        function: `(log_probs, labels) -> float`. `log_probs` is `n x C`, in nats and averaged over draws;
            `labels` has shape `n`. If `of_truth` is set, the second argument is `truth`, the `n x C` true
            probabilities.
        unit: "%", "points", "nats" or "".
        best: whether larger ("max") or smaller ("min") values are better.
        digits: decimals to print.
        per_row: `(log_probs, labels) -> n`, one score per row, or `n x k` if the metric is
            `sum_k |mean over rows of column k|`. Two runs are compared only by metrics that have this
            function.
        title: the name in running text; `name` if "".
        heading: the heading of the column in the table of scores; if "", the metric has no column.
        of_truth: whether the metric needs the true probabilities.
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


METRICS: Registry[Metric] = Registry("metric", "bara_pyro.metrics", ("bara_pyro.metrics.*",), of=Metric)
"""The metrics of this package and those that installed packages register as entry points."""


def register_metric(metric: Metric) -> Metric:
    """Add a metric to the registry under its name.

    Returns:
        The same metric.

    Raises:
        ConfigError: a metric of this name exists.

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
    """Return the metrics that can compare two runs, by name."""
    return {name: metric for name, metric in METRICS.items() if metric.per_row is not None}


def rows_of(name: str) -> PerRow:
    """Return the `per_row` of a metric with a result of `n x k`; a `ConfigError` if the metric has none."""
    known = compared()
    if name not in known:
        raise ConfigError(unknown("metric", name, known))
    per_row = cast(PerRow, known[name].per_row)
    return lambda log_probs, labels: per_row(log_probs, labels).reshape(len(labels), -1)


def scored(log_probs: Tensor, against: Any, *, of_truth: bool) -> dict[str, float]:
    """Return all metrics that need true probabilities, or all that do not, of checked inputs."""
    metrics = [metric for metric in METRICS.values() if metric.of_truth == of_truth]
    return {metric.name: float(metric.function(log_probs, against)) for metric in metrics}
