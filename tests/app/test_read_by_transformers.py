"""transformers takes a run for the adapter of PEFT that it is."""

from pathlib import Path

import pytest
import torch
from app_cases import Bara, Place, assert_one_sentence
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

import bara_pyro as bp
from bara_pyro.cli.running import run as train
from bara_pyro.extras.hub.export import export_lora
from bara_pyro.extras.hub.upload import prepare_upload
from bara_pyro.microworld import backbone_path
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.manifest import MANIFEST, read_manifest
from bara_pyro.runs.writing import save_system, write_config
from bara_pyro.untrusted.files import read_json

pytest.importorskip("peft")


@pytest.fixture(scope="module")
def lora(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("lora") / "run"
    config = place.config(method="lora", train__steps=4, train__lr=0.05, predict__samples=[0])
    train(config, out)
    return out


@torch.no_grad()
def answers(lm: torch.nn.Module, run: Path) -> torch.Tensor:
    """Log-probabilities of the answers of a run's test rows by a language model with an adapter, `n x C`."""
    system = load_system(run)
    rows = system.encoded("test")
    found = []
    for tokens in rows.token_ids:
        logits = lm(input_ids=torch.tensor([list(tokens)])).logits[0, -1]
        found.append(logits[system.answer_ids].double().log_softmax(-1))
    return torch.stack(found)


def own(run: Path) -> torch.Tensor:
    system = load_system(run)
    return draw(system, system.encoded("test"), 0)[0]


def test_a_lora_is_a_language_model_with_its_adapter(lora: Path) -> None:
    lm = AutoModelForCausalLM.from_pretrained(lora)
    torch.testing.assert_close(answers(lm, lora), own(lora).double(), atol=1e-5, rtol=1e-4)
    lm.disable_adapters()
    assert not torch.allclose(answers(lm, lora), own(lora).double(), atol=1e-2)
    written = pipeline("text-generation", model=str(lora))("is the fox red ?", max_new_tokens=1)
    assert written[0]["generated_text"].startswith("is the fox red ?")


def test_what_is_uploaded_and_what_is_exported_too(place: Place, lora: Path, tmp_path: Path) -> None:
    system = load_system(lora)
    prepare_upload(lora, "somebody/model", tmp_path / "hub", base=str(place.backbone))
    export_lora(system, tmp_path / "export", rows=system.split("train"), compared_on=system.split("test"))
    for folder in ("hub", "export"):
        lm = AutoModelForCausalLM.from_pretrained(tmp_path / folder)
        torch.testing.assert_close(answers(lm, lora), own(lora).double(), atol=1e-5, rtol=1e-4)


def test_bara_is_once_it_is_known_to_peft(finished: Path) -> None:
    import bara_pyro.extras.hub.peft  # noqa: F401

    lm = AutoModelForCausalLM.from_pretrained(finished)
    torch.testing.assert_close(answers(lm, finished), own(finished).double(), atol=1e-5, rtol=1e-4)


def test_the_shipped_language_model_is_found(tmp_path: Path) -> None:
    bp.train(task="micro-wgs", method="lora", steps=1, limit=8, out=tmp_path / "run")
    settings = read_json(tmp_path / "run" / "adapter_config.json")
    assert settings["base_model_name_or_path"] == str(backbone_path())
    AutoModelForCausalLM.from_pretrained(tmp_path / "run")
    AutoTokenizer.from_pretrained(settings["base_model_name_or_path"])


def test_a_language_models_configuration_beside_a_run_is_not_ours(
    place: Place, tmp_path: Path, bara: Bara
) -> None:
    out, theirs = tmp_path / "run", (place.backbone / "config.json").read_bytes()
    assert bara(*place.arguments(out)).code == 0
    (out / "config.json").write_bytes(theirs)
    for manifest in (True, False):
        if not manifest:
            (out / MANIFEST).unlink()
        refused = bara(*place.arguments(out), "--overwrite")
        assert_one_sentence(refused, f"{out / 'config.json'} was not written by bara")
    assert bara("train", "--resume", "--out", out).code == 0
    system = load_system(out)
    write_config(system, out)
    save_system(system, out, 8)
    assert "config.json" not in (read_manifest(out) or {})
    assert (out / "config.json").read_bytes() == theirs
