"""Types of what is read from files and defaults: names and values that are checked where they are used."""

import inspect
from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any, Literal, TypeGuard

Json = dict[str, Any]
"""An object as JSON and YAML have it."""

Fields = Mapping[str, Any]
"""The same, only to be read."""

FloatType = Literal["float32", "bfloat16", "float16"]
"""Names of the floating-point types of weights."""

WeightType = Literal[FloatType, "int8", "int4"]
"""Names of the types that the frozen weights of a language model can have; see `bara_pyro.lm.quantized`."""

Law = Literal["joint", "token", "mean", "base"]
"""What a text's probability under a posterior is taken to be; see `bara_pyro.extras.lmeval.harness.laws`."""

SetScore = Literal["lac", "aps"]
"""How ill an answer suits a prediction; see `bara_pyro.metrics.conformal`."""

Measure = Literal["total", "epistemic", "distance"]
"""What is high where little is known of a row: the entropy of the prediction, the mutual information of its
answer and the latents (nats), or the squared distance from the training rows (`posthoc.distance`)."""

Acquisition = Literal["batch-bald", "bald", "entropy", "random"]
"""What rows to be labelled are chosen by; see `bara_pyro.metrics.acquisition`."""


def is_whole(value: object) -> TypeGuard[int]:
    """Return whether a value is a whole number, of Python or of NumPy; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def default(of: Callable[..., Any], name: str) -> Any:
    """Return the default value of the parameter `name` of a function or a class's constructor.

    Raises:
        LookupError: there is no such parameter, or it has no default.
    """
    parameter = inspect.signature(of).parameters.get(name)
    if parameter is None or parameter.default is parameter.empty:
        raise LookupError(f"{of.__qualname__} has no default for a parameter {name!r}.")
    return parameter.default
