"""Answers that are whole texts: scored as a loop over rows and texts scores them, each text by itself."""

import math

import pyro
import pytest
import torch
from core_cases import CONFIGS, IDS, LABELS, ROWS, bara_pair, lora_pair, make_batch, parts_of, trainer
from scipy.special import log_softmax
from torch import Tensor
from torch.testing import assert_close

from bara_pyro.core.likelihood import NOT_OFFERED, AnswerLikelihood, TextLikelihood
from bara_pyro.core.prediction import predict
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data.split import EncodedSplit, TextBatch
from bara_pyro.data.types import Batch
from bara_pyro.errors import DataError
from bara_pyro.guides.delta import DeltaGuide
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.models.bara import BaRA
from bara_pyro.models.lora import LoRA
from bara_pyro.posthoc.corrections import Corrections, require_temperature

# Of each row: three texts, one of them not offered by the last row.
TEXTS = (
    ([7], [3, 9, 12], [50, 3]),
    ([8, 8], [8, 8, 8, 8], [8]),
    ([31, 5, 2], [31, 5, 3], [1]),
    ([4], [], [6, 44, 45, 46]),
)
ALL = tuple(range(4))


def encoded(texts: tuple = TEXTS) -> EncodedSplit:
    return EncodedSplit(tuple(map(list, ROWS)), LABELS, IDS, 0, texts=texts)


def text_batch(rows: tuple[int, ...] = ALL, texts: tuple = TEXTS) -> Batch:
    return encoded(texts).batch(rows, torch.empty(0, dtype=torch.long))


def lora(arch: str = "qwen2", *, mean: bool = False) -> tuple[LoRA, DeltaGuide]:
    torch.manual_seed(2)
    return lora_pair(arch, likelihood=TextLikelihood(mean=mean), target_modules="all-linear")


def bara(likelihood: TextLikelihood | AnswerLikelihood, **options: object) -> tuple[BaRA, WeibullGuide]:
    return bara_pair(seed=2, scale=0.2, move=0.2, form="gate", likelihood=likelihood, **options)


def looped(model: AdaptedLM, *, mean: bool) -> Tensor:
    """Log-probabilities of the texts by the language model's own forward, a text at a time."""
    lm = model.backbone.lm

    def hook_of(path: str):
        def hook(layer, args, output):
            up, down = parts_of(model, path)
            return output + 16.0 / model.r * args[0] @ down.T @ up.T

        return hook

    handles = [lm.get_submodule(t.path).register_forward_hook(hook_of(t.path)) for t in model.targets]
    scores = torch.full((4, 3), -torch.inf)
    try:
        for row, (prompt, texts) in enumerate(zip(ROWS, TEXTS, strict=True)):
            for place, text in enumerate(texts):
                if text:
                    logits = lm(input_ids=torch.tensor([[*prompt, *text]]), use_cache=False).logits[0]
                    behind = logits.log_softmax(-1)[len(prompt) - 1 : -1]
                    each = behind[torch.arange(len(text)), text]
                    scores[row, place] = each.mean() if mean else each.sum()
    finally:
        for handle in handles:
            handle.remove()
    return scores.log_softmax(-1)


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("arch", CONFIGS)
@torch.no_grad()
def test_scores_are_those_of_a_loop_over_texts(arch: str, mean: bool) -> None:
    model, guide = lora(arch, mean=mean)
    found = predict(model, guide, text_batch(), samples=0)[0]
    truth = looped(model, mean=mean)
    assert_close(found[TEXT_OFFERED].float(), truth[TEXT_OFFERED], rtol=1e-4, atol=1e-5)
    assert (found[~TEXT_OFFERED] < NOT_OFFERED / 2).all()


TEXT_OFFERED = torch.tensor([[bool(text) for text in texts] for texts in TEXTS])


def test_the_sums_differ_from_the_means() -> None:
    """A guard: a likelihood that forgot to divide would be noticed."""
    first, second = looped(lora()[0], mean=False), looped(lora()[0], mean=True)
    assert (first - second)[TEXT_OFFERED].abs().max() > 0.1


