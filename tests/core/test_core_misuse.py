"""What would answer wrongly without a word: a second program, training mode, other weights, threads."""

import pickle
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from core_cases import ANSWERS, backbone, bara_pair, lora_pair, make_batch, make_lm, randomise, unlabelled
from pyro.distributions import FoldedDistribution, Normal, TorchDistribution
from tokenizers import Tokenizer, models
from torch import Tensor
from torch.testing import assert_close

import bara_pyro as bp
from bara_pyro.core.optimizers import adamw
from bara_pyro.core.prediction import predict
from bara_pyro.core.svi import SVI
from bara_pyro.data import Task, register_task
from bara_pyro.data.split import collate_ids
from bara_pyro.data.types import Batch
from bara_pyro.errors import BackboneError, ConfigError, DataError
from bara_pyro.guides.amortized import AmortizedGuide
from bara_pyro.guides.delta import DeltaGuide
from bara_pyro.guides.laplace import LaplaceGuide
from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.loading import load_tokenizer
from bara_pyro.lm.targets import find_targets
from bara_pyro.microworld import backbone_path
from bara_pyro.models.gaussian_lora import GaussianLoRA
from bara_pyro.models.lora import LoRA


def moved(pair: Any, arch: str = "qwen2") -> Any:
    model, guide = pair(arch)
    randomise(model, 0.3)
    return model, guide


@pytest.mark.parametrize("pair", [lora_pair, bara_pair])
def test_a_second_program_is_not_added_to_one_that_is_attached(pair: Any) -> None:
    model, guide = moved(pair)
    lm, batch = model.backbone.lm, unlabelled()
    other = other_program(lm)
    before = predict(model, guide, batch, samples=0)
    with bp.attached((model, guide)):
        for run in ((model, guide), other):
            with pytest.raises(BackboneError, match="A program is already attached to this language model"):
                predict(*run, batch, samples=0)
            with pytest.raises(BackboneError, match="A program is already attached"), bp.attached(run):
                pass
        with pytest.raises(BackboneError, match="A program is already attached"):
            SVI(model, guide, adamw(model, guide, 1e-3)).step(make_batch())
    assert torch.equal(predict(model, guide, batch, samples=0), before)
    with pytest.raises(ValueError, match="of the user"), bp.attached((model, guide)):
        raise ValueError("of the user")
    assert torch.equal(predict(model, guide, batch, samples=0), before)


def other_program(lm: Any) -> Any:
    """Another program, on a backbone of its own of the same language model."""
    model = LoRA(Backbone(lm), 4, r=2)
    return model, DeltaGuide(model)


def test_training_mode_is_refused_where_it_would_bring_dropout() -> None:
    model, guide = moved(lora_pair, "gpt2")
    model.backbone.lm.train()
    with pytest.raises(BackboneError, match="in training mode"):
        predict(model, guide, unlabelled(), samples=0)
    with pytest.raises(BackboneError, match="in training mode"):
        SVI(model, guide, adamw(model, guide, 1e-3)).step(make_batch())
    model.backbone.lm.eval()
    predict(model, guide, unlabelled(), samples=0)


def test_states_of_weights_that_changed_are_forgotten() -> None:
    model = LoRA(Backbone(make_lm("qwen2")), 4, r=3)
    guide = DeltaGuide(randomise(model, 0.3))
    layers = model.backbone.states.layers
    model.frozen_layers = len(layers) - 1
    for adapter, layer in model._body:
        adapter.lora_B.data.mul_(layer in layers[-1].modules())
    batch, lm = unlabelled(), model.backbone.lm
    predict(model, guide, batch, samples=0)
    lm.load_state_dict({name: value * 1.1 for name, value in lm.state_dict().items()})
    found = predict(model, guide, batch, samples=0)
    model.frozen_layers = 0
    assert_close(predict(model, guide, batch, samples=0), found, rtol=0, atol=2e-5)


