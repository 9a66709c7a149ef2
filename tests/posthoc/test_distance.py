"""Distance-aware predictions of every method: distribution of the noise, the fit, nothing else changed."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from core_cases import bara_pair, lora_pair, make_batch, randomise, unlabelled
from method_cases import ALPHA, UNLABELLED, N, R, backbone
from numpy.testing import assert_allclose
from posthoc_cases import Evidence
from torch import Tensor
from torch.testing import assert_close

from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.likelihood import AnswerLikelihood, CompletionLikelihood, TextLikelihood
from bara_pyro.core.observing import frozen_states
from bara_pyro.core.prediction import predict
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data.split import with_texts
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError, DataError
from bara_pyro.methods import METHODS, build, method_config
from bara_pyro.metrics import decompose_nested
from bara_pyro.models.lora import LoRA
from bara_pyro.posthoc.correction import FEWEST
from bara_pyro.posthoc.corrections import Corrections
from bara_pyro.posthoc.distance import Distance, InTurn, held_out_squares, whitened

WIDTH, CLASSES = 6, 3


def states(rows: int, seed: int = 0, width: int = WIDTH) -> Tensor:
    """Correlated Gaussian rows about a mean that is not 0."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(width, width, generator=torch.Generator().manual_seed(9))
    return torch.randn(rows, width, generator=generator) @ mixing + 2.0


def fitted(rows: int = 500) -> Distance:
    """The noise of toy states."""
    distance = Distance(WIDTH)
    logits = 2 * torch.randn(rows, CLASSES, generator=torch.Generator().manual_seed(1))
    distance.fit(Evidence(frozen_states=states(rows), points=logits.log_softmax(-1)))
    return distance


def drawn(distance: Distance, rows: Tensor, draws: int, seed: int = 0) -> Tensor:
    """What is added to logits of 0, up to a constant a row: `draws x B x C`."""
    flat = torch.zeros(draws, len(rows), CLASSES)
    with InTurn(seed, torch.arange(draws)):
        return distance(flat, rows)


def test_the_covariance_is_that_of_ledoit_and_wolf() -> None:
    covariance = pytest.importorskip("sklearn.covariance")
    for rows in (4, 20, 300):
        x = states(rows)
        mean, whitening, shrinkage = whitened(x)
        theirs = covariance.LedoitWolf().fit(x.double().numpy())
        assert_allclose(shrinkage, theirs.shrinkage_, rtol=1e-9)
        assert_allclose(mean, theirs.location_, rtol=1e-12)
        assert_allclose(whitening @ whitening.T, np.linalg.inv(theirs.covariance_), rtol=1e-7, atol=1e-9)


def test_held_out_distances_by_a_loop() -> None:
    x = states(23).double().numpy()
    found = held_out_squares(torch.from_numpy(x))
    for i, row in enumerate(x):
        others = torch.from_numpy(x[[j for j in range(len(x)) if j % 5 != i % 5]])
        mean, whitening, _ = whitened(others)
        inverse = (whitening @ whitening.T).numpy()
        assert_allclose(float(found[i]), (row - mean.numpy()) @ inverse @ (row - mean.numpy()), rtol=1e-9)


def test_squares_are_mahalanobis_distances() -> None:
    covariance = pytest.importorskip("sklearn.covariance")
    theirs = covariance.LedoitWolf().fit(states(500).double().numpy())
    new = states(20, seed=3)
    assert_allclose(fitted().squares(new), theirs.mahalanobis(new.double().numpy()), rtol=1e-4)


def test_one_new_row_in_twenty_is_outside() -> None:
    """Also where there are hardly more rows than dimensions, where rows of the fit themselves look near."""
    for rows, width in ((2000, WIDTH), (120, 40)):
        distance = Distance(width)
        points = torch.randn(rows, 2).log_softmax(-1)
        distance.fit(Evidence(frozen_states=states(rows, width=width), points=points))
        new = states(4000, seed=5, width=width)
        outside = float((distance.directions(new).abs().sum(-1) > 0).double().mean())
        # Error of the quantile of so many rows and of the share of new ones; folds have a fifth fewer.
        error = math.sqrt(0.05 * 0.95 * (1 / rows + 1 / len(new)))
        assert abs(outside - 0.05) < 4 * error + (0.02 if rows < 200 else 0)


