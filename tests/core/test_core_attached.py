"""`attached`: the language model with a fitted program in it, against `predict` and without a cache."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from core_cases import bara_pair, lora_pair, make_batch, mean_forward, randomise, unlabelled
from torch import Tensor
from torch.testing import assert_close

import bara_pyro as bp
from bara_pyro.core.attached import positions_of
from bara_pyro.core.prediction import predict
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError
from bara_pyro.runs.config import load_config
from bara_pyro.runs.system import build_system

ROUNDING = 5e-6  # of logits of 3 in float32, computed in two ways
ARCHS = ("qwen2", "qwen2-tied", "gpt2", "gpt_neox")


def asked(lm: torch.nn.Module, batch: Batch, **more: object) -> Tensor:
    """The answers' log-probabilities of the language model itself, `B x C`."""
    positions = (batch.attention_mask.cumsum(-1) - 1).clamp_min(0)
    out = lm(
        input_ids=batch.input_ids, attention_mask=batch.attention_mask.long(), position_ids=positions, **more
    )
    return out.logits[:, -1, batch.answer_ids].detach().double().log_softmax(-1)


def written(lm: torch.nn.Module, batch: Batch, *, cache: bool) -> Any:
    """Eight tokens behind each row, greedily."""
    return lm.generate(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask.long(),
        max_new_tokens=8,
        do_sample=False,
        use_cache=cache,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )


class Cached:
    """A key-value cache of some tokens."""

    def __init__(self, length: int) -> None:
        self.length = length

    def get_seq_length(self) -> int:
        return self.length


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("form", ["additive", "gate"])
def test_the_mean_gates_give_the_logits_of_predict(arch: str, form: str) -> None:
    pair = bara_pair(arch, seed=0, scale=0.3, move=0.2, form=form)
    batch = unlabelled(pad=2)
    with bp.attached(pair) as lm:
        ours = asked(lm, batch)
    assert_close(ours, predict(*pair, batch, samples=0)[0], atol=ROUNDING, rtol=0)
    assert (ours - asked(pair[0].backbone.lm, batch)).abs().max() > 0.01  # the adapters do something


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("form", ["additive", "gate"])
def test_a_draw_is_the_one_of_predict(arch: str, form: str) -> None:
    pair = bara_pair(arch, seed=0, scale=0.3, move=0.2, form=form)
    batch = unlabelled(pad=2)
    anonymous = replace(batch, ids=())
    found = []
    for seed in (3, 4):
        with bp.attached(pair, seed=seed) as lm:
            ours = asked(lm, batch)
            # By mask or by position, with the padding counted in or left to the model.
            whole = lm(input_ids=batch.input_ids, attention_mask=batch.attention_mask.long())
        assert_close(ours, predict(*pair, anonymous, samples=1, seed=seed)[0], atol=ROUNDING, rtol=0)
        found.append(ours)
        if arch != "gpt2":  # whose positions are counted from the padding where none are given
            last = whole.logits[:, -1, batch.answer_ids].detach().double().log_softmax(-1)
            assert_close(last, ours, atol=1e-5, rtol=0)
    assert (found[0] - found[1]).abs().max() > 0.01


@pytest.mark.parametrize("draws", [None, 5])
@pytest.mark.parametrize("arch", ARCHS)
def test_generation_is_the_same_with_and_without_a_cache(arch: str, draws: int | None) -> None:
    pair = bara_pair(arch, seed=0, scale=0.3, move=0.2, form="gate")
    batch = make_batch()
    plain = written(pair[0].backbone.lm, batch, cache=True)
    with bp.attached(pair, draws) as lm:
        cached, whole = (written(lm, batch, cache=cache) for cache in (True, False))
        again = written(lm, batch, cache=True)
    for own, other in ((cached, whole), (cached, again)):
        assert torch.equal(own.sequences, other.sequences)
        assert_close(own.logits, other.logits, atol=2e-5, rtol=0)
    assert not torch.equal(cached.sequences, plain.sequences)


def test_a_draw_of_what_was_written_is_that_of_the_whole_text() -> None:
    """Every position's logits, read off at once, are those that were written one by one."""
    pair = bara_pair(seed=0, scale=0.3, move=0.2, form="gate")
    batch = make_batch()
    with bp.attached(pair, seed=5) as lm:
        out = written(lm, batch, cache=True)
        mask = torch.nn.functional.pad(batch.attention_mask.long(), (0, 8), value=1)
        whole = lm(input_ids=out.sequences, attention_mask=mask).logits[:, -9:-1]
    assert_close(torch.stack(out.logits, dim=1), whole.detach(), atol=2e-5, rtol=0)


