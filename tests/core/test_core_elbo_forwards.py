"""One forward of the language model an evaluation, by whatever road."""

from collections.abc import Iterator

import pyro
import pytest
from core_cases import backbone, make_batch
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO

from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.core.prediction import predict
from bara_pyro.core.svi import SVI, adamw
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.models.bara import BaRA


@pytest.fixture
def calls() -> Iterator[list]:
    """A list that grows by one a forward of the language model."""
    seen: list = []
    handle = backbone().lm.base_model.register_forward_hook(lambda *_: seen.append(1))
    yield seen
    handle.remove()


def pair() -> tuple[BaRA, WeibullGuide]:
    model = BaRA(backbone(), 4, r=3, beta_theta=1.0)
    return model, WeibullGuide(model)


def test_our_svi(calls: list) -> None:
    model, guide = pair()
    svi = SVI(model, guide, adamw(model, guide, 1e-3))
    svi.step(make_batch())
    assert len(calls) == 1
    svi.evaluate_loss(make_batch())
    assert len(calls) == 2


@pytest.mark.parametrize("elbo", [TraceMeanField_ELBO, Trace_ELBO, MeanFieldELBO])
def test_stock_svi(calls: list, elbo: type) -> None:
    svi = pyro.infer.SVI(*pair(), pyro.optim.Adam({"lr": 1e-3}), elbo())
    svi.step(make_batch())
    assert len(calls) == 1
    svi.evaluate_loss(make_batch())
    assert len(calls) == 2


def test_prediction(calls: list) -> None:
    predict(*pair(), make_batch(), samples=10)
    assert len(calls) == 1
    predict(*pair(), make_batch(), samples=0)
    assert len(calls) == 2
