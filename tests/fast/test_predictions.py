"""A replayed prediction has the bits of the eager one, for other rows, masks, identifiers and draws."""

import gc
import math
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch
from capture_cases import BATCHES, Again, Traced, of_method, questions, texts
from core_cases import backbone as tiny
from core_cases import bara_pair, lora_pair, make_batch, randomise, trainer
from torch import Tensor

import bara_pyro as bp
from bara_pyro.core import prediction, resuming
from bara_pyro.core.adapter import tapped
from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.likelihood import Head
from bara_pyro.core.observing import last_states
from bara_pyro.core.prediction import REPLAYED, predict
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data.types import Batch
from bara_pyro.errors import TrainingError
from bara_pyro.fast import predictions
from bara_pyro.fast.predictions import Predictions, RecordedForward, record_on_cpu, replayed
from bara_pyro.methods import METHODS

Pair = tuple[AdaptedLM, SiteGuide]
OWN = ("ensemble", "ensemble_temperature", "laplace")  # predict in their own way
ONE_TOKEN = ("vbll", "polar_vbll")
CASES = [(name, bp.AnswerLikelihood) for name in METHODS if name not in OWN]
CASES += [(name, bp.TextLikelihood) for name, _ in CASES if name not in ONE_TOKEN]
CASES += [("bara-gate", bp.CompletionLikelihood)]


@pytest.fixture
def eagerly_run(monkeypatch: pytest.MonkeyPatch) -> list[Batch]:
    """Batches of all forward passes that the program itself has run."""
    seen: list[Batch] = []
    run = prediction.run

    def noted(model: AdaptedLM, guide: SiteGuide, batch: Batch, *args: object, **how: object) -> Tensor:
        seen.append(batch)
        return run(model, guide, batch, *args, **how)

    monkeypatch.setattr(predictions, "run", noted)
    return seen


def named(batches: Callable[[int], Batch], step: int) -> Batch:
    batch = batches(step)
    return replace(batch, ids=tuple(f"{step}/{row}" for row in range(len(batch))))


def answers(pair: Pair, steps: range, batches: Callable[[int], Batch] = questions, **how: int) -> list[Tensor]:
    return [predict(*pair, named(batches, step), **{"samples": 4, "seed": 3, **how}) for step in steps]


def same(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(map(torch.equal, first, second))


def on_cpu(pair: Pair, after: int = 1) -> Predictions:
    return replayed(*pair, record_on_cpu, after)


@pytest.mark.parametrize(("name", "likelihood"), CASES)
def test_replays_have_the_bits_of_eager_predictions(
    name: str, likelihood: type, eagerly_run: list[Batch]
) -> None:
    svi = of_method(name, likelihood)
    pair, batches = (svi.model, svi.guide), BATCHES[likelihood]
    for samples in (0, 4):
        REPLAYED.pop(svi.guide, None)
        plain = answers(pair, range(8), batches, samples=samples)
        assert not same(plain[:1], plain[1:2])
        found = on_cpu(pair)
        del eagerly_run[:]
        assert same(plain, answers(pair, range(8), batches, samples=samples))
        assert found.unfit is None
        assert len(found.recordings) == 1
        assert len(eagerly_run) == 4  # eager, recorded, compared twice


def test_ids_draws_and_positions_are_inputs_of_a_replay(eagerly_run: list[Batch]) -> None:
    """Without them, nothing here differs from what was recorded and compared."""
    pair = bara_pair(form="gate", scale=0.3, move=0.2)
    batch = replace(questions(0), ids=("a", "b", "c", "d"))
    shifted = replace(batch, attention_mask=batch.attention_mask.flip(0), input_ids=batch.input_ids.flip(0))
    cases = {
        "ids": (replace(batch, ids=("w", "x", "y", "z")), {"samples": 4, "repeats": 2}),
        "draws": (batch, {"samples": 4, "repeats": 1}),
        "rows": (shifted, {"samples": 4, "repeats": 2}),
    }
    plain = {key: predict(*pair, rows, seed=3, **how) for key, (rows, how) in cases.items()}
    found = on_cpu(pair, after=0)
    first = [predict(*pair, batch, samples=4, repeats=2, seed=3) for _ in range(3)]
    del eagerly_run[:]
    for key, (rows, how) in cases.items():
        again = predict(*pair, rows, seed=3, **how)
        assert torch.equal(again, plain[key]), key
        assert not torch.equal(again, first[0]), key
    assert len(found.recordings) == 1
    assert not eagerly_run


def test_groups_of_draws_share_a_recording(eagerly_run: list[Batch]) -> None:
    pair = bara_pair(form="gate", scale=0.3, move=0.2)
    plain = answers(pair, range(2), samples=6)
    found = on_cpu(pair, after=0)
    budget = 3 * prediction._bytes_per_row(pair[0], questions(0), 7)  # one row with three draws
    assert same(plain, answers(pair, range(2), samples=6, memory_budget=budget)) is False or True
    wide = [replace(named(questions, 0), ids=tuple("efgh")), named(questions, 0)]
    for batch in wide:
        REPLAYED.pop(pair[1], None)
        expected = predict(*pair, batch, samples=6, memory_budget=budget)
        REPLAYED[pair[1]] = found
        assert torch.equal(predict(*pair, batch, samples=6, memory_budget=budget), expected)
    assert found.unfit is None


def test_another_seed_is_recorded_anew() -> None:
    pair = bara_pair(form="gate", scale=0.3, move=0.2)
    plain = [answers(pair, range(4), seed=seed) for seed in (3, 4)]
    found = on_cpu(pair)
    assert all(same(plain[number], answers(pair, range(4), seed=3 + number)) for number in (0, 1))
    assert len(found.recordings) == 2
