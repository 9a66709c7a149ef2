"""What to label next: scores by loops, joint information by enumerating answers, batches by brute force."""

import math
from itertools import product

import pytest
import torch

from bara_pyro.errors import ConfigError, DataError
from bara_pyro.extras.active import acquisition
from bara_pyro.extras.active.acquisition import choose, joint_information
from bara_pyro.metrics import decompose

Draws = list[list[list[float]]]  # probabilities: a draw, a row, an answer


def pool(seed: int, draws: int = 5, rows: int = 6, classes: int = 3, scale: float = 2.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(draws, rows, classes, dtype=torch.float64, generator=generator)
    return logits.log_softmax(-1)


def entropy(probs: list[float]) -> float:
    return -sum(p * math.log(p) for p in probs if p > 0)


def bald(draws: Draws, row: int) -> float:
    size, classes = len(draws), len(draws[0][row])
    mean = [sum(draw[row][c] for draw in draws) / size for c in range(classes)]
    return entropy(mean) - sum(entropy(draw[row]) for draw in draws) / size


def joint(draws: Draws, rows: list[int]) -> float:
    """Mutual information of draw and answers: H(all answers) - E H(all answers | draw), answer by answer."""
    size, total = len(draws), 0.0
    for answers in product(*(range(len(draws[0][row])) for row in rows)):
        each = [math.prod(draw[row][c] for row, c in zip(rows, answers, strict=True)) for draw in draws]
        total += entropy([sum(each) / size])
    return total - sum(entropy(draw[row]) for draw in draws for row in rows) / size


def greedy(draws: Draws, count: int) -> list[int]:
    chosen: list[int] = []
    for _ in range(count):
        left = [row for row in range(len(draws[0])) if row not in chosen]
        chosen.append(max(left, key=lambda row: joint(draws, [*chosen, row])))
    return chosen


@pytest.mark.parametrize("seed", range(2))
def test_rows_by_bald_and_entropy_are_those_of_a_loop(seed: int) -> None:
    log_probs = pool(seed, rows=20)
    draws = log_probs.exp().tolist()
    by_bald = sorted(range(20), key=lambda row: -bald(draws, row))
    means = [[sum(draw[row][c] for draw in draws) / 5 for c in range(3)] for row in range(20)]
    by_entropy = sorted(range(20), key=lambda row: -entropy(means[row]))
    assert choose(log_probs, 7, "bald").tolist() == by_bald[:7]
    assert choose(log_probs, 20, "entropy").tolist() == by_entropy


@pytest.mark.parametrize("seed", range(2))
def test_joint_information_is_that_of_all_answers(seed: int) -> None:
    log_probs = pool(seed)
    draws = log_probs.exp().tolist()
    expected = [joint(draws, list(range(size))) for size in range(1, 7)]
    assert joint_information(log_probs).tolist() == pytest.approx(expected, abs=1e-12)
    assert expected[0] == pytest.approx(float(decompose(log_probs).epistemic[0]), abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_the_batch_is_that_of_brute_force(seed: int) -> None:
    log_probs = pool(seed, draws=4, rows=7, scale=3.0)
    draws = log_probs.exp().tolist()
    expected = greedy(draws, 4)
    assert choose(log_probs, 4).tolist() == expected


def test_rows_in_many_pieces_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    log_probs = pool(3, rows=11)
    whole = choose(log_probs, 5)
    monkeypatch.setattr(acquisition, "ENTRIES", 20)
    assert choose(log_probs, 5).tolist() == whole.tolist()


def test_of_two_rows_that_say_the_same_only_bald_takes_both() -> None:
    # Answers that are sure given the draw: the second row of a pair says nothing that the first has not.
    split = torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    other = torch.tensor([0.8, 0.3, 0.8, 0.3], dtype=torch.float64)
    first = torch.stack([split, split, other], dim=1)
    log_probs = torch.stack([first, 1 - first], dim=-1).log()
    assert choose(log_probs, 2, "bald").tolist() == [0, 1]
    assert choose(log_probs, 2, "batch-bald").tolist() == [0, 2]
    together = joint_information(log_probs).tolist()
    assert together[:2] == pytest.approx([math.log(2)] * 2)
    assert together[2] > together[1] + 0.1


def test_information_of_drawn_configurations_is_near_that_of_all() -> None:
    log_probs = pool(11, draws=6, rows=6, scale=1.5)
    exact = joint_information(log_probs)
    runs = torch.stack([joint_information(log_probs, seed=s, configurations=50) for s in range(60)])
    error = runs.std(0) / 60**0.5
    assert (error[4:] > 0).all()  # 3^3 configurations are all, 3^4 are not
    assert (runs[:, :4] - exact[:4]).abs().max() < 1e-12
    assert ((runs.mean(0) - exact).abs() <= 4 * error + 1e-12).all()
    assert joint_information(log_probs, configurations=27)[:4].tolist() == pytest.approx(exact[:4].tolist())
    more = torch.stack([joint_information(log_probs, seed=s, configurations=200) for s in range(60)])
    assert float(more.std(0)[5]) < 0.75 * float(runs.std(0)[5])  # half of it, by the root


def test_where_answers_have_told_all_nothing_is_left_whichever_were_drawn() -> None:
    # The first row says which draw it is. Configurations drawn unevenly must not make up for what is gone.
    first = torch.eye(3, dtype=torch.float64).log()
    second = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.2, 0.6], [0.3, 0.4, 0.3]], dtype=torch.float64).log()
    for seed in range(30):
        told = joint_information(torch.stack([first, second], dim=1), seed=seed, configurations=2)
        assert told.tolist() == pytest.approx([math.log(3)] * 2, abs=1e-12)


