"""`attached`: the language model with a fitted program in it, against `predict` and without a cache."""

import pytest
import torch
from core_cases import bara_pair, lora_pair, make_batch, mean_forward, unlabelled
from torch import Tensor
from torch.testing import assert_close

import bara_pyro as bp
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError

ARCHS = ("qwen2", "qwen2-tied", "gpt2", "gpt_neox")


def asked(lm: torch.nn.Module, batch: Batch, **more: object) -> Tensor:
    """The answers' log-probabilities of the language model itself, `B x C`."""
    positions = (batch.attention_mask.cumsum(-1) - 1).clamp_min(0)
    out = lm(
        input_ids=batch.input_ids, attention_mask=batch.attention_mask.long(), position_ids=positions, **more
    )
    return out.logits[:, -1, batch.answer_ids].detach().double().log_softmax(-1)


def written(lm: torch.nn.Module, batch: Batch, *, cache: bool, **more: object) -> Tensor:
    """Eight tokens behind each row, greedily."""
    return lm.generate(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask.long(),
        max_new_tokens=8,
        do_sample=False,
        use_cache=cache,
        pad_token_id=0,
        **more,
    )


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("form", ["additive", "gate"])
def test_the_mean_gates_give_the_logits_of_predict(arch: str, form: str) -> None:
    pair = bara_pair(arch, seed=0, scale=0.3, move=0.2, form=form)
    batch = unlabelled(pad=2)
    with bp.attached(pair) as lm:
        ours = asked(lm, batch)
    assert_close(ours, bp.predict(*pair, batch, samples=0)[0], atol=2e-6, rtol=0)
    assert (ours - asked(pair[0].backbone.lm, batch)).abs().max() > 0.01  # the adapters do something


@pytest.mark.parametrize("arch", ARCHS)
def test_generation_is_the_same_with_and_without_a_cache(arch: str) -> None:
    pair = bara_pair(arch, seed=0, scale=0.3, move=0.2, form="gate")
    batch = make_batch()
    plain = written(pair[0].backbone.lm, batch, cache=True)
    with bp.attached(pair) as lm:
        cached, whole = (written(lm, batch, cache=cache) for cache in (True, False))
    assert torch.equal(cached, whole)
    assert not torch.equal(cached, plain)


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
    assert_close(mean_forward(model, guide, batch).double(), inside, atol=2e-6, rtol=0)


def test_a_program_that_is_more_than_adapters_is_refused() -> None:
    model, guide = lora_pair()
    other = lora_pair()[0]
    with pytest.raises(ConfigError, match="another model"), bp.attached((other, guide)):
        pass

    class Doubled(type(model)):  # type: ignore[misc]
        def logits(self, *args: object, **kwargs: object) -> Tensor:
            return 2 * AdaptedLM.logits(self, *args, **kwargs)

    model.__class__ = Doubled
    with pytest.raises(ConfigError, match="Doubled is more than adapters"), bp.attached((model, guide)):
        pass