def test_variance_and_covariance_are_those_of_the_process() -> None:
    """Variance sigma^2 relu(1 - q / d^2) a logit, sigma^2 g . g' between rows, 0 between classes."""
    distance = fitted()
    rows = torch.cat([states(1), 2.0 + 6 * (states(3, seed=4) - 2.0)])
    mean, precision = distance.mean, distance.whitening @ distance.whitening.mT
    squares = torch.stack([(x - mean) @ precision @ (x - mean) for x in rows])
    variance = distance.scale**2 * (1 - distance.radius / squares).clamp_min(0)
    assert variance[0] == 0
    assert variance[1:].min() > 0.3 * distance.scale**2
    draws = 30_000
    noise = drawn(distance, rows, draws)
    apart = noise[..., 0] - noise[..., 1]  # of two classes, so that the constant of a row goes
    found = apart.mT @ apart / draws
    g = distance.directions(rows)
    expected = 2 * distance.scale**2 * g @ g.mT
    assert_close(expected.diagonal(), 2 * variance, rtol=1e-4, atol=1e-6)
    # C draws in turn share their numbers: the effective number of draws is at least a C-th.
    error = math.sqrt(2 * CLASSES / draws) * float(expected.max())
    assert_close(found, expected, rtol=0, atol=4 * error)


def test_in_turn_each_class_takes_each_noise() -> None:
    distance = fitted()
    far = 2.0 + 9 * (states(2, seed=4) - 2.0)
    noise = drawn(distance, far, 2 * CLASSES + 1)
    for first in (0, CLASSES):
        group = noise[first : first + CLASSES]
        for k in range(CLASSES):
            assert_close(group[k].roll(1, -1), group[(k + 1) % CLASSES])
        assert_close(group.mean(0), group.mean((0, 2), keepdim=True)[0].expand(2, CLASSES))
    assert not torch.allclose(noise[0], noise[CLASSES])
    alone = torch.zeros(1, 2, CLASSES)
    with InTurn(0, torch.tensor([4])):
        assert_close(distance(alone, far)[0], noise[4])  # a draw depends on its number alone
    assert not torch.allclose(drawn(distance, far, 1, seed=1)[0], noise[0])


def test_scale_is_that_of_the_logits() -> None:
    logits = torch.tensor([[3.0, 0.0, 0.0], [0.0, 0.0, -6.0]]).repeat(10, 1)
    distance = Distance(WIDTH)
    told = distance.fit(Evidence(frozen_states=states(20), points=logits.log_softmax(-1)))
    centred = [2.0, -1.0, -1.0, 2.0, 2.0, -4.0]
    assert told["scale"] == pytest.approx(math.sqrt(sum(v * v for v in centred) / 6))
    assert told["rows"] == 20


