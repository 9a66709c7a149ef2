"""One forward of the language model an evaluation, by whatever road."""

from collections.abc import Iterator

import pyro
import pytest
from core_cases import backbone, bara_pair, make_batch, trainer
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO

from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.core.prediction import predict


@pytest.fixture
def calls() -> Iterator[list]:
    """A list that grows by one a forward of the language model."""
    seen: list = []
    handle = backbone().lm.base_model.register_forward_hook(lambda *_: seen.append(1))
    yield seen
    handle.remove()


def svi(kind: str) -> pyro.infer.SVI:
    pair = bara_pair(beta_theta=1.0)
    if kind == "ours":
        return trainer(pair)
    elbos = {"mean field": TraceMeanField_ELBO, "trace": Trace_ELBO, "our ELBO": MeanFieldELBO}
    return pyro.infer.SVI(*pair, pyro.optim.Adam({"lr": 1e-3}), elbos[kind]())


@pytest.mark.parametrize("kind", ["ours", "mean field", "trace", "our ELBO"])
def test_training(calls: list, kind: str) -> None:
    used = svi(kind)
    used.step(make_batch())
    assert len(calls) == 1
    used.evaluate_loss(make_batch())
    assert len(calls) == 2


def test_prediction(calls: list) -> None:
    predict(*bara_pair(), make_batch(), samples=10)
    assert len(calls) == 1
    predict(*bara_pair(), make_batch(), samples=0)
    assert len(calls) == 2
