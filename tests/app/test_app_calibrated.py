"""What a user with few rows has by default: a run with a temperature, through every command."""

import json
import math
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from app_cases import Bara, Place, assert_one_sentence, questions, write_rows
from safetensors.torch import load_file
from torch.testing import assert_close

import bara_pyro as bp
from bara_pyro.cli.running import run
from bara_pyro.extras.hub.export import export_lora
from bara_pyro.posthoc.corrections import require_temperature
from bara_pyro.runs.config import for_rows, load_config
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.manifest import check_run
from bara_pyro.runs.rows import split_half_note
from bara_pyro.runs.system import assemble, build_system
from bara_pyro.runs.train import train
from bara_pyro.untrusted.files import read_json, read_jsonl


class Interrupted(Exception):
    """Stands for a kill."""


@pytest.fixture(scope="module")
def default(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the gate form of 32 rows, nothing said about a temperature."""
    out = tmp_path_factory.mktemp("default") / "run"
    given = {"method": "bara-gate", "backbone.name": str(place.backbone), "task.name": str(place.rows)}
    run(load_config(overrides={**given, "train.steps": 30, "train.lr": 0.05, "predict.samples": [3]}), out)
    return out


def test_too_few_rows_are_refused_before_calibration_is_announced(
    place: Place, tmp_path: Path, bara: Bara
) -> None:
    settings = {"adapter.calibrated": True, "task.limit": 9}
    result = bara(*place.arguments(tmp_path / "run", **settings))
    assert_one_sentence(result, "9 training rows are too few", "at least 20")
    assert "comes first" not in result.out


@pytest.mark.parametrize(
    ("rows", "settings", "on"),
    [
        (19, {}, False),
        (20, {}, True),
        (639, {}, True),
        (640, {}, True),
        (5000, {}, True),
        (5001, {}, False),
        (640, {"train.steps": 7}, False),
        (640, {"train.epochs": 2}, False),
        (640, {"train.lr": 1e-3}, False),
        (640, {"train.find_lr": False}, False),
        (640, {"adapter.calibrated": True}, True),
        (80, {"adapter.calibrated": False}, False),
        (80, {"method": "lora"}, True),
        (80, {"method": "lora", "adapter.start": "an adapter"}, False),  # it trains nothing
        (80, {"method": "blob"}, True),
        (80, {"method": "ensemble_temperature"}, False),  # it has a temperature of its own
        (80, {"train.steps": 7}, True),
    ],
)
def test_rows_say_whether_there_is_split_half_calibration(
    rows: int, settings: dict[str, object], on: bool
) -> None:
    config = for_rows(load_config(overrides={"method": "bara-gate", **settings}), rows)
    assert bool(config.adapter.calibrated) is on
    assert [str(rows) in note for note in split_half_note(config, rows, rows // 2)] == [True] * on


@pytest.mark.parametrize(("start", "warned"), [(None, False), ("my-adapter", True)])
def test_the_note_says_when_a_given_adapter_is_not_to_be_calibrated(start: str | None, warned: bool) -> None:
    config = for_rows(load_config(overrides={"method": "bara-gate", "adapter.start": start}), 80)
    [note] = split_half_note(config, 80, 40)
    assert ("the adapter was trained on these rows" in note) is warned


@pytest.mark.parametrize(
    ("rows", "held_out", "learnt"),
    [
        (41, 20, "fits on halves"),
        (42, 18, "24 and 18"),
        (42, 12, "fits on 30 of"),  # the others are too few to learn from
        (639, 319, "fits on halves"),
        (640, 320, "fits on 320 of"),  # these suffice for a temperature
    ],
)
def test_the_note_names_what_the_fits_learn(rows: int, held_out: int, learnt: str) -> None:
    config = for_rows(load_config(overrides={"method": "bara-gate"}), rows)
    [note] = split_half_note(config, rows, held_out)
    assert learnt in note


@pytest.mark.parametrize(("method", "calibrated", "on"), [("blob", None, True), ("lora", False, False)])
def test_split_half_calibration_gives_a_temperature_and_a_note(
    method: str, calibrated: bool | None, on: bool
) -> None:
    rows = {"task.name": "micro-wgm", "task.train_rows": 80}
    given = {**rows, "method": method, "adapter.calibrated": calibrated}
    system = build_system(load_config(overrides=given))
    assert bool(system.config.adapter.calibrated) is (system.corrections.temperature is not None) is on
    assert any("split-half" in note for note in system.task.notes) is on


def test_a_run_of_before_has_no_temperature(place: Place) -> None:
    """Its configuration says nothing of one, and what is read back is built of it as it is."""
    config = place.config(method="bara-gate", adapter__calibrated=None)
    system = build_system(config)
    assert system.corrections.temperature is not None  # trained now
    assert config.adapter.calibrated is None
    again = assemble(config, system.backbone, system.task, system.model.num_data)
    assert again.corrections.temperature is None


@pytest.mark.parametrize("step", [5, None])
def test_a_run_of_before_is_gone_on_with(step: int | None, place: Place, tmp_path: Path, bara: Bara) -> None:
    """Half-way or finished: as it was started, without split-half calibration."""
    config = place.config(method="bara-gate", train__steps=8, adapter__calibrated=None)
    config = for_rows(config, 32)
    config = config.updated("adapter", calibrated=None)
    now = build_system(config)
    before = assemble(config, now.backbone, now.task, now.model.num_data)
    out = tmp_path / "run"

    def stop(done: int, _: dict[str, float]) -> None:
        if done == step:
            raise Interrupted

    with pytest.raises(Interrupted) if step else nullcontext():
        train(before, out, on_step=stop)
    assert bara("train", "--resume", "--out", out).code == 0
    assert load_system(out).corrections.temperature is None
    assert not (out / "rehearsal.json").exists()


def test_every_command_takes_it(default: Path, place: Place, tmp_path: Path, bara: Bara) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", [{"question": r["question"]} for r in questions()[:6]])
    assert read_json(default / "fitted.json")["calibrated_temperature"] > 0
    for command in (
        ["evaluate", default, "--out", tmp_path / "scores"],
        ["predict", default, "--input", rows, "--output", tmp_path / "answers.jsonl"],
        ["inspect", default, "--out", tmp_path / "page"],
        ["export", default, "--as", "lora", "--out", tmp_path / "lora"],
        ["push", default, "someone/colours", "--offline", "--base", "a/b", "--out", tmp_path / "hub"],
    ):
        result = bara(*command)
        assert result.code == 0, (command, result.err)
    temperature = read_json(default / "fitted.json")["calibrated_temperature"]
    card = (tmp_path / "hub" / "README.md").read_text()
    assert f"divide the answers' logits by {temperature:.4g}." in card.replace("\n", " ")
    # What is asked of it names rows, which stay at home.
    assert (default / "rehearsal.json").exists()
    assert not (tmp_path / "hub" / "rehearsal.json").exists()
    check_run(default)
    ours = [row["probs"] for row in read_jsonl(tmp_path / "answers.jsonl")]
    asked = [{"question": row["question"]} for row in questions()[:6]]
    system = load_system(tmp_path / "hub", backbone=str(place.backbone), with_rows=False)
    assert [row["probs"] for row in bp.predict(system, asked).rows] == [pytest.approx(p) for p in ours]
    divided = probabilities(bp.predict(system, asked, samples=0).rows)
    require_temperature(system.corrections).set(0.0)
    plain = probabilities(bp.predict(system, asked, samples=0).rows)
    assert divided == pytest.approx((plain.log() / temperature).softmax(-1), abs=1e-6)


def probabilities(rows: list[dict]) -> torch.Tensor:
    return torch.tensor([list(row["probs"].values()) for row in rows], dtype=torch.float64)


def test_text_goes_without_it(default: Path) -> None:
    system = load_system(default)
    log_t = math.log(read_json(default / "fitted.json")["calibrated_temperature"])
    assert abs(log_t) > 0.01
    split = system.split("test")
    batch = split.batch(range(4), system.answer_ids)
    mask = batch.attention_mask.long()
    with torch.no_grad(), bp.attached(system) as lm:
        positions = (mask.cumsum(-1) - 1).clamp_min(0)
        out = lm(input_ids=batch.input_ids, attention_mask=mask, position_ids=positions)
    theirs = out.logits[:, -1, system.answer_ids].double()
    ours = draw(system, split.take(range(4)), 0)[0]
    assert_close((theirs / math.exp(log_t)).log_softmax(-1), ours, rtol=0, atol=1e-5)
    assert (theirs.log_softmax(-1) - ours).abs().max() > 1e-3


def test_an_export_says_what_to_divide_by(default: Path, tmp_path: Path, bara: Bara) -> None:
    result = bara("export", default, "--as", "lora", "--out", tmp_path / "lora", "--json")
    told = json.loads(result.out)
    assert told["temperature"] == pytest.approx(read_json(default / "fitted.json")["calibrated_temperature"])
    assert told["temperature"] != pytest.approx(1.0, abs=0.01)
    # The same run before its temperature is as near, but for what the temperature does to both.
    plain = load_system(default)
    require_temperature(plain.corrections).set(0.0)
    rows, test = plain.split("train"), plain.split("test")
    again = export_lora(plain, tmp_path / "plain", rows=rows, compared_on=test)
    assert again["mean"]["same_answer"] == told["mean"]["same_answer"]
    for folder in ("lora", "plain"):
        tensors = load_file(tmp_path / folder / "adapter_model.safetensors")
        assert all("lora_" in name for name in tensors)
    assert told["mean"]["kl_mean"] < 10 * again["mean"]["kl_mean"] + 1e-6


# PEFT reads a name that transformers deprecates; nothing of ours.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_peft_gives_the_logits_before_it(default: Path, place: Place) -> None:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    import bara_pyro.extras.hub.peft  # noqa: F401

    system = load_system(default)
    temperature = read_json(default / "fitted.json")["calibrated_temperature"]
    lm = AutoModelForCausalLM.from_pretrained(place.backbone, dtype=torch.float32).eval()
    model = peft.PeftModel.from_pretrained(lm, default)
    split = system.split("test")
    batch = split.batch(range(4), system.answer_ids)
    mask = batch.attention_mask.long()
    with torch.no_grad():
        out = model(
            input_ids=batch.input_ids, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp_min(0)
        )
    theirs = out.logits[:, -1, system.answer_ids].double()
    ours = draw(system, split.take(range(4)), 0)[0]
    assert_close((theirs / temperature).log_softmax(-1), ours, rtol=0, atol=1e-5)
