"""The certified bound: its pieces against enumeration over all signs, its constants, and what it must say."""

import itertools
import math

import numpy as np
import pytest
import torch
from gate_cases import plain_gate

from bara_pyro.errors import ConfigError
from bara_pyro.extras.bounds.certificate import Certificate
from bara_pyro.extras.bounds.gate_cover import COVERS, Cap, norm_cap
from bara_pyro.extras.bounds.rademacher import certified_change, certified_gate, rademacher

RNG = np.random.default_rng(0)


def signs(n: int) -> np.ndarray:
    """All 2^n sign vectors."""
    return np.array(list(itertools.product((-1.0, 1.0), repeat=n)))


def supremum(sigma: np.ndarray, gates: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Exact sup over |A|_F <= 1, |B^T v| <= 1 of mean_i sigma_i v^T B diag(u_i) A x_i, by sign vector.

    It is max_k |z_k| with z_k = mean_i sigma_i u_ik x_i: all mass on the best rank-one term.
    """
    z = np.einsum("qi,ik,id->qkd", sigma, gates, x) / len(x)
    return np.linalg.norm(z, axis=-1).max(-1)


def unit(shape: tuple[int, ...]) -> np.ndarray:
    """Gaussian directions, each of norm 1 over the last two axes (or the last of two)."""
    out = RNG.normal(size=shape)
    axes = tuple(range(1, len(shape)))
    return out / np.sqrt((out**2).sum(axes, keepdims=True))


def sparse_gates(n: int, r: int, s: int) -> np.ndarray:
    gates = RNG.uniform(0.5, 1.0, (n, r))
    for row in gates:
        row[RNG.permutation(r)[s:]] = 0
    return gates


def inputs(n: int, d: int) -> np.ndarray:
    x = RNG.normal(size=(n, d))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


# The certified gate --------------------------------------------------------------------------------------


def test_certified_gate_is_the_plain_loop() -> None:
    # Coarse values, so that clipping and chance make many ties.
    gates = torch.tensor(RNG.integers(-6, 7, (5, 40, 7)) / 4)
    for s in (1, 3, 7):
        out = certified_gate(gates, clip=1.0, tau=0.25, s=s)
        truth = [[plain_gate(row, 1.0, 0.25, s) for row in block] for block in gates.tolist()]
        assert torch.equal(out, torch.tensor(truth, dtype=gates.dtype))
        assert (out != 0).sum(-1).max() == s


def test_ties_keep_the_first_and_the_threshold_is_strict() -> None:
    gate = torch.tensor([3.0, 5.0, -7.0, 0.5, 2.0])
    assert certified_gate(gate, clip=2.0, tau=0.5, s=2).tolist() == [2, 2, 0, 0, 0]
    assert certified_gate(gate, clip=2.0, tau=0.5, s=5).tolist() == [2, 2, -2, 0, 2]


@pytest.mark.parametrize("bad", [{"tau": 0.0}, {"tau": 1.0}, {"s": 0}, {"s": 4}, {"clip": math.nan}])
def test_certified_gate_refuses(bad: dict) -> None:
    with pytest.raises(ConfigError, match="0 < tau < clip"):
        certified_gate(torch.ones(3), **{"clip": 1.0, "tau": 0.1, "s": 2, **bad})


def test_change_is_the_product_of_matrices() -> None:
    up, down = torch.randn(4, 3).double(), torch.randn(3, 5).double()
    gate, x = torch.randn(6, 3).double(), torch.randn(6, 5).double()
    out = certified_change(up, gate, down, x)
    for i in range(6):
        torch.testing.assert_close(out[i], up @ torch.diag(gate[i]) @ down @ x[i])


# Lemma 1 and the union over gates ------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "r", "s", "d"), [(4, 3, 1, 1), (8, 3, 2, 2), (10, 8, 8, 1), (10, 6, 3, 4)])
def test_lemma_1_by_enumeration(n: int, r: int, s: int, d: int) -> None:
    x, gates = inputs(n, d), sparse_gates(n, r, s)
    assert supremum(signs(n), gates, x).mean() <= math.sqrt(s / n)


def test_a_finite_union_of_gates_by_enumeration_and_by_monte_carlo() -> None:
    r, s, d, size = 4, 2, 2, 60
    for n, sigma in ((9, signs(9)), (200, RNG.choice([-1.0, 1.0], (300, 200)))):
        x = inputs(n, d)
        values = np.stack([supremum(sigma, sparse_gates(n, r, s), x) for _ in range(size)]).max(0)
        nats = max(0.0, math.log(size) - s * math.log(math.e * r / s))
        bound = rademacher(1.0, n=n, r=r, s=s, gate_nats=nats)
        assert values.mean() + 4 * values.std() / math.sqrt(len(values)) < bound
        assert values.mean() > 1 / math.sqrt(n) / 2  # the comparison is not an empty one


# Constants -----------------------------------------------------------------------------------------------


def test_the_numbers_of_the_worked_example() -> None:
    sizes = {"n": 640, "r": 8, "s": 4}
    two_l = 2 * math.sqrt(2)
    assert two_l * rademacher(1.0, **sizes, gate_nats=0) == pytest.approx(0.747, abs=5e-4)
    assert make().confidence == pytest.approx(0.742, abs=5e-4)
    nats = 28_672 * math.log(1000)
    assert two_l * rademacher(1.0, **sizes, gate_nats=nats) == pytest.approx(70.7, abs=0.05)
    assert make(cover="global").gate_nats == pytest.approx(25.84, abs=0.01)


# What is paid for ----------------------------------------------------------------------------------------


def test_shares_of_the_grid_add_up_to_one() -> None:
    shares = [norm_cap("B", 2.0**j, unit=1.0).share for j in range(400)]
    assert sum(shares) < 1 < sum(shares) + 6 / (math.pi**2 * 400)
    # Two grids: all pairs of points together spend no more than delta either.
    assert sum(a * b for a in shares for b in shares) < 1
    assert sum(shares[:2]) == pytest.approx(6 / math.pi**2 * 1.25)


@pytest.mark.parametrize(
    ("measured", "value", "point"), [(0.0, 0.5, 1), (0.5, 0.5, 1), (0.51, 1, 2), (4, 4, 4), (5, 8, 5)]
)
def test_the_grid_rounds_up(measured: float, value: float, point: int) -> None:
    cap = norm_cap("A", measured, unit=0.5)
    assert (cap.value, cap.share) == (value, pytest.approx(6 / (math.pi * point) ** 2))
    assert f"point {point} of the grid" in cap.reason


def test_a_fixed_cap_is_free_and_binding() -> None:
    assert norm_cap("A", 3.0, 4.0) == Cap("A", 4.0, 1.0, "fixed before the rows were seen")
    with pytest.raises(ConfigError, match=r"A=5 exceeds its cap 4"):
        norm_cap("A", 5.0, 4.0)
    for measured, fixed in ((math.nan, None), (math.inf, None), (1.0, 0.0), (1.0, math.inf)):
        with pytest.raises(ConfigError, match="finite"):
            norm_cap("A", measured, fixed)


# The result ----------------------------------------------------------------------------------------------


def make(**changes: object) -> Certificate:
    one = Cap("", 1.0, 1.0, "fixed")
    given = {"n": 640, "r": 8, "s": 4, "tau": 0.1, "clip": 1.0, "up": one, "down": one, "inputs": one}
    given |= {"cover": "absorbed", "empirical": 0.5, "loss_cap": math.log(100)}
    return Certificate(**{**given, **changes})


def test_the_bound_is_the_sum() -> None:
    certificate = make()
    assert certificate.bound == pytest.approx(0.5 + 0.7468 + 0.7417, abs=2e-4)
    assert not certificate.vacuous
    assert make(loss_cap=0.6).vacuous
    four = make(outputs=4)
    assert four.complexity == pytest.approx(certificate.complexity * math.sqrt(8))
    assert four.confidence == certificate.confidence


def test_what_is_paid_for_comes_off_delta() -> None:
    up, down = norm_cap("B", 0.9, unit=0.25), norm_cap("A", 3.0, unit=0.25)
    certificate = make(up=up, down=down, choices=7, delta=0.1)
    spent = (6 / math.pi**2) ** 2 / (9 * 25) / 7
    assert certificate.delta_left == pytest.approx(0.1 * spent)
    assert certificate.norms == pytest.approx(1.0 * 4.0)
    expected = 3 * math.log(100) * math.sqrt(math.log(2 / (0.1 * spent)) / 1280)
    assert certificate.confidence == pytest.approx(expected)


def test_lora_and_the_advantage_condition() -> None:
    certificate = make()
    assert certificate.lora_rank_free == pytest.approx(2 * math.sqrt(2) / math.sqrt(640))
    assert certificate.lora_complexity == pytest.approx(certificate.lora_rank_free * math.sqrt(8))
    assert certificate.ratio == pytest.approx(math.sqrt(0.5 * math.log(2 * math.e)))
    # With every gate open and R_g = 1 nothing is gained, and LoRA without its rank is always below.
    assert make(s=8).ratio == pytest.approx(1)
    assert certificate.lora_rank_free < certificate.complexity


def test_the_soft_gate_pays_tau_or_the_clip() -> None:
    assert make(s=8).soft_residual == pytest.approx(2 * math.sqrt(2) * 0.1)
    assert make().soft_residual == pytest.approx(2 * math.sqrt(2) * 1.0)


def test_no_way_to_print_it_without_what_was_assumed() -> None:
    certificate = make(further=("The moon is full.",), violated=("the rows were trained on.",), choices=3)
    constants = certificate.constants()
    texts = [
        str(certificate),
        repr(certificate),
        f"{certificate}",
        f"{[certificate]}",
    ]
    plain = " ".join(line.meaning for line in constants)
    assert len(certificate.assumptions) == 7
    for sentence in (*certificate.assumptions, *certificate.violated, certificate.scope):
        assert all(sentence in text for text in [*texts, plain])
    assert COVERS["absorbed"] in str(certificate)
    assert all("NOT MET" in text for text in texts)
    values = {line.quantity: line.value for line in constants}
    assert values["bound"] == certificate.bound
    assert values["Gamma"] == 0
    assert "NOT MET" not in str(make())
    assert "; vacuous" in str(make(loss_cap=0.6))
    assert "; not vacuous" in str(make())


@pytest.mark.parametrize(
    "bad",
    [
        {"n": 0},
        {"cover": "none"},
        {"s": 9},
        {"s": 0},
        {"tau": 1.0},
        {"delta": 1.0},
        {"choices": 0},
        {"outputs": 0},
        {"empirical": 5.0},
        {"empirical": math.nan},
        {"lipschitz": 0.0},
    ],
)
def test_a_certificate_refuses(bad: dict) -> None:
    with pytest.raises(ConfigError) as error:
        make(**bad)
    assert str(error.value).endswith(".")
