"""The folder of a reward model: transformers reads it, what stands beside it, what a failure leaves."""

import json
import sys
from pathlib import Path

import pytest
import torch
from reward_cases import WORDS, planted, save_lm
from transformers import AutoModelForSequenceClassification

from bara_pyro.data.preferences import PreferencePair, PreferenceTask
from bara_pyro.errors import BackboneError, CheckpointError, ConfigError, DataError, Stopped
from bara_pyro.extras.replies.reward import (
    RewardConfig,
    agreement,
    load_reward_model,
    score_replies,
    train_reward,
)

TASK = PreferenceTask("planted", planted(48), planted(20, seed=1), ("made",))
FAST = RewardConfig(epochs=1, batch_size=16, max_length=64, lr=1e-2)
REPLIES = [("the fox is", " red"), ("the", " hen is blue good"), ("owl", " cat")]


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("settings", [{}, {"head_only": True}, {"dtype": "bfloat16"}])
def test_the_folder_is_read_back_bit_for_bit(lm: Path, tmp_path: Path, settings: dict) -> None:
    out = tmp_path / "out"
    config = RewardConfig(**{**vars(FAST), **settings})
    reward = train_reward(lm, TASK, out, config)
    again = load_reward_model(out, config.dtype)
    assert all(
        torch.equal(value, again.model.state_dict()[name])
        for name, value in reward.model.state_dict().items()
    )
    assert torch.equal(score_replies(reward, REPLIES), score_replies(again, REPLIES))
    by_transformers, info = AutoModelForSequenceClassification.from_pretrained(
        out, output_loading_info=True, dtype="auto"
    )
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert (by_transformers.config.num_labels, str(by_transformers.dtype)) == (1, f"torch.{config.dtype}")
    if config.dtype == "float32":
        ids = torch.tensor([again.tokenizer("the fox is red")["input_ids"]])
        with torch.no_grad():
            theirs = by_transformers(ids).logits[0]
        assert torch.equal(theirs, score_replies(again, REPLIES[:1]))
    assert names(tmp_path) == {"out"}
    expected = {"config.json", "model.safetensors", "reward.json", "manifest.json"}
    assert names(out) == expected | {"tokenizer.json", "tokenizer_config.json"}


def test_the_same_seed_writes_the_same_weights(lm: Path, tmp_path: Path) -> None:
    files = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train_reward(lm, TASK, tmp_path / name, RewardConfig(**{**vars(FAST), "seed": seed}))
        files.append((tmp_path / name / "model.safetensors").read_bytes())
    assert files[0] == files[1] != files[2]


def test_what_stands_beside_the_model(lm: Path, tmp_path: Path) -> None:
    reward = train_reward(lm, TASK, tmp_path / "out", FAST)
    record = json.loads((tmp_path / "out" / "reward.json").read_text())
    assert reward.record == record
    scores = [
        score_replies(reward, [(side.prompt, side.reply) for pair in TASK.test for side in [pair.sides()[k]]])
        for k in (0, 1)
    ]
    expected = vars(agreement(*scores, TASK.test))
    assert record["held_out"] == pytest.approx(expected, rel=1e-4)
    assert reward.held_out == record["held_out"]
    assert record["data"] == {
        "task": "planted",
        "train_pairs": 48,
        "test_pairs": 20,
        "train_pairs_too_long": 0,
        "test_pairs_too_long": 0,
        "notes": ["made"],
    }
    assert record["config"] == vars(FAST)
    assert (record["format"], record["max_length"], reward.max_length) == ("plain", 64, 64)
    assert record["seconds"] > 0


def test_rows_are_no_longer_than_the_model_takes_unless_somebody_says(lm: Path, tmp_path: Path) -> None:
    reward = train_reward(lm, TASK, tmp_path / "out", RewardConfig(epochs=1, head_only=True))
    assert (reward.max_length, reward.record["config"]["max_length"]) == (64, 64)


def test_a_padding_token_that_ends_replies_is_not_used(tmp_path: Path) -> None:
    """Most tokenizers pad with the end of a text: the score would be read before it."""
    place = save_lm(tmp_path / "lm", template=True, pad="<end>")
    reward = train_reward(place, TASK, tmp_path / "out", FAST)
    assert reward.format == "chat"
    assert reward.tokenizer.pad_token_id == reward.model.config.pad_token_id == WORDS.index("<unk>")
    ids = reward.tokenizer.apply_chat_template(
        [{"role": "user", "content": "the fox is"}, {"role": "assistant", "content": "red"}],
        return_dict=False,
    )
    assert ids[-1] == WORDS.index("<end>")
    with torch.no_grad():
        state = reward.model.model(torch.tensor([ids])).last_hidden_state[0, -1]
        expected = reward.model.score(state)
    assert torch.allclose(score_replies(reward, REPLIES[:1]), expected, rtol=1e-5, atol=1e-5)


