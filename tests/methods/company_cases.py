"""What every method's prediction must be: a row's own, whatever stands beside it."""

from core_cases import make_batch
from torch import Tensor
from torch.testing import assert_close

from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.prediction import predict
from bara_pyro.core.program import AdaptedLM

DRAWS = 4


def assert_rows_stand_alone(model: AdaptedLM, guide: SiteGuide) -> None:
    """Assert that draws of a row depend on neither company, order, padding nor memory, but on the seed."""
    whole = drawn(model, guide)
    order = [2, 0, 3, 1]
    close(drawn(model, guide, choose=order), whole[:, order])
    close(drawn(model, guide, pad=4, pad_id=5), whole)
    for row in range(4):
        close(drawn(model, guide, choose=[row]), whole[:, [row]])
    for budget in (1, 60_000):
        close(predict(model, guide, make_batch(), samples=DRAWS, memory_budget=budget), whole)
    other = predict(model, guide, make_batch(), samples=DRAWS, seed=1)
    assert ((other - whole).abs() > 1e-4).any()


def drawn(model: AdaptedLM, guide: SiteGuide, **batch: object) -> Tensor:
    return predict(model, guide, make_batch(**batch), samples=DRAWS)


def close(first: Tensor, second: Tensor) -> None:
    assert_close(first, second, rtol=0, atol=2e-5)