POSITIONS: dict[str, tuple[dict[str, object], list[list[int]]]] = {
    "positions": (
        {"input_ids": torch.ones(2, 3), "position_ids": torch.tensor([[4, 5, 6]])},
        [[4, 5, 6]] * 2,
    ),
    "planes": ({"input_ids": torch.ones(1, 2), "position_ids": torch.tensor([[[7, 8]], [[0, 1]]])}, [[7, 8]]),
    "mask": (
        {"input_ids": torch.ones(2, 2), "attention_mask": torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])},
        [[1, 2], [2, 3]],
    ),
    "embeddings": ({"inputs_embeds": torch.ones(1, 2, 5)}, [[0, 1]]),
    "cache": ({"input_ids": torch.ones(1, 2), "cache": Cached(4)}, [[4, 5]]),
    "before 5.24": ({"input_ids": torch.ones(1, 2), "past_key_values": Cached(4)}, [[4, 5]]),
    "none": ({"input_ids": torch.ones(1, 2), "cache": None}, [[0, 1]]),
}


@pytest.mark.parametrize("case", POSITIONS)
def test_positions_are_counted_from_the_first_real_token(case: str) -> None:
    given, there = POSITIONS[case]
    assert positions_of(**given).tolist() == there


def test_a_pipeline_writes_as_generate_does() -> None:
    """On the small model that ships with the package, which has a tokenizer."""
    from transformers import pipeline

    from bara_pyro.guides.weibull import WeibullGuide
    from bara_pyro.models.bara import BaRA

    frozen = bp.load_backbone("microworld")
    torch.manual_seed(0)
    model = randomise(BaRA(frozen, 4, r=3), 0.3)
    pair = (model, WeibullGuide(model))
    options = {"max_new_tokens": 6, "do_sample": False, "return_full_text": False}
    said = {}
    for draws in (None, 1, 2):
        with bp.attached(pair, draws) as lm:
            write = pipeline("text-generation", model=lm, tokenizer=frozen.tokenizer)
            said[draws] = write("Ada likes the", **options)[0]["generated_text"]
            tokens = frozen.tokenizer("Ada likes the", return_tensors="pt")
            ids = lm.generate(**tokens, max_new_tokens=6, do_sample=False)[0, tokens["input_ids"].shape[1] :]
            assert said[draws] == frozen.tokenizer.decode(ids, skip_special_tokens=True)
    assert len(set(said.values())) > 1


def test_the_language_model_is_left_as_it_was() -> None:
    model, guide = bara_pair(seed=0, scale=0.3)
    lm, batch = model.backbone.lm, make_batch()
    before, keys = asked(lm, batch), {name: value.clone() for name, value in lm.state_dict().items()}

    def fail() -> None:
        with bp.attached((model, guide)):
            assert not torch.equal(asked(lm, batch), before)
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail()
    assert torch.equal(asked(lm, batch), before)
    assert all(torch.equal(value, keys[name]) for name, value in lm.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in lm.modules())


def test_an_error_inside_the_model_leaves_nothing_behind() -> None:
    model, guide = bara_pair(seed=0, scale=0.3)
    batch = make_batch()
    with bp.attached((model, guide)) as lm:
        inside = asked(lm, batch)
        with pytest.raises(IndexError):
            lm(input_ids=torch.tensor([[10**6]]))
        assert torch.equal(asked(lm, batch), inside)
    assert_close(mean_forward(model, guide, batch).double(), inside, atol=ROUNDING, rtol=0)


def test_a_program_that_is_more_than_adapters_is_refused() -> None:
    model, guide = lora_pair()
    other = lora_pair()[0]
    with pytest.raises(ConfigError, match="another model"), bp.attached((other, guide)):
        pass

    class Doubled(type(model)):  # type: ignore[misc]
        def logits(self, *args: object, **kwargs: object) -> Tensor:
            return 2 * AdaptedLM.logits(self, *args, **kwargs)

    with pytest.raises(ConfigError, match="seed='mode'"), bp.attached((model, guide), "mode"):  # type: ignore
        pass
    model.__class__ = Doubled
    with pytest.raises(ConfigError, match="Doubled does more"), bp.attached((model, guide)):
        pass


def test_noise_of_answers_hangs_on_no_layer() -> None:
    """The draws of a distance-aware run are not those of its adapters; its mean is."""
    overrides = {"method": "bara-gate", "task.limit": 20, "adapter.distance_aware": True}
    system = build_system(load_config(overrides=overrides))
    with pytest.raises(ConfigError, match="noise to its answers"), bp.attached(system, 7):
        pass
    with bp.attached(system):
        pass


def test_tokens_chosen_by_their_places_are_refused_for_a_draw() -> None:
    pair = bara_pair(seed=3, scale=0.3)
    batch = unlabelled()
    places = torch.tensor([0, 2])
    with bp.attached(pair, 3) as lm, pytest.raises(ConfigError, match="tensor of positions"):
        lm(input_ids=batch.input_ids, logits_to_keep=places)
    with bp.attached(pair) as lm, torch.no_grad():
        assert lm(input_ids=batch.input_ids, logits_to_keep=places).logits.shape[1] == 2