def test_drawn_configurations_tell_no_more_than_there_is() -> None:
    for seed in range(20):
        told = joint_information(pool(7, draws=3, rows=12, scale=4.0), seed=seed, configurations=2)
        assert float(told[-1]) <= math.log(3)
        assert (told.diff() >= 0).all()


def test_a_batch_of_drawn_configurations_is_nearly_as_good() -> None:
    log_probs = pool(5, draws=8, rows=30, scale=1.0)
    found = choose(log_probs, 6, seed=1, configurations=300).tolist()
    draws = log_probs.exp().tolist()
    best = joint(draws, greedy(draws, 6))
    assert joint(draws, found) > 0.97 * best
    assert len(set(found)) == 6


def test_a_seed_is_all_that_chance_depends_on() -> None:
    log_probs = pool(2, rows=40)
    for by in ("random", "batch-bald"):
        state = torch.random.get_rng_state()
        one, again, other = (choose(log_probs, 12, by, seed=seed).tolist() for seed in (4, 4, 5))
        assert torch.equal(torch.random.get_rng_state(), state)
        assert one == again
        assert len(set(one)) == 12
        assert by != "random" or one != other
    counts = torch.zeros(6)
    for seed in range(600):
        counts[choose(pool(0), 2, "random", seed=seed)] += 1
    assert ((counts - 200).abs() < 4 * (600 * (1 / 3) * (2 / 3)) ** 0.5).all()


def test_rows_with_fewer_answers() -> None:
    """An answer that a row does not have changes nothing, beside rows that have it."""
    two, three = pool(0, rows=3, classes=2), pool(1, rows=3)
    padded = torch.cat([two, torch.full((5, 3, 1), -torch.inf, dtype=torch.float64)], dim=-1)
    assert joint_information(padded).tolist() == pytest.approx(joint_information(two).tolist(), abs=1e-12)
    mixed = torch.cat([padded, three], dim=1)
    assert choose(mixed, 6).tolist() == greedy(mixed.exp().tolist(), 6)
    assert torch.isfinite(joint_information(mixed, configurations=7)).all()


@pytest.mark.parametrize("by", ["bald", "batch-bald"])
def test_draws_that_do_not_differ_are_refused(by: str) -> None:
    same = pool(0)[:1].expand(5, -1, -1)
    for log_probs in (same, pool(0)[:1]):
        with pytest.raises(ConfigError, match=r"agree in all 6 rows .* choose by entropy"):
            choose(log_probs, 2, by)  # type: ignore[arg-type]
    assert len(choose(same, 2, "entropy")) == 2
    assert joint_information(same).tolist() == pytest.approx([0.0] * 6, abs=1e-12)


@pytest.mark.parametrize("count", [0, 7])
def test_counts_that_no_rows_are_there_for(count: int) -> None:
    for by in ("bald", "entropy", "random", "batch-bald"):
        with pytest.raises(ConfigError, match=f"count is {count}, but there are 6 rows .* give 1 to 6"):
            choose(pool(0), count, by)


def test_other_refusals() -> None:
    with pytest.raises(ConfigError, match=r"'margin'.*batch-bald"):
        choose(pool(0), 2, "margin")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="not logits"):
        choose(torch.ones(2, 3, 2), 1, "entropy")
    with pytest.raises(DataError, match="shape"):
        joint_information(pool(0)[0])
