"""A replayed prediction has the bits of the eager one, for other rows, masks, identifiers and draws."""

import gc
import math
import warnings
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch
from capture_cases import BATCHES, Traced, of_method, questions
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
from bara_pyro.fast.capture import CudaGraphs
from bara_pyro.fast.predictions import Predictions, record_on_cpu, replayed
from bara_pyro.methods import METHODS

Pair = tuple[AdaptedLM, SiteGuide]
OWN = ("ensemble", "ensemble_temperature", "laplace")  # predict in their own way
ONE_TOKEN = UNFIT = ("vbll", "polar_vbll")  # TorchScript refuses a call of theirs
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


def answers(
    pair: Pair, steps: range, batches: Callable[[int], Batch] = questions, **how: int
) -> list[Tensor]:
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
        if name in UNFIT:
            assert "index_fill_" in found.unfit
            continue
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


def test_draws_that_run_in_pieces_share_a_recording(eagerly_run: list[Batch]) -> None:
    """Six draws of a row in pieces of three, of which only the numbers differ."""
    pair = bara_pair(form="gate", scale=0.3, move=0.2)
    batch = replace(questions(0).questions(slice(0, 1)), ids=("a",))
    how = {"samples": 6, "memory_budget": 3 * prediction._bytes_per_row(pair[0], batch, 7)}
    plain = predict(*pair, batch, **how)
    assert len(plain.unique(dim=0)) == 6
    found = on_cpu(pair, after=0)
    for _ in range(3):
        assert torch.equal(predict(*pair, batch, **how), plain)
    assert len(found.recordings) == 1
    assert len(eagerly_run) == 3  # recorded, compared twice


def test_another_seed_is_recorded_anew() -> None:
    pair = bara_pair(form="gate", scale=0.3, move=0.2)
    plain = [answers(pair, range(4), seed=seed) for seed in (3, 4)]
    found = on_cpu(pair)
    assert all(same(plain[number], answers(pair, range(4), seed=3 + number)) for number in (0, 1))
    assert len(found.recordings) == 2


def train_further(pair: Pair) -> None:
    torch.manual_seed(1)
    trainer(pair).step(questions(9))


def load_others(pair: Pair) -> None:
    other = randomise(bara_pair(form="gate")[0], seed=7)
    pair[0].load_state_dict(other.state_dict())


def assign_others(pair: Pair) -> None:
    other = randomise(bara_pair(form="gate")[0], seed=7)
    pair[0].load_state_dict(other.state_dict(), assign=True)


def change_a_setting(pair: Pair) -> None:
    pair[1].max_kappa = 0.25


@pytest.mark.parametrize(
    ("change", "recordings"),
    [(train_further, 1), (load_others, 1), (assign_others, 2), (change_a_setting, 2)],
)
def test_replays_heed_other_weights_and_settings(change: Callable[[Pair], None], recordings: int) -> None:
    pair = bara_pair(form="gate", scale=0.3, move=0.2)
    found = on_cpu(pair)
    before = answers(pair, range(4))
    change(pair)
    after = answers(pair, range(4))
    assert len(found.recordings) == recordings
    del REPLAYED[pair[1]]
    assert same(after, answers(pair, range(4)))
    assert not any(map(torch.equal, before, after))


def tapping(pair: Pair) -> ExitStack:
    stack = ExitStack()
    stack.enter_context(tapped(pair[0].adapters.values()))
    return stack


def observed(pair: Pair) -> ExitStack:
    stack = ExitStack()
    stack.enter_context(last_states(pair[0]))
    return stack


def hooked(pair: Pair) -> ExitStack:
    stack = ExitStack()
    stack.callback(pair[0].backbone.lm.model.layers[0].register_forward_hook(lambda *_: None).remove)
    return stack


def without_gradients(pair: Pair) -> ExitStack:
    stack = ExitStack()
    stack.enter_context(torch.inference_mode())
    return stack


@pytest.mark.parametrize("around", [tapping, observed, hooked, without_gradients])
def test_what_a_replay_would_leave_out_runs_eagerly(
    around: Callable[[Pair], ExitStack], eagerly_run: list[Batch]
) -> None:
    pair = bara_pair(form="gate", scale=0.3, move=0.2)
    on_cpu(pair, after=0)
    plain = answers(pair, range(4))
    del eagerly_run[:]
    with around(pair), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same(plain, answers(pair, range(4)))
    assert len(eagerly_run) == 4


