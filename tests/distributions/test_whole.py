"""A distribution that its plates find in their own shape, and one that they do not."""

import pyro
import torch
from pyro import poutine
from pyro.distributions import Gamma
from torch.testing import assert_close

from bara_pyro.core.distributions.whole import Whole


def distribution(*shape: int) -> Whole:
    return Whole(Gamma(torch.tensor(2.0), torch.tensor(3.0)).expand([*shape, 5]), 1)


def test_plates_leave_it_alone_where_it_has_their_shape() -> None:
    own = distribution(2, 3)
    with poutine.trace() as trace, pyro.plate("rows", 2, dim=-2), pyro.plate("tokens", 3, dim=-1):
        pyro.sample("t", own)
    assert trace.trace.nodes["t"]["fn"] is own


def test_elsewhere_it_is_expanded_like_any_other() -> None:
    wide = distribution(3).expand([2, 3])
    value = wide.sample()
    assert (wide.batch_shape, wide.event_shape, value.shape) == ((2, 3), (5,), (2, 3, 5))
    assert_close(wide.log_prob(value), Gamma(2.0, 3.0).log_prob(value).sum(-1))