def test_scale_is_that_of_the_answers_that_a_row_offers() -> None:
    """400 rows of three answers, a fortieth of four: what the model says of a fourth elsewhere is nothing."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(400, 4, generator=generator, dtype=torch.float64)
    logits[:, 3] -= 9.0
    four = torch.arange(400) % 40 == 0
    offered = torch.ones(400, 4, dtype=torch.bool)
    offered[~four, 3] = False
    rows = Evidence(frozen_states=states(400), points=logits.log_softmax(-1), offered=offered)
    told = Distance(WIDTH).fit(rows)
    squares = [row[: 4 if more else 3].var(correction=0) for row, more in zip(logits, four, strict=True)]
    assert told["scale"] == pytest.approx(math.sqrt(sum(squares) / 400), rel=1e-6)


def test_copies_of_a_row_are_left_out_with_it() -> None:
    """80 texts several times over, hardly more than dimensions: the radius is of texts that are not there."""
    rows, width, copies = 80, 40, 2
    x = states(rows, width=width).repeat_interleave(copies, 0)
    names = [f"text {i}" for i in range(rows) for _ in range(copies)]
    distance = Distance(width)
    points = torch.randn(len(x), 2).log_softmax(-1)
    distance.fit(Evidence(frozen_states=x, points=points, groups=names))
    new = states(4000, seed=5, width=width)
    outside = float((distance.directions(new).abs().sum(-1) > 0).double().mean())
    assert outside < 0.05 + 4 * math.sqrt(0.05 * 0.95 / rows)
    assert outside > 0
    # Each by a loop: no row of its own text among those that it is measured by.
    found = held_out_squares(x, names)
    fold = [i % 5 for i in range(rows) for _ in range(copies)]
    for i in range(0, len(x), 7):
        mean, whitening, _ = whitened(x[[j for j in range(len(x)) if fold[j] != fold[i]]])
        assert_close(found[i], ((x[i].double() - mean) @ whitening).square().sum(), rtol=1e-9, atol=0)


def test_a_program_is_fitted_by_groups_and_by_what_rows_offer() -> None:
    model, guide = pair_of("lora")
    known, _ = near_and_far()
    groups = [f"g{i // 4}" for i in range(32)]
    offered = torch.ones(32, 3, dtype=torch.bool)
    offered[5:, 2] = False
    told = aware(model).fit(model, guide, known, groups=groups, offered=offered)
    seen = torch.cat([frozen_states(model, batch) for batch in known])
    assert told["distance_radius"] == pytest.approx(
        float(held_out_squares(seen, groups).quantile(0.95)), rel=1e-6
    )
    assert told["distance_radius"] != pytest.approx(float(held_out_squares(seen).quantile(0.95)), rel=1e-3)
    points = torch.cat([predict(model, guide, batch, samples=0)[0] for batch in known])
    own = [row[: 3 if i < 5 else 2].var(correction=0) for i, row in enumerate(points)]
    assert told["distance_scale"] == pytest.approx(math.sqrt(sum(own) / 32), rel=1e-5)


def test_too_few_rows_and_other_likelihoods_are_refused() -> None:
    model, guide = lora_pair("llama")
    with pytest.raises(DataError, match=f"8 training rows .* at least {FEWEST}"):
        aware(model).fit(model, guide, near_and_far()[0][:2])
    with pytest.raises(ConfigError, match="Distance-aware predictions need"):
        aware(LoRA(model.backbone, 4, likelihood=CompletionLikelihood()))


def as_texts(batch: Batch, *more: int) -> Batch:
    """The same rows, whose answers are texts of one token and `more`."""
    lengths = batch.attention_mask.sum(-1).tolist()
    prompts = [row[-length:].tolist() for row, length in zip(batch.input_ids, lengths, strict=True)]
    texts = [[[answer, *more] for answer in batch.answer_ids.tolist()]] * len(prompts)
    return with_texts(replace(batch, answer_ids=batch.answer_ids[:0]), prompts, texts)


def test_texts_of_one_token_get_the_noise_of_answers() -> None:
    found = []
    for likelihood, form in ((AnswerLikelihood(), replace), (TextLikelihood(), as_texts)):
        torch.manual_seed(0)
        pair = bara_pair("llama", scale=0.3, form="gate", likelihood=likelihood)
        own, (known, far) = aware(pair[0]), near_and_far()
        own.fit(*pair, map(form, known))
        found.append(own.predict(*pair, form(far), samples=7))
        assert not torch.allclose(found[-1], predict(*pair, form(far), samples=7), atol=0.1)
    assert_close(*found, rtol=1e-4, atol=1e-4)
    longer = frozen_states(pair[0], as_texts(far, 9, 8, 7))
    assert_close(longer, frozen_states(pair[0], far), rtol=1e-4, atol=1e-5)


def near_and_far() -> tuple[list[Batch], Batch]:
    """Rows of few tokens to fit to, and others of other tokens."""
    generator = torch.Generator().manual_seed(0)
    known = [
        make_batch(rows=[tuple(torch.randint(3, 9, (4,), generator=generator).tolist()) for _ in range(4)])
        for _ in range(8)
    ]
    return [replace(batch, labels=None) for batch in known], unlabelled()


def pair_of(kind: str, scale: float = 0.3) -> tuple[AdaptedLM, SiteGuide]:
    torch.manual_seed(0)
    if kind == "lora":
        return lora_pair("llama", scale=scale)
    return bara_pair("llama", scale=scale, form=kind)


def aware(model: AdaptedLM) -> Corrections:
    return Corrections(model, distance_aware=True)


@pytest.mark.parametrize("kind", ["lora", "gate"])
def test_rows_like_the_training_rows_keep_their_draws(kind: str) -> None:
    pair = pair_of(kind)
    own = aware(pair[0])
    known, far = near_and_far()
    assert_close(own.predict(*pair, far, samples=4), predict(*pair, far, samples=4), rtol=0, atol=0)
    own.fit(*pair, known)
    assert_close(own.predict(*pair, far, samples=0), predict(*pair, far, samples=0), rtol=0, atol=0)
    g = own.distance.directions(frozen_states(pair[0], known[0])).abs().sum(-1)
    before, after = predict(*pair, known[0], samples=4), own.predict(*pair, known[0], samples=4)
    inside = g == 0
    assert inside.any()
    assert_close(after[:, inside], before[:, inside])
    assert (own.distance.directions(frozen_states(pair[0], far)).abs().sum(-1) > 0).any()
    assert not torch.allclose(own.predict(*pair, far, samples=4), predict(*pair, far, samples=4))


@pytest.mark.parametrize("kind", ["lora", "gate"])
def test_a_draw_depends_on_its_seed_and_number_alone(kind: str) -> None:
    pair = pair_of(kind)
    own = aware(pair[0])
    known, far = near_and_far()
    own.fit(*pair, known)
    whole = own.predict(*pair, far, samples=7, seed=3)
    cut = own.predict(*pair, far, samples=7, seed=3, memory_budget=1)
    assert_close(cut, whole, rtol=1e-5, atol=1e-5)
    assert_close(own.predict(*pair, far, samples=3, seed=3), whole[:3], rtol=1e-5, atol=1e-5)
    for i in range(len(far)):
        alone = own.predict(*pair, far.questions(slice(i, i + 1)), samples=7, seed=3)
        assert_close(alone[:, 0], whole[:, i], rtol=1e-5, atol=1e-5)
    if kind == "gate":
        for piece in own.record(*pair, far, samples=7, seed=3, memory_budget=1):
            assert_close(piece.log_probs, whole[piece.draws, piece.rows], rtol=1e-5, atol=1e-5)


def test_nested_draws_share_the_noise() -> None:
    """It is the same for draws that share the global latents: no disagreement among these is of it."""
    pair = pair_of("lora")
    own = aware(pair[0])
    known, far = near_and_far()
    own.fit(*pair, known)
    found = own.predict(*pair, far, samples=8, repeats=4)
    nested = found.reshape(2, 4, *found.shape[1:])
    assert_close(nested, nested[:, :1].expand_as(nested))
    assert decompose_nested(found, repeats=4) is not None


def test_features_are_the_frozen_models() -> None:
    """Whatever the adapters do: of a model without any."""
    pair = pair_of("gate", scale=2.0)
    far = unlabelled()
    lm = pair[0].backbone.lm
    for i, length in enumerate(far.attention_mask.sum(-1).tolist()):
        ids = far.input_ids[i : i + 1, -length:]
        expected = lm.model(input_ids=ids).last_hidden_state[0, -1]
        assert_close(frozen_states(pair[0], far)[i], expected, rtol=1e-4, atol=1e-5)


# Rows that end alike, unlike those of `UNLABELLED`.
KNOWN = [
    replace(make_batch(rows=[(3 + 4 * i + k, 20, 21, 22) for k in range(4)]), labels=None) for i in range(6)
]


@pytest.mark.parametrize("method", sorted(METHODS))
def test_foreign_rows_get_draws_that_disagree(method: str) -> None:
    torch.manual_seed(0)
    adapter = {"r": R, "lora_alpha": ALPHA, "target_modules": None}
    model, guide = build(method_config(method), backbone(), N, adapter)
    randomise(model)  # so that the adapters change something
    own = Corrections(model, distance_aware=True)
    assert own.fit(model, guide, KNOWN)["distance_rows"] == 24
    before, after = (drawn(model, guide, UNLABELLED, samples=6) for drawn in (predict, own.predict))
    assert_close(after.exp().sum(-1), torch.ones_like(after[..., 0]))
    times, rest = divmod(len(after), len(before))  # members of an ensemble take several draws each
    assert times * len(before) >= 6
    assert rest == 0
    changed = (after - before.repeat_interleave(times, 0)).abs().amax((0, -1)) > 1e-6
    outside = own.distance.directions(frozen_states(model, UNLABELLED)).abs().sum(-1) > 0
    assert outside.any()
    assert changed.tolist() == outside.tolist()
    point = [drawn(model, guide, UNLABELLED, samples=0) for drawn in (predict, own.predict)]
    assert_close(*point, rtol=0, atol=0)
