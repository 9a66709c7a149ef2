"""A LoRA of PEFT as the start of a run: its predictions are kept, and a posterior is put around them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from app_cases import Bara, Place, assert_one_sentence
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.testing import assert_close
from transformers import AutoModelForCausalLM

import bara_pyro as bp
from bara_pyro.errors import ConfigError
from bara_pyro.extras.hub.export import export_lora
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.read_peft import read_peft
from bara_pyro.runs.system import System

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

KINDS = {
    "lora": {"r": 3, "lora_alpha": 5},
    "rslora": {"r": 3, "lora_alpha": 5, "use_rslora": True},
    "patterns": {
        "r": 3,
        "lora_alpha": 5,
        "use_rslora": True,
        "rank_pattern": {r"0.self_attn.q_proj": 2, r"layers\.1\..*v_proj": 5},
        "alpha_pattern": {"v_proj": 7.5, "0.self_attn.v_proj": 99.0},  # the first that matches counts
    },
}
METHODS = ("lora", "tfb", "laplace", "temperature", "bara-gate")


@pytest.fixture(scope="module")
def adapters(place: Place, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder of PEFT's for each kind, with random A and B."""
    found = {}
    for kind, settings in KINDS.items():
        lm = AutoModelForCausalLM.from_pretrained(place.backbone, dtype=torch.float32)
        names = ["q_proj", "v_proj", "down_proj"]
        model = peft.get_peft_model(
            lm, peft.LoraConfig(task_type="CAUSAL_LM", target_modules=names, **settings)
        )
        torch.manual_seed(1)
        for name, value in model.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(value, std=0.3)
        found[kind] = tmp_path_factory.mktemp("adapters") / kind
        model.save_pretrained(found[kind])
    return found


