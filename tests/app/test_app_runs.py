"""Runs from the command line: the folder, reading it back, PEFT, predictions, going on."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from app_cases import Bara, Place, assert_answers, assert_one_sentence, files_of, questions, write_rows
from peft import PeftModel
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from bara_pyro.errors import DataError
from bara_pyro.lm.loading import load_backbone
from bara_pyro.runs.evaluate import draw, evaluate_system
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.system import build_system
from bara_pyro.runs.train import train
from bara_pyro.untrusted.files import read_json, read_jsonl

FILES = {
    *("bara_config.json", "adapter_config.json", "adapter_model.safetensors", "guide.safetensors"),
    *("metrics.json", "predictions.jsonl", "train_log.jsonl", "manifest.json"),
}


def test_folder_of_a_run(place: Place, finished: Path) -> None:
    assert files_of(finished) == FILES
    metrics = read_json(finished / "metrics.json")
    assert metrics["schema"] == 2
    assert set(metrics["metrics"]) == {"0", "3"}
    for scores in metrics["metrics"].values():
        assert {"acc", "ece", "nll", "brier", "n"} <= scores.keys()
        assert scores["n"] == len(read_jsonl(finished / "predictions.jsonl"))
    assert set(metrics["sparsity"]) == {"phi", "theta", "psi"}
    parameters = metrics["parameters"]
    assert parameters["trainable"] == parameters["model"] + parameters["guide"]
    assert metrics["seed"] == 0
    assert metrics["config_hash"] == read_json(finished / "bara_config.json")["config_hash"]
    assert metrics["wall_clock_train_s"] > 0
    assert {"torch", "pyro-ppl", "transformers"} <= metrics["environment"]["versions"].keys()
    log = read_jsonl(finished / "train_log.jsonl")
    assert [record["step"] for record in log] == list(range(1, 9))
    assert {"loss", "nll", "kl_phi", "kl_theta", "grad_norm", "seconds"} <= log[0].keys()
    rows = {row["id"]: row for row in questions()}
    for record in read_jsonl(finished / "predictions.jsonl"):
        assert record["label"] == ["no", "yes"].index(rows[record["id"]]["answer"])
        assert all(sum(probs) == pytest.approx(1) for probs in record["probs"].values())


@pytest.mark.parametrize("method", ["bara-gate", "mc_dropout", "laplace", "tfb"])
def test_torchs_own_generator_is_left_alone(method: str, place: Place, tmp_path: Path) -> None:
    """Training, reading back and asking: a user's own draws do not depend on what a run did before."""
    torch.manual_seed(17)
    before = torch.get_rng_state()
    system = build_system(place.config(method__name=method, train__steps=3, task__validation_rows=8))
    train(system, tmp_path / "run")
    evaluate_system(system)
    load_system(tmp_path / "run")
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.slow
def test_a_fresh_process_predicts_the_same_bits(place: Place, finished: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bara_pyro.cli.app", "evaluate", finished, "--out", tmp_path / "again"]
    subprocess.run(command, check=True, capture_output=True)
    again, first = tmp_path / "again" / "predictions.jsonl", finished / "predictions.jsonl"
    assert again.read_bytes() == first.read_bytes()
    old, new = read_json(finished / "metrics.json"), read_json(tmp_path / "again" / "metrics.json")
    for key in ("metrics", "sparsity", "parameters", "wall_clock_train_s"):
        assert new[key] == old[key]


def test_the_same_settings_give_the_same_bytes(
    place: Place, finished: Path, tmp_path: Path, bara: Bara
) -> None:
    assert bara(*place.arguments(tmp_path / "again")).code == 0
    for name in FILES - {"metrics.json", "train_log.jsonl", "manifest.json"}:
        assert (tmp_path / "again" / name).read_bytes() == (finished / name).read_bytes(), name


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # raised by PEFT
@pytest.mark.parametrize(
    "adapter",
    [{}, {"target_modules": "['layers.0.self_attn.q_proj', 'lm_head']"}, {"top_layers": 1}],
    ids=["default", "modules", "top layers"],
)
def test_peft_reads_a_lora_run(adapter: dict, place: Place, tmp_path: Path, bara: Bara) -> None:
    out = tmp_path / "lora"
    settings = {f"adapter.{name}": value for name, value in adapter.items()}
    settings |= {"train.lr": 0.05, "predict.samples": [0]}
    assert bara(*place.arguments(out, "lora", **settings)).code == 0
    system = load_system(out)
    split = system.split("test")
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(place.backbone), out).eval()
    plain = AutoModelForCausalLM.from_pretrained(place.backbone).eval()
    for row in range(3):
        ids = torch.tensor([split.token_ids[row]])
        own = draw(system, split, 0)[0, row]
        with torch.no_grad():
            logits = theirs(ids).logits[0, -1, system.answer_ids]
            before = plain(ids).logits[0, -1, system.answer_ids]
        assert torch.allclose(logits.double().log_softmax(-1), own, atol=1e-5)
        assert not torch.allclose(before.double().log_softmax(-1), own, atol=1e-3)