def test_seeds_are_whole_numbers_and_draws_of_answers_are_refused() -> None:
    model, guide = moved(bara_pair)
    batch = unlabelled()
    logits = []
    for seed in (3, np.int64(3)):
        with bp.attached((model, guide), seed=seed) as lm, torch.no_grad():
            logits.append(lm(batch.input_ids).logits)
    assert torch.equal(*logits)
    for wrong in (True, 0.5, "some"):
        with (
            pytest.raises(ConfigError, match="must be a whole number"),
            bp.attached((model, guide), wrong),
        ):
            pass
    torch.manual_seed(3)
    normal = GaussianLoRA(backbone(), 12, r=2, random="AB", prior_scale=0.2, beta=0.0)
    laplace = LaplaceGuide(normal)
    refused = pytest.raises(ConfigError, match="LaplaceGuide draws answers")
    with refused, bp.attached((normal, laplace), seed=1):
        pass
    with bp.attached((normal, laplace)):
        pass


def test_threads_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has the answers that it has alone, on one language model or on several."""
    runs = [moved(bara_pair), moved(bara_pair, "gpt2"), moved(lora_pair)]
    runs.append(runs[0])
    alone = [predict(*run, unlabelled(), samples=3) for run in runs]
    found: list[list[Tensor]] = [[] for _ in runs]
    failed: list[BaseException] = []

    def work(place: int) -> None:
        try:
            for _ in range(6):
                found[place].append(predict(*runs[place], unlabelled(), samples=3))
        except BaseException as error:  # noqa: BLE001  # shown below, in the thread of the test
            failed.append(error)

    threads = [threading.Thread(target=work, args=(place,)) for place in range(len(runs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    for expected, several in zip(alone, found, strict=True):
        assert len(several) == 6
        assert all(torch.equal(expected, one) for one in several)


MIXTURE = {
    "vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "intermediate_size": 48, "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "shared_expert_intermediate_size": 24,
}  # fmt: skip


def test_all_linear_layers_leave_out_mixtures_of_experts() -> None:
    torch.manual_seed(0)
    lm = hf.AutoModelForCausalLM.from_config(hf.Qwen2MoeConfig(**MIXTURE))
    names = {target.path.rsplit(".", 1)[-1] for target in find_targets(lm, "all-linear")}
    assert names == {"q_proj", "k_proj", "v_proj", "o_proj"}
    named = LoRA(Backbone(lm), 4, target_modules=["shared_expert.up_proj"])
    with pytest.raises(BackboneError, match=r"shared_expert\.up_proj receives .* leave it out"):
        predict(named, DeltaGuide(named), unlabelled(), samples=0)


def rows(**changes: Any) -> Batch:
    return replace(make_batch(), **changes)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: collate_ids([[]], [0], ["e"], ANSWERS, 0), "row 'e' has no tokens"),
        (lambda: collate_ids([[4, 5], []], [0, 0], ["a", "e"], ANSWERS, 0), "row 'e' has no tokens"),
        (lambda: rows(labels=make_batch().labels + 7), "3 classes and a label"),
        (lambda: rows(labels=make_batch().labels * 0 - 1), "3 classes and a label -1"),
        (lambda: rows(labels=make_batch().labels[:1]), "rows and 1 labels"),
        (lambda: rows(ids=("one",)), "rows and 1 ids"),
        (lambda: rows(attention_mask=make_batch().attention_mask.long()), "attention_mask is torch.int64"),
        (lambda: rows(attention_mask=make_batch().attention_mask[:, 1:]), "attention_mask is torch.bool of"),
        (lambda: rows(answer_ids=torch.tensor([3, -1, 4])), "give the token of each class"),
        (lambda: rows(input_ids=torch.zeros(0, 4, dtype=torch.long)), "give rows x tokens"),
    ],
)  # fmt: skip
def test_batches_that_do_not_fit_are_refused_in_a_sentence(make: Any, message: str) -> None:
    assert len(ANSWERS) == 3
    with pytest.raises(DataError, match=message):
        make()


def test_a_distribution_without_a_mean_is_not_asked_for_one() -> None:
    class Folded(AmortizedGuide):
        def family(self, mean: Tensor, kappa: Tensor) -> TorchDistribution:
            return FoldedDistribution(Normal(mean, kappa))

    model, _ = bara_pair()
    with pytest.raises(ConfigError, match=r"of 'phi', a FoldedDistribution, has no mean, which S = 0 needs"):
        predict(model, Folded(model), unlabelled(), samples=0)
    assert predict(model, Folded(model), unlabelled(), samples=2).isfinite().all()


def test_a_step_of_nothing_is_refused() -> None:
    model, guide = lora_pair("qwen2")
    with pytest.raises(ConfigError, match="received no batch"):
        SVI(model, guide, adamw(model, guide, 1e-3)).step()


def test_a_folder_that_is_not_there_is_told_from_one_that_is(tmp_path: Any) -> None:
    with pytest.raises(
        BackboneError,
        match=r"no such folder; the hub says: .*`bara backbone get smollm2 --out runs/smollm2`",
    ):
        bp.load_backbone(tmp_path / "absent")
    with pytest.raises(
        BackboneError, match=r"Cannot load the backbone .* \(it has no config.json\)"
    ) as refused:
        bp.load_backbone(tmp_path)
    assert "no such folder" not in str(refused.value)


@pytest.mark.parametrize("kind", ["qwen2", "llama"])  # transformers makes an empty tokenizer, or raises
def test_a_folder_without_a_tokenizer_is_refused(kind: str, tmp_path: Path) -> None:
    make_lm(kind).save_pretrained(tmp_path)
    with pytest.raises(BackboneError) as refused:
        bp.load_backbone(tmp_path)
    message = str(refused.value)
    assert message.startswith(f"{str(tmp_path)!r} has no tokenizer: copy ")
    assert len(message) - len(str(tmp_path)) < 180
    assert "\n" not in message
    source = backbone_path()
    shutil.copy(source / "tokenizer_config.json", tmp_path)
    with pytest.raises(BackboneError, match="has no tokenizer"):
        bp.load_backbone(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(BackboneError, match="Cannot load the backbone"):  # there, but damaged
        bp.load_backbone(tmp_path)


def test_a_tokenizer_without_a_vocabulary_of_its_own_is_one(tmp_path: Path) -> None:
    """Bytes need no file, and all words may have been added later."""
    hf.ByT5Tokenizer().save_pretrained(tmp_path / "bytes")
    assert load_tokenizer(str(tmp_path / "bytes"))("hi")["input_ids"] == [107, 108, 1]  # 3 + byte, end
    added = hf.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({}, "<unk>")))
    added.add_tokens(["yes", "no"])
    added.save_pretrained(tmp_path / "added")
    assert load_tokenizer(str(tmp_path / "added"))("no")["input_ids"] == [1]


def test_a_run_is_no_language_model(tmp_path: Any) -> None:
    """Neither is a folder that holds runs."""
    bp.train(method="lora", steps=1, limit=8, out=tmp_path / "run")
    with pytest.raises(BackboneError, match=r"run' is a run, not .*: give .* trained on, 'microworld'\.$"):
        bp.load_backbone(tmp_path / "run")
    with pytest.raises(BackboneError, match="it has no config"):
        bp.load_backbone(tmp_path)


def test_a_task_that_is_not_generated_is_refused() -> None:
    task = Task("evens", ("A", "B"))
    with pytest.raises(ConfigError, match=r"register_task got a Task: give a bara_pyro\.data\.Generated"):
        register_task(task)


def test_pefts_settings_are_checked_and_can_be_pickled() -> None:
    peft = pytest.importorskip("peft")
    from bara_pyro.extras.hub.peft import BaRAConfig

    for settings, message in (
        ({"r": 0}, "r = 0"),
        ({"r": -1}, "r = -1"),
        ({"target_modules": "["}, "not a valid regular expression"),
        ({"r": 4, "rank_pattern": {"model.layers.0.self_attn.q_proj": 99}}, "a rank of 99"),
    ):
        with pytest.raises(ConfigError, match=message):
            BaRAConfig(**settings)
    config = BaRAConfig(rank_pattern={"nope": 2})
    assert pickle.loads(pickle.dumps(config)) == config
    with pytest.raises(ConfigError, match="names 'nope'"):
        peft.get_peft_model(lora_pair("qwen2")[0].backbone.lm, config)


@pytest.mark.parametrize(
    ("ranks", "message"),
    [({"nowhere": 1}, "'nowhere'"), ({"lm_head": 4}, "rank of 4"), ({"lm_head": 0}, "rank of 0")],
)
def test_rank_patterns_that_are_none(ranks: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LoRA(backbone(), 4, r=3, rank_pattern=ranks)