def test_states_are_read_although_predictions_are_replayed() -> None:
    pair = bara_pair(form="gate", scale=0.3, move=0.2)
    on_cpu(pair, after=0)
    answers(pair, range(4))
    for _ in range(3):
        with last_states(pair[0]) as seen:
            answers(pair, range(2))
        assert len(seen) == 2


def test_a_prefix_that_rows_share_is_read_once(
    monkeypatch: pytest.MonkeyPatch, eagerly_run: list[Batch]
) -> None:
    monkeypatch.setattr(resuming, "LEAST", 3)
    pair = lora_pair()
    alike = make_batch(tuple((5, 6, 7, 8, last) for last in (1, 2, 3, 4)))
    plain = predict(*pair, alike, samples=0)
    found = on_cpu(pair, after=0)
    for number in range(4):  # the others, of the same shape, share no prefix
        assert torch.equal(predict(*pair, alike, samples=0), plain), number
        other = make_batch(tuple((5, 6, 7, 8, last)[number % 2 :: -1] * 3 for last in (1, 2, 3, 4)))
        predict(*pair, other, samples=0)
    assert "the rows begin with the same tokens, which are read once" in found.eager


def test_answers_that_are_not_numbers_are_refused() -> None:
    pair = bara_pair(form="gate", scale=0.3, move=0.2)
    found = on_cpu(pair, after=0)
    answers(pair, range(4))
    with torch.no_grad():
        next(iter(pair[0].adapters.values())).lora_B.fill_(math.nan)
    with pytest.raises(TrainingError, match="NaN"):
        answers(pair, range(1))
    assert found.recordings


def test_recordings_are_freed_with_the_guide() -> None:
    pair = bara_pair(form="gate", scale=0.3, move=0.2)
    found = weakref.ref(on_cpu(pair, after=0))
    answers(pair, range(4))
    kept = weakref.ref(pair[1])
    del pair
    gc.collect()
    assert kept() is None
    assert found() is None


class Counting(bp.AnswerLikelihood):
    """A stranger's likelihood, whose scores depend on what a replay cannot see."""

    def __init__(self) -> None:
        self.seen: list[Batch] = []

    def scores(self, hidden: Tensor, batch: Batch, head: Head) -> Tensor:
        self.seen.append(batch)
        return super().scores(hidden, batch, head) / len(self.seen)


def test_a_program_that_replays_change_runs_eagerly() -> None:
    pair = bara_pair(form="gate", scale=0.3, likelihood=Counting())
    found = on_cpu(pair)
    answers(pair, range(4))
    assert found.unfit == "a replayed prediction differs from the eager one"
    assert not found.recordings


@pytest.mark.parametrize("likelihood", BATCHES)
def test_nothing_waits_for_a_gpu(monkeypatch: pytest.MonkeyPatch, likelihood: type) -> None:
    # Batches and answers on a GPU are not checked while they are captured.
    monkeypatch.setattr(Batch, "__post_init__", lambda batch: None)
    monkeypatch.setattr("bara_pyro.core.likelihood.check_numbers", lambda values: None)
    svi = of_method("bara-gate", likelihood)
    pair, record = (svi.model, svi.guide), Traced()
    batches = BATCHES[likelihood]
    for samples in (0, 4):
        REPLAYED[svi.guide] = eager = Predictions(svi.model, record, 0)
        monkeypatch.setattr(eager, "_replayed", lambda *_: None)  # with the masks of a capture
        plain = answers(pair, range(4), batches, samples=samples)
        found = replayed(*pair, record, 0)
        assert same(plain, answers(pair, range(4), batches, samples=samples))
        (recording,) = found.recordings.values()
        # What a graph reads of the seeds it must keep itself: nothing else does once the prediction is over.
        assert samples == 0 or recording._addresses._seeds
        assert not found.eager
    assert not record.waits


def test_a_captured_prediction_says_once_why_it_runs_eagerly() -> None:
    pair = bara_pair(form="gate", scale=0.3, move=0.2)
    replayed(*pair, CudaGraphs())
    with pytest.warns(UserWarning, match="Predictions run eagerly.*on a CPU") as said:
        answers(pair, range(2))
    assert len(said) == 1
