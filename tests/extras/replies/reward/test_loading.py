"""What is no reward model is refused in a sentence; above all one whose head would be random."""

import json
from pathlib import Path

import pytest
import torch
from reward_cases import save_classifier, save_lm
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from bara_pyro.errors import BackboneError, ConfigError
from bara_pyro.extras.replies.reward import load_reward_model, score_replies
from bara_pyro.runs.config import load_config
from bara_pyro.runs.system import build_system
from bara_pyro.runs.writing import save_system, write_config

REPLIES = [("the fox is", " red"), ("the", " hen is blue good"), ("owl", " cat")]


def test_a_language_model_without_a_head_is_refused(lm: Path) -> None:
    with pytest.raises(BackboneError, match=r"lacks 'score.weight', which would be random"):
        load_reward_model(lm)


def test_a_run_is_told_from_a_judge(tmp_path: Path) -> None:
    system = build_system(
        load_config(overrides={"method": "lora", "task.name": "micro-wgs", "task.limit": 4})
    )
    write_config(system, tmp_path)
    save_system(system, tmp_path, step=1)
    with pytest.raises(BackboneError, match=r"is a run, not a reward model: give a classifier"):
        load_reward_model(tmp_path)


def test_one_with_a_head_is_accepted(classifier: Path) -> None:
    reward = load_reward_model(classifier)
    stored = load_file(classifier / "model.safetensors")["score.weight"]
    assert torch.equal(reward.model.score.weight, stored)
    assert reward.max_length == 64
    assert not reward.model.training


def test_any_other_weight_that_lacks_is_named(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path)
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(BackboneError, match=r"lacks 'model.layers.1.mlp.up_proj.weight'"):
        load_reward_model(folder)


def test_several_outputs_are_refused(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path, outputs=2)
    with pytest.raises(BackboneError, match="it has 2 outputs"):
        load_reward_model(folder)


def test_without_a_padding_token_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BackboneError, match="has no padding token"):
        load_reward_model(save_classifier(tmp_path, pad=None))


def test_the_tokenizers_padding_token_will_do(tmp_path: Path, classifier: Path) -> None:
    folder = save_classifier(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["pad_token_id"] = None
    (folder / "config.json").write_text(json.dumps(config))
    scores = [score_replies(load_reward_model(place), REPLIES) for place in (folder, classifier)]
    assert_close(*scores)


def test_code_of_the_model_is_never_run(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {
        "AutoConfig": "mine.MyConfig",
        "AutoModelForSequenceClassification": "mine.MyModel",
    }
    config["model_type"] = "mine"
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass MyConfig: pass\n")
    with pytest.raises(BackboneError, match="needs its own code"):
        load_reward_model(folder)
    assert not (tmp_path / "ran").exists()


def test_what_cannot_be_read(tmp_path: Path, classifier: Path) -> None:
    with pytest.raises(BackboneError, match="Cannot load"):
        load_reward_model(tmp_path / "absent")
    with pytest.raises(ConfigError, match="Unknown dtype 'int8'"):
        load_reward_model(classifier, "int8")
    with pytest.raises(ConfigError, match="The device 'tpu'"):
        load_reward_model(classifier, device="tpu")
    with pytest.raises(ConfigError, match="needs one device"):
        load_reward_model(classifier, device="auto")


def test_bfloat16_keeps_the_order_and_more_than_its_own_digits(classifier: Path) -> None:
    exact = score_replies(load_reward_model(classifier), REPLIES)
    coarse = load_reward_model(classifier, "bfloat16")
    scores = score_replies(coarse, REPLIES)
    assert scores.dtype == torch.float32
    assert coarse.model.model.layers[0].mlp.up_proj.weight.dtype == torch.bfloat16
    assert_close(scores, exact, rtol=0.05, atol=0.1)  # eight bits, through two layers
    assert not torch.equal(scores, scores.bfloat16().float())


def test_a_language_model_is_no_judge(tmp_path: Path) -> None:
    with pytest.raises(BackboneError, match="random"):
        load_reward_model(save_lm(tmp_path / "lm", template=True))


def test_a_folder_of_an_earlier_version_is_refused(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path / "judge")
    (folder / "reward.json").write_text("{}")
    with pytest.raises(BackboneError, match=r"reward\.json.*train it again"):
        load_reward_model(folder)


def test_another_tools_manifest_is_not_ours(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path / "judge")
    (folder / "manifest.json").write_text("{}")
    assert load_reward_model(folder).max_length == 64
