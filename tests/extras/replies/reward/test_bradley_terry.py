"""The loss against scipy's log of the logistic function, its gradient against the naive formula's."""

import numpy as np
import pytest
import torch
from scipy.special import expit, log_expit
from torch.testing import assert_close

from bara_pyro.errors import DataError
from bara_pyro.extras.replies.reward import bradley_terry

SCORES = torch.linspace(-8, 8, 41, dtype=torch.float64)
OTHERS = SCORES.flip(0) * 0.7 + 1


def test_the_loss_is_scipys() -> None:
    expected = -log_expit((SCORES - OTHERS).numpy()).mean()
    assert float(bradley_terry(SCORES, OTHERS)) == pytest.approx(expected, rel=1e-12)


def test_equal_scores_cost_the_log_of_two() -> None:
    assert float(bradley_terry(SCORES, SCORES)) == pytest.approx(np.log(2), rel=1e-12)


def test_the_gradient_is_that_of_the_naive_formula_and_of_the_closed_form() -> None:
    grads = []
    for loss in (bradley_terry, lambda c, r: -torch.log(1 / (1 + torch.exp(r - c))).mean()):
        chosen, rejected = SCORES.clone().requires_grad_(), OTHERS.clone().requires_grad_()
        loss(chosen, rejected).backward()
        grads.append((chosen.grad, rejected.grad))
    assert_close(grads[0], grads[1], rtol=1e-10, atol=1e-14)
    closed = -expit((OTHERS - SCORES).numpy()) / len(SCORES)
    assert_close(grads[0][0].numpy(), closed, rtol=1e-12, atol=0)
    assert_close(grads[0][1], -grads[0][0])


def test_far_apart_it_stays_finite_with_its_gradient() -> None:
    chosen = torch.tensor([-1e4, 1e4], requires_grad=True)
    loss = bradley_terry(chosen, torch.zeros(2))
    loss.backward()
    assert loss.item() == 5000
    assert chosen.grad.tolist() == [-0.5, 0]


@pytest.mark.parametrize(("chosen", "rejected"), [(3, 2), (0, 0)])
def test_scores_that_do_not_pair_are_refused(chosen: int, rejected: int) -> None:
    with pytest.raises(DataError, match="of the same shape"):
        bradley_terry(torch.zeros(chosen), torch.zeros(rejected))