def test_a_run_of_bara_uses_pefts_names(finished: Path) -> None:
    config = read_json(finished / "adapter_config.json")
    assert (config["r"], config["lora_alpha"]) == (8, 16.0)
    assert config["target_modules"] == ["lm_head", "q_proj", "v_proj"]
    with safe_open(finished / "adapter_model.safetensors", "pt") as file:
        names = set(file.keys())
    assert "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight" in names


def test_predict_answers_rows_without_their_training_data(
    place: Place, run: Path, tmp_path: Path, bara: Bara, request: pytest.FixtureRequest
) -> None:
    gone = place.rows.rename(place.rows.with_suffix(".gone"))
    request.addfinalizer(lambda: gone.rename(place.rows))
    rows = [{key: row[key] for key in ("id", "question")} for row in questions()[:5]]
    asked, answered = write_rows(tmp_path / "rows.jsonl", rows), tmp_path / "preds.jsonl"
    result = bara("predict", run, "--input", asked, "--output", answered, "--samples", 3)
    assert result.code == 0, result.err
    records = read_jsonl(answered)
    assert [record["id"] for record in records] == [row["id"] for row in rows]
    assert_answers(records, ["no", "yes"])
    mean = {record["id"]: record["probs"]["yes"] for record in records}
    stored_probs = {record["id"]: record["probs"]["3"][1] for record in read_jsonl(run / "predictions.jsonl")}
    assert all(
        mean[row_id] == pytest.approx(stored_probs[row_id]) for row_id in mean.keys() & stored_probs.keys()
    )


def test_evaluate_keeps_its_results_apart(place: Place, run: Path, tmp_path: Path, bara: Bara) -> None:
    before = (run / "metrics.json").read_bytes()
    result = bara("evaluate", run, "--samples", 2)
    assert result.code == 0, result.err
    assert (run / "metrics.json").read_bytes() == before
    assert set(read_json(run / "evaluation" / "colours-test" / "metrics.json")["metrics"]) == {"2"}
    other = write_rows(
        tmp_path / "shift.jsonl", [{**row, "id": f"new-{row['id']}"} for row in questions()[:8]]
    )
    result = bara("evaluate", run, "--task", place.rows, "--test-file", other, "--out", tmp_path / "shift")
    assert result.code == 0, result.err
    assert read_json(tmp_path / "shift" / "metrics.json")["metrics"]["0"]["n"] == 8


def test_counts_of_shortened_and_dropped_rows_are_noted(place: Place, tmp_path: Path, bara: Bara) -> None:
    rows = questions()
    for row in rows[::2]:
        row["context"] = "fox " * 30
    rows[0]["question"] = "fox " * 30
    write_rows(tmp_path / "rows.jsonl", rows[:30])
    write_rows(tmp_path / "test.jsonl", [{**row, "id": "t" + row["id"]} for row in rows])
    settings = {"task.max_length": 12, "task.test_file": tmp_path / "test.jsonl"}
    long = Place(place.backbone, tmp_path / "rows.jsonl")
    assert_one_sentence(bara(*long.arguments(tmp_path / "run", **settings)), "'fox-red'", "--too-long drop")
    result = bara(*long.arguments(tmp_path / "run", **settings), "--too-long", "drop")
    assert result.code == 0, result.err
    notes = " ".join(read_json(tmp_path / "run" / "metrics.json")["notes"])
    assert "19 test rows had their context or text cut to 12 tokens" in notes
    assert "1 test row was left out: its question is too long" in notes
    assert read_json(tmp_path / "run" / "bara_config.json")["num_data"] == 29


def test_backbone_is_loaded_without_a_progress_bar(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    load_backbone(place.backbone)
    printed = capfd.readouterr()
    assert printed.out + printed.err == ""


def test_distance_awareness_is_stored_with_a_run(place: Place, tmp_path: Path, bara: Bara) -> None:
    """Fitted when training is over, from rows alone; a fresh process predicts the same bits."""
    out = tmp_path / "run"
    result = bara(*place.arguments(out, "lora"), "--distance-aware")
    assert result.code == 0, result.err
    told = read_json(out / "fitted.json")
    assert told["distance_rows"] == read_json(out / "bara_config.json")["num_data"]
    assert told["distance_scale"] > 0
    bara("evaluate", str(out), "--out", str(tmp_path / "again"))
    again, first = tmp_path / "again" / "predictions.jsonl", out / "predictions.jsonl"
    assert again.read_bytes() == first.read_bytes()


def test_a_split_is_encoded_once(place: Place) -> None:
    system = build_system(place.config())
    assert system.split("train") is system.split("train")
    with pytest.raises(DataError, match="no validation rows"):
        system.split("validation")