@pytest.mark.parametrize("mean", [False, True])
@torch.no_grad()
def test_a_temperature_divides_the_scores_of_texts(mean: bool) -> None:
    """The texts' scores, not the logits of their tokens: one that is not offered stays impossible."""
    plain, _ = lora(mean=mean)
    own = Corrections(plain, calibrated=True)
    require_temperature(own).set(math.log(2.5))
    found = own.predict(plain, DeltaGuide(plain), text_batch(), samples=0)[0]
    expected = log_softmax(looped(plain, mean=mean).masked_fill(~TEXT_OFFERED, -math.inf).numpy() / 2.5, -1)
    assert_close(found[TEXT_OFFERED], torch.as_tensor(expected)[TEXT_OFFERED].double(), rtol=1e-4, atol=1e-4)
    assert (found[~TEXT_OFFERED] < -1000).all()
    untouched = predict(plain, DeltaGuide(plain), text_batch(), samples=0)[0]
    assert (found - untouched)[TEXT_OFFERED].abs().max() > 0.1


@pytest.mark.parametrize("samples", [0, 5])
def test_texts_of_one_token_are_the_answer_tokens(samples: int) -> None:
    texts = tuple(([7], [3], [50]) for _ in ROWS)
    plain = predict(*bara(AnswerLikelihood()), make_batch(), samples=samples)
    found = predict(*bara(TextLikelihood()), text_batch(texts=texts), samples=samples)
    assert_close(found, plain, rtol=0, atol=1e-5)


@pytest.mark.parametrize("budget", [1, None])
def test_a_row_does_not_depend_on_the_others(budget: int | None) -> None:
    """Not on their number, their length, nor on how many positions of theirs are read."""
    pair = bara(TextLikelihood(), target_modules=["q_proj", "lm_head"])
    whole = predict(*pair, text_batch(), samples=5, memory_budget=budget)
    for row in ALL:
        alone = predict(*pair, text_batch((row,)), samples=5)
        assert_close(whole[:, row], alone[:, 0], rtol=0, atol=1e-4)
    assert whole.std(0)[TEXT_OFFERED].median() > 0.1


def test_the_objective_is_cross_entropy_over_texts() -> None:
    """LoRA has no latent: the loss is the loop's NLL, scaled to all N rows, and training lowers it."""
    model, guide = lora()
    svi = trainer((model, guide))
    batch = text_batch()
    with torch.no_grad():
        nll = -looped(model, mean=False)[torch.arange(4), list(LABELS)].sum()
    assert_close(torch.as_tensor(svi.evaluate_loss(batch)), nll, rtol=1e-4, atol=1e-4, check_dtype=False)
    first = svi.step(batch)
    for _ in range(20):
        last = svi.step(batch)
    assert last < first / 2


def test_gates_of_the_head_cost_a_kl_a_position_that_is_read() -> None:
    model, guide = bara(TextLikelihood(), target_modules=["lm_head"])
    counts = text_batch().asked
    assert counts == (4, 5, 5, 4)  # the prompt's end, and all tokens but the last of each text
    trace = pyro.poutine.trace(model).get_trace(text_batch())
    site = trace.nodes["theta/lm_head"]
    assert site["value"].shape == (4, 5, 3)
    assert site["mask"].sum(-1).tolist() == list(counts)
    assert guide.model is model


def test_a_batch_without_texts_is_refused() -> None:
    with pytest.raises(DataError, match="no texts to score"):
        predict(*lora(), make_batch(), samples=0)


def test_the_layout_of_a_row() -> None:
    batch = text_batch((0,))
    assert isinstance(batch, TextBatch)
    assert batch.input_ids.tolist() == [[5, 7, 9, 3, 9, 50]]
    assert batch.segments.tolist() == [[0, 0, 0, 2, 2, 3]]
    assert batch.tokens.tolist() == [[7, 3, 9, 12, 50, 3]]
    assert batch.places.tolist() == [[3, 3, 2, 1, 3, 0]]
    assert batch.owners.tolist() == [[0, 1, 1, 1, 2, 2]]