@torch.no_grad()
def of_peft(place: Place, adapter: Path, system: System) -> Tensor:
    """The answers' log-probabilities by PEFT's own model, row by row."""
    lm = AutoModelForCausalLM.from_pretrained(place.backbone, dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(lm, adapter).eval()
    rows = system.split("test").token_ids
    logits = torch.stack([model(input_ids=torch.tensor([list(row)])).logits[0, -1] for row in rows])
    return logits[:, system.answer_ids].double().log_softmax(-1)


def started(
    place: Place, adapter: Path, out: Path, method: object = "bara-gate", **settings: object
) -> System:
    given = {"validation_rows": 8, "seed": 0, "calibrated": False, **settings}
    if method == "bara-gate":
        given.setdefault("steps", 6)
    return bp.from_peft(adapter, task=place.rows, method=method, out=out, **given)


@pytest.mark.parametrize(
    ("method", "kind"),
    [*((method, "patterns") for method in METHODS), ("bara-gate", "lora"), ("bara-gate", "rslora")],
)
def test_predictions_at_the_mean_are_pefts(
    kind: str, method: str, place: Place, adapters: dict[str, Path], tmp_path: Path
) -> None:
    run = started(
        place, adapters[kind], tmp_path / "run", method, **({"lr": 1e-9} if method == "bara-gate" else {})
    )
    truth = of_peft(place, adapters[kind], run)
    before = draw(run, run.split("test"), 0)[0]
    if run.corrections.temperature is not None:
        assert run.corrections.temperature.value != 1
        before = (before * run.corrections.temperature.value).log_softmax(-1)
    assert_close(before, truth, rtol=0, atol=1e-5)
    assert (truth.exp().std(0) > 0.05).any()  # else any model would do
    drawn = draw(run, run.split("test"), 4)
    assert (drawn.std(0).max() > 1e-4) == (method in ("tfb", "laplace", "bara-gate"))


def test_a_run_needs_the_adapter_no_more_and_goes_back_to_peft(
    place: Place, adapters: dict[str, Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(adapters["patterns"], tmp_path / "given"))
    run = started(place, folder, tmp_path / "run", lr=0.05)
    shutil.rmtree(folder)
    tensors = load_file(adapters["patterns"] / "adapter_model.safetensors")
    for path, adapter in run.model.adapters.items():
        key = f"base_model.model.{path.replace('/', '.')}.lora_A.weight"
        assert torch.equal(adapter.lora_A, tensors[key])  # A and B stay, whatever is learnt
    again = bp.load_system(tmp_path / "run")
    answers = draw(run, run.split("test"), 3)
    assert torch.equal(draw(again, again.split("test"), 3), answers)
    finished = bp.train(task=place.rows, out=tmp_path / "run", resume=True)
    assert torch.equal(draw(finished, finished.split("test"), 3), answers)
    assert {path.suffix for path in (tmp_path / "run").iterdir()} == {".json", ".jsonl", ".safetensors"}
    assert not (tmp_path / "run" / "start.safetensors").exists()

    test = run.split("test")
    report = export_lora(run, tmp_path / "lora", rows=run.split("train"), compared_on=test, draws=2)
    assert report["draws"]["kl_max"] < 1e-9
    assert_close(of_peft(place, tmp_path / "lora", run), draw(run, test, 0)[0], rtol=0, atol=1e-5)
    two = torch.stack([of_peft(place, tmp_path / "lora" / f"draw-{k}", run) for k in range(2)])
    assert_close(two, draw(run, test, 2), rtol=0, atol=1e-5)


def test_peft_reads_the_folder_of_a_run_with_a_rank_per_module(
    place: Place, adapters: dict[str, Path], tmp_path: Path
) -> None:
    run = started(place, adapters["patterns"], tmp_path / "run", "lora")
    answers = draw(run, run.split("test"), 0)[0]
    assert_close(of_peft(place, tmp_path / "run", run), answers, rtol=0, atol=1e-5)


def test_a_calibrated_run_of_lora_is_an_adapter_without_its_temperature(place: Place, tmp_path: Path) -> None:
    own = {"method": "lora", "seed": 0, "validation_rows": 8}
    run = bp.train(task=place.rows, model=place.backbone, out=tmp_path / "given", steps=6, **own)
    temperature = run.corrections.temperature
    assert temperature is not None
    assert "log_temperature" in load_file(tmp_path / "given" / "adapter_model.safetensors")
    kept = started(place, tmp_path / "given", tmp_path / "run", "lora", model=place.backbone)
    temperature.set(0.7)  # of its own predictions, and of no other
    expected = (draw(run, run.split("test"), 0)[0] * temperature.value).log_softmax(-1)
    assert_close(draw(kept, kept.split("test"), 0)[0], expected, rtol=0, atol=1e-5)


def test_draws_of_tfb_are_adapters(place: Place, adapters: dict[str, Path], tmp_path: Path) -> None:
    """Their deviations of the weights have the guide's scales, and average to what the run predicts."""
    run = started(place, adapters["patterns"], tmp_path / "run", {"name": "tfb", "tolerance": 0.1})
    test, draws = run.split("test"), 64
    export_lora(run, tmp_path / "lora", rows=run.split("train"), compared_on=test, draws=draws)
    path = "model.layers.0.self_attn.q_proj"
    key = f"base_model.model.{path}.lora_A.weight"
    files = [tmp_path / "lora" / f"draw-{k}" / "adapter_model.safetensors" for k in range(draws)]
    drawn = torch.stack([load_file(file)[key][:2] for file in files])
    mean = run.model.adapters[path.replace(".", "/")].lora_A
    z = (drawn - mean) / run.guide.scale(f"lora_A/{path}")
    assert z.mean().abs() < 0.1
    assert z.std().item() == pytest.approx(1, abs=0.05)
    average = torch.stack([of_peft(place, file.parent, run).exp() for file in files[:8]]).mean(0)
    assert_close(average, draw(run, test, 64).exp().mean(0), rtol=0, atol=0.08)


@pytest.mark.parametrize("method", ["tfb", "bara-gate"])
def test_a_run_that_was_stopped_goes_on_without_the_adapter(
    method: str, place: Place, adapters: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = started(place, adapters["rslora"], tmp_path / "whole", method, checkpoint_every=2)
    folder = Path(shutil.copytree(adapters["rslora"], tmp_path / "given"))

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bara_pyro.runs.train.save_system", stop)
    with pytest.raises(KeyboardInterrupt):
        started(place, folder, tmp_path / "run", method, checkpoint_every=2)
    monkeypatch.undo()
    shutil.rmtree(folder)
    run = bp.train(out=tmp_path / "run", resume=True)
    assert torch.equal(draw(run, run.split("test"), 3), draw(whole, whole.split("test"), 3))


def settings(**changes: object) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        file = folder / "adapter_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return spoil


def tensors(change: Callable[[dict[str, Tensor]], object]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        held = load_file(folder / "adapter_model.safetensors")
        change(held)
        save_file(held, folder / "adapter_model.safetensors")

    return spoil


Q = "base_model.model.model.layers.0.self_attn.q_proj"


def as_pickle(folder: Path) -> None:
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")


def cut(folder: Path) -> None:
    file = folder / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:500])


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (settings(use_dora=True), "use_dora"),
        (settings(modules_to_save=["lm_head"]), "modules_to_save"),
        (settings(bias="all"), "bias"),
        (settings(init_lora_weights="pissa"), "pissa"),
        (settings(task_type="SEQ_CLS"), "SEQ_CLS"),
        (settings(something_new=[1]), "something_new"),
        (settings(peft_type="IA3"), "IA3"),
        (settings(peft_type="BARA: pip install"), "type 'BARA': .*bara export"),  # of a run
        (settings(r="three"), "r:"),
        (settings(r=4), "rank 3"),
        (settings(rank_pattern={"(": 2}), "regular expression"),
        (
            tensors(lambda t: t.update({"base_model.model.lm_head.weight": torch.ones(2, 2)})),
            "lm_head.weight",
        ),
        (tensors(lambda t: t.pop(f"{Q}.lora_B.weight")), "q_proj"),
        (tensors(lambda t: t[f"{Q}.lora_B.weight"].fill_(torch.nan)), "finite"),
        (tensors(lambda t: t.update({f"{Q}.lora_A.weight": torch.ones(3, 17)})), "widths"),
        (
            tensors(lambda t: [t.update({k.replace("layers.0", "layers.7"): t.pop(k)}) for k in list(t)]),
            "layers.7",
        ),
        (as_pickle, "pickle"),
        (cut, "adapter_model.safetensors"),
        (lambda folder: (folder / "adapter_config.json").unlink(), "adapter_config.json"),
    ],
)
def test_what_cannot_be_kept_is_refused(
    spoil: Callable[[Path], None], says: str, place: Place, adapters: dict[str, Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(adapters["lora"], tmp_path / "given"))
    spoil(folder)
    with pytest.raises(ConfigError, match=says) as error:
        started(place, folder, tmp_path / "run", "lora")
    assert len(str(error.value).replace(str(folder), "").replace(str(place.backbone), "")) <= 200
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (["--r", 4], "r=4"),
        (["--lora-alpha", 4], "lora_alpha=4"),
        (["--target-modules", "q_proj"], "target_modules"),
        (["--top-layers", "1"], "top_layers"),
        (["--method", "blob"], "blob"),
        (["--method", "lora", "--steps", 9], "train.steps=9"),
        (["--method", "tfb", "--set", "adapter.calibrated=true"], "calibrated"),
        (["--method", "tfb", "--find-lr"], "find_lr"),
        (["--set", "method.latent=theta"], "latent"),
    ],
)
def test_what_a_person_types_is_never_overwritten(
    typed: list[object], says: str, place: Place, adapters: dict[str, Path], tmp_path: Path, bara: Bara
) -> None:
    given = ["--from-adapter", adapters["lora"], "--out", tmp_path / "run"]
    assert_one_sentence(bara("train", place.rows, *given, *typed), says)
    assert not (tmp_path / "run").exists()


def test_an_adapter_on_the_hub_is_read_from_its_download(
    place: Place, adapters: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder below is laid out as `huggingface_hub` keeps what it has downloaded."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    repository, commit = tmp_path / "models--someone--an-adapter", "0" * 40
    shutil.copytree(adapters["rslora"], repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    downloaded, local = read_peft("someone/an-adapter"), read_peft(str(adapters["rslora"]))
    assert downloaded.name == "someone/an-adapter"
    for path, factors in local.factors.items():
        assert all(map(torch.equal, downloaded.factors[path], factors))
    with pytest.raises(ConfigError, match="no such adapter on the hub"):
        read_peft("someone/another")


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "", "../no/such/folder", __file__])
def test_a_name_that_is_no_adapter_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="folder"):
        read_peft(name)
