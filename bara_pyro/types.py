"""Shared type aliases, and the default values of parameters."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal

Json = dict[str, Any]
"""A JSON or YAML object."""

Fields = Mapping[str, Any]
"""A read-only JSON or YAML object."""

FloatType = Literal["float32", "bfloat16", "float16"]
"""Names of the floating-point types of weights."""

WeightType = Literal[FloatType, "int8", "int4"]
"""Names of the types of a language model's frozen weights; see `bara_pyro.lm.quantized`."""

PredictiveName = Literal["joint", "token", "mean", "base"]
"""How posterior draws give a text's probability; see `bara_pyro.extras.lmeval.harness.predictives`."""

SetScore = Literal["lac", "aps"]
"""Nonconformity score of an answer; see `bara_pyro.metrics.conformal`."""

Measure = Literal["total", "epistemic", "distance"]
"""Uncertainty measure of a row: the entropy of its prediction, the mutual information of its answer and the
latents (both in nats), or the squared distance from the training rows (`posthoc.distance`)."""

Acquisition = Literal["batch-bald", "bald", "entropy", "random"]
"""Criterion for choosing rows to label; see `bara_pyro.extras.active.acquisition`."""


def default(of: Callable[..., Any], name: str) -> Any:
    """Return the default value of a parameter of a function or constructor; a `LookupError` without one."""
    parameter = inspect.signature(of).parameters.get(name)
    if parameter is None or parameter.default is parameter.empty:
        raise LookupError(f"{of.__qualname__} has no default for a parameter {name!r}.")
    return parameter.default