def test_pairs_that_are_too_long_are_left_out_and_counted(lm: Path, tmp_path: Path) -> None:
    long = PreferencePair("the", " red" * 70, " red", "long")
    task = PreferenceTask("planted", [*TASK.train, long], [long, *TASK.test, long])
    record = train_reward(lm, task, tmp_path / "out", FAST).record
    assert record is not None
    assert [record["data"][f"{kind}_pairs_too_long"] for kind in ("train", "test")] == [1, 2]
    assert [record["data"][f"{kind}_pairs"] for kind in ("train", "test")] == [48, 20]
    with pytest.raises(DataError, match="All 1 test pairs have a reply of more than 64"):
        train_reward(lm, PreferenceTask("planted", TASK.train, [long]), tmp_path / "none", FAST)
    assert not (tmp_path / "none").exists()


def test_a_reward_model_is_trained_further(lm: Path, tmp_path: Path) -> None:
    train_reward(lm, TASK, tmp_path / "one", FAST)
    losses: list[str] = []
    train_reward(
        tmp_path / "one", TASK, tmp_path / "two", FAST, on_progress=lambda *said: losses.append(said[3])
    )
    assert losses[0] != "loss 0.693"


def test_progress_of_every_stage(lm: Path, tmp_path: Path) -> None:
    said: list[tuple[str, int, int]] = []
    config = RewardConfig(**{**vars(FAST), "head_only": True})
    train_reward(lm, TASK, tmp_path / "out", config, on_progress=lambda *given: said.append(given[:3]))
    assert list(dict.fromkeys(stage for stage, *_ in said)) == ["features", "train", "test"]
    assert {("features", 96, 96), ("train", 3, 3), ("test", 40, 40)} <= set(said)


@pytest.mark.parametrize("stage", ["features", "train", "test"])
def test_stopped_it_leaves_nothing_and_what_was_there(lm: Path, tmp_path: Path, stage: str) -> None:
    config = RewardConfig(**{**vars(FAST), "head_only": True})
    out = tmp_path / "out"
    train_reward(lm, TASK, out, config)
    before = {path.name: path.read_bytes() for path in out.iterdir()}

    def stop(at: str, *_: object) -> None:
        if at == stage:
            raise KeyboardInterrupt

    with pytest.raises(Stopped, match=f"^Stopped: nothing was written to {out}.$") as stopped:
        train_reward(lm, TASK, out, config, on_progress=stop)
    assert stopped.value.code == 130
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert names(tmp_path) == {"out"}
    train_reward(lm, TASK, out, config)
    assert names(tmp_path) == {"out"}


def test_where_it_must_not_write(lm: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    with pytest.raises(ConfigError, match="is a file"):
        train_reward(lm, TASK, tmp_path / "file", FAST)
    with pytest.raises(ConfigError, match="was not written by bara"):
        train_reward(lm, TASK, tmp_path / "full", FAST)
    assert (tmp_path / "full" / "mine").read_text() == "mine"


def test_a_folder_that_cannot_be_written(lm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("transformers.PreTrainedModel.save_pretrained", full)
    with pytest.raises(CheckpointError, match=r"Cannot write .*out .No space left on device"):
        train_reward(lm, TASK, tmp_path / "out", FAST)
    assert not names(tmp_path)


def test_what_is_no_language_model(tmp_path: Path, lm: Path) -> None:
    with pytest.raises(BackboneError, match="Cannot load"):
        train_reward(tmp_path / "absent", TASK, tmp_path / "out", FAST)
    with pytest.raises(ConfigError, match="reads 64 tokens at most"):
        train_reward(lm, TASK, tmp_path / "out", RewardConfig(max_length=1024))
    assert not (tmp_path / "out").exists()


def test_damage_is_noticed(lm: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    train_reward(lm, TASK, out, FAST)
    with (out / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    with pytest.raises(CheckpointError, match="is damaged, edited or from another run"):
        load_reward_model(out)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "is damaged"),
        ('{"schema": 2}', "lacks 'format'"),
        ("{", "Cannot read"),
        ("{}", "lacks 'format'"),
    ],
)
def test_a_record_that_is_none(lm: Path, tmp_path: Path, text: str, said: str) -> None:
    out = tmp_path / "out"
    train_reward(lm, TASK, out, FAST)
    (out / "manifest.json").unlink()
    (out / "reward.json").write_text(text)
    with pytest.raises(CheckpointError, match=said):
        load_reward_model(out)


def test_another_tools_manifest_is_not_ours(lm: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    train_reward(lm, TASK, out, FAST)
    (out / "reward.json").unlink()
    (out / "manifest.json").write_text("{}")
    assert load_reward_model(out).held_out is None


def test_a_model_whose_replies_end_with_every_special_token_is_refused(lm: Path, tmp_path: Path) -> None:
    ends = [PreferencePair("the", f" red {word}", " blue", word) for word in WORDS[:3]]
    with pytest.raises(BackboneError, match="needs a padding token that no reply ends with"):
        train_reward(lm, PreferenceTask("planted", ends, TASK.test), tmp_path / "out", FAST)


def test_without_peft_it_says_so(lm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(
        BackboneError, match=r"The package peft is not installed: pip install 'bara-pyro\[peft\]'"
    ):
        train_reward(lm, TASK, tmp_path / "out", FAST)
