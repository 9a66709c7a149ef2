"""`bara export --as lora`: plain LoRA of PEFT's, read where bara_pyro is not even imported."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from app_cases import COLOURS, THINGS, Bara, Place, assert_one_sentence, files_of, write_rows
from safetensors.torch import load_file
from torch import Tensor
from torch.testing import assert_close
from transformers import AutoModelForCausalLM

from bara_pyro.core.adapter import tapped
from bara_pyro.core.posterior import PosteriorMean
from bara_pyro.data import batches, first_rows
from bara_pyro.extras.hub.export import export_lora, nearness
from bara_pyro.methods import METHODS
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.system import System, build_system
from bara_pyro.runs.train import train
from bara_pyro.untrusted.files import read_json

peft = pytest.importorskip("peft")
# PEFT reads a name that transformers deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

PLAIN_PEFT = """
import json, sys
import peft, torch, transformers
lm = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])
model = peft.PeftModel.from_pretrained(lm, sys.argv[2]).eval()
with torch.no_grad():
    print(json.dumps([model(torch.tensor([row])).logits[0, -1].tolist() for row in json.loads(sys.argv[3])]))
assert not any(name.startswith("bara_pyro") for name in sys.modules)
"""


def rows_of(system: System, count: int) -> list[list[int]]:
    return [list(row) for row in system.split("test").token_ids[:count]]


@pytest.fixture
def plain_peft(place: Place) -> Callable[..., Tensor]:
    """Return what gives a folder's log-probabilities of the answers by PEFT alone."""

    def ask(folder: Path, system: System, count: int = 3) -> Tensor:
        lm = AutoModelForCausalLM.from_pretrained(place.backbone)
        model = peft.PeftModel.from_pretrained(lm, folder).eval()
        with torch.no_grad():
            logits = [model(torch.tensor([row])).logits[0, -1].double() for row in rows_of(system, count)]
        return torch.stack(logits)[:, system.answer_ids].log_softmax(-1)

    return ask


def fitted(place: Place, folder: Path, method: dict | str, **settings: object) -> System:
    how = {"train__steps": 6, "train__lr": 0.05, "adapter__r": 3} | settings
    config = place.config(method=method, **how)
    train(build_system(config), folder)
    return load_system(folder)


def export(system: System, out: Path, **options: object) -> dict:
    rows = first_rows(system.split("train"), 12)
    return export_lora(system, out, rows=rows, compared_on=system.split("test"), **options)


def gates_by_hand(system: System, rows: int) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """Each module's inputs, `tokens x in`, theta at them and Phi, means, from the raw parameters."""
    split = first_rows(system.split("train"), rows)
    seen: dict[str, list[Tensor]] = {}
    for batch in batches(split, system.answer_ids, 1):  # one row at a time: no padding
        with tapped(system.model.adapters.values()) as inputs, torch.no_grad(), PosteriorMean(system.guide):
            system.model.forward(replace(batch, labels=None))
        for path, (x, _) in inputs.items():
            seen.setdefault(path, []).append(x[0])
    raw = dict(system.guide.named_parameters())
    start = system.guide.start[:3]
    found = {}
    for index, (path, parts) in enumerate(seen.items()):
        x = torch.cat(parts)
        size = x.square().mean(-1, keepdim=True).sqrt() if system.model.form == "gate" else 1.0
        weight = raw[f"sites.theta/{path.replace('.', '/')}.weight"][:3]
        theta = torch.nn.functional.softplus(x / size @ weight.T + start)
        found[path] = x, theta, torch.nn.functional.softplus(raw["sites.phi.weight"][index, :3] + start)
    return found


@pytest.mark.parametrize("method", ["bara", "bara-gate", "centred"])
def test_least_squares_against_numpys(method: str, place: Place, tmp_path: Path) -> None:
    given = {"name": "bara", "centred": True} if method == "centred" else method
    system = fitted(place, tmp_path / "run", given)
    export(system, tmp_path / "lora")
    tensors = load_file(tmp_path / "lora" / "adapter_model.safetensors")
    for path, (x, theta, phi) in gates_by_hand(system, 12).items():
        own = system.model.adapters[path.replace(".", "/")]
        # The prior of theta, Gamma(1, 1), has mean 1.
        start, wanted = torch.zeros(3, x.shape[1]), theta - 1 if method == "centred" else theta
        if method == "bara-gate":
            start, wanted = theta.mean(0)[:, None] * own.lora_A, theta * (x @ own.lora_A.T)
        # The ridge as further rows: sqrt(ridge) D = sqrt(ridge) D0.
        root = (0.01 * x.double().square().sum() / x.shape[1]).sqrt()
        left = torch.cat([x.double(), root * torch.eye(x.shape[1])]).detach().numpy()
        right = torch.cat([wanted, root * start.T]).detach().numpy()
        expected = np.linalg.lstsq(left, right, rcond=None)[0].T
        key = f"base_model.model.{path}"
        assert_close(tensors[f"{key}.lora_A.weight"].numpy(), expected.astype("f4"), rtol=1e-3, atol=1e-5)
        assert_close(tensors[f"{key}.lora_B.weight"], own.lora_B * phi, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("method", ["bara", "bara-gate"])
def test_plain_peft_gives_the_logits_that_were_compared(
    method: str, place: Place, plain_peft: Callable[..., Tensor], tmp_path: Path
) -> None:
    # A small step: the additive form is a LoRA only near where it starts.
    system = fitted(place, tmp_path / "run", method, train__lr=0.01)
    report = export(system, tmp_path / "lora", draws=2, seed=4)
    mean = draw(system, system.split("test"), 0)[0]
    theirs = plain_peft(tmp_path / "lora", system, len(mean))
    kl = (mean.exp() * (mean - theirs)).sum(-1)
    near = report["mean"]
    assert near["kl_mean"] == pytest.approx(kl.mean().item(), abs=1e-6)
    assert near["kl_max"] == pytest.approx(kl.max().item(), abs=1e-6)
    labels = torch.tensor(system.split("test").labels)
    assert near["nll_export"] == pytest.approx(
        -theirs[torch.arange(len(labels)), labels].mean().item(), abs=1e-5
    )
    assert 1e-5 < near["kl_max"] < 0.5  # near, and not the same
    parts = [plain_peft(tmp_path / "lora" / f"draw-{k}", system, len(mean)) for k in range(2)]
    assert (parts[0] - parts[1]).abs().max() > 1e-3
    average = draw(system, system.split("test"), 2, seed=4).exp().mean(0)
    theirs = torch.stack(parts).exp().mean(0)
    kl = (average * (average / theirs).log()).sum(-1)
    assert report["draws"]["kl_mean"] == pytest.approx(kl.mean().item(), abs=1e-6)


def test_phi_alone_is_exact_draw_by_draw(
    place: Place, plain_peft: Callable[..., Tensor], tmp_path: Path
) -> None:
    system = fitted(place, tmp_path / "run", {"name": "bara-gate", "latent": "phi"})
    report = export(system, tmp_path / "lora", draws=2, seed=7)
    assert report["mean"]["kl_max"] < 1e-8
    assert report["draws"]["kl_max"] < 1e-8
    drawn = draw(system, system.split("test"), 2, seed=7)
    for k in range(2):
        theirs = plain_peft(tmp_path / "lora" / f"draw-{k}", system)
        assert_close(theirs, drawn[k, :3], rtol=1e-5, atol=1e-5)  # two orders of float32 sums


@pytest.mark.slow
def test_it_is_read_in_a_process_that_has_no_bara_pyro(
    place: Place, plain_peft: Callable[..., Tensor], tmp_path: Path
) -> None:
    system = fitted(place, tmp_path / "run", "bara-gate")
    export(system, tmp_path / "lora")
    given = [str(place.backbone), str(tmp_path / "lora"), json.dumps(rows_of(system, 3))]
    done = subprocess.run(
        [sys.executable, "-c", PLAIN_PEFT, *given], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    logits = torch.tensor(json.loads(done.stdout), dtype=torch.float64)
    expected = logits[:, system.answer_ids].log_softmax(-1)
    assert_close(plain_peft(tmp_path / "lora", system), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", ["lora", "blob"])
def test_what_is_a_lora_at_its_mean_stays_it(
    method: str, place: Place, plain_peft: Callable[..., Tensor], tmp_path: Path
) -> None:
    assert METHODS[method].peft
    system = fitted(place, tmp_path / "run", method)
    report = export(system, tmp_path / "lora")
    assert report["mean"]["kl_max"] < 1e-8
    mean = draw(system, system.split("test"), 0)[0]
    assert_close(plain_peft(tmp_path / "lora", system), mean[:3], rtol=0, atol=1e-5)


@pytest.mark.parametrize("method", ["map_prior", "map_decoupled", "mc_dropout", "tfb"])
def test_the_others_that_are_exact(method: str, place: Place, tmp_path: Path) -> None:
    validation = {"task__validation_rows": 8} if method == "tfb" else {}
    system = fitted(place, tmp_path / "run", method, **validation)
    assert export(system, tmp_path / "lora")["mean"]["kl_max"] < 1e-8


def test_a_temperature_is_told_not_exported(place: Place, tmp_path: Path) -> None:
    system = fitted(place, tmp_path / "run", "temperature", task__validation_rows=8)
    report = export(system, tmp_path / "lora")
    told = json.loads((tmp_path / "run" / "fitted.json").read_text())
    assert report["temperature"] == pytest.approx(told["temperature"], rel=1e-6)
    assert report["mean"]["kl_max"] < 1e-8  # but for it


def test_nearness_of_known_distributions() -> None:
    p, q = torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([[0.25, 0.75], [0.5, 0.5]])
    near = nearness(p.log()[None], q.log()[None], (0, 1))
    first = 0.5 * torch.tensor([2.0, 2 / 3]).log().sum().item()
    assert near.kl_max == pytest.approx(torch.tensor(2.0).log().item())
    assert near.kl_mean == pytest.approx((first + near.kl_max) / 2)
    assert near.same_answer == 50  # a tie goes to the first
    assert near.nll_export == pytest.approx(-torch.tensor([0.25, 0.5]).log().mean().item())


# The command ------------------------------------------------------------------------------------------


def test_the_command_says_how_near_and_writes_once(place: Place, tmp_path: Path, bara: Bara) -> None:
    fitted(place, tmp_path / "run", "bara-gate")
    arguments = ("export", tmp_path / "run", "--as", "lora", "--out", tmp_path / "out", "--rows", 8)
    result = bara(*arguments, "--draws", 2)
    assert result.code == 0, result.err
    assert "8 rows" in result.out
    assert files_of(tmp_path / "out") == {
        *("adapter_config.json", "adapter_model.safetensors", "export.json", "manifest.json"),
        *("draw-0", "draw-1"),
    }
    assert_one_sentence(bara(*arguments), "--overwrite")
    result = bara(*arguments, "--overwrite")
    assert result.code == 0, result.err
    assert not (tmp_path / "out" / "draw-0").exists()


def test_noise_far_from_the_training_rows_is_said_to_be_left_out(
    place: Place, tmp_path: Path, bara: Bara
) -> None:
    system = build_system(place.config(method="lora", adapter__distance_aware=True, train__steps=2))
    train(system, tmp_path / "run")
    found = bara("export", tmp_path / "run", "--out", tmp_path / "out")
    assert found.code == 0, found.err
    assert "is not exported" in " ".join(found.out.split())
    assert json.loads((tmp_path / "out" / "export.json").read_text())["distance_aware"] is True


def test_what_is_no_lora_is_refused(place: Place, tmp_path: Path, bara: Bara) -> None:
    out = ("--out", tmp_path / "out")
    fitted(place, tmp_path / "plain", "lora")
    assert_one_sentence(bara("export", tmp_path / "plain", *out, "--draws", 2), "--draws")
    fitted(place, tmp_path / "many", "ensemble")
    assert_one_sentence(bara("export", tmp_path / "many", *out), "'ensemble'")
    fitted(place, tmp_path / "no-theta", {"name": "bara", "latent": "phi"})
    told = bara("export", tmp_path / "no-theta", *out)
    assert_one_sentence(told, "'bara' without theta", "export the gate form")


@pytest.mark.slow
def test_an_export_that_is_another_model_is_not_written(place: Place, tmp_path: Path, bara: Bara) -> None:
    fitted(place, tmp_path / "run", "bara-gate")
    arguments = ("export", tmp_path / "run", "--out", tmp_path / "out")
    assert bara(*arguments, "--max-kl", 10).code == 0
    before = files_of(tmp_path / "out")
    refused = bara(*arguments, "--overwrite", "--max-kl", 0)
    assert_one_sentence(refused, "--max-kl")
    assert files_of(tmp_path / "out") == before  # what was there is not gone for nothing
    assert bara("export", tmp_path / "run", "--out", tmp_path / "none", "--max-kl", 0).code != 0
    assert not (tmp_path / "none").exists()


LONG = "is the fox red no yes the cow is grey no yes the pig is blue no yes the hen is red no yes"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["text", "context", "options", "texts", "mean of texts"])
def test_rows_that_begin_alike_are_exported_with_what_to_send(
    kind: str, place: Place, tmp_path: Path
) -> None:
    """And what is sent, made of `export.json` alone, is token for token what the run asks."""
    rows = [
        {
            "id": f"{thing}-{colour}",
            **({"context": LONG} if kind == "context" else {}),
            ("text" if kind == "text" else "question"): f"{LONG} is the {thing} {colour} ?",
            **({"choices": ["no", "yes"]} if kind == "options" else {}),
            "answer": "yes" if (thing < "d") == (colour in ("red", "blue")) else "no",
        }
        for thing in THINGS
        for colour in COLOURS
    ]
    whole = kind in ("texts", "mean of texts")
    how = {"task__labels": "letters" if kind == "text" else "texts" if whole else "auto"}
    if kind == "mean of texts":
        how["task__text_score"] = "mean"
    own = Place(place.backbone, write_rows(tmp_path / "rows.jsonl", rows))
    system = fitted(own, tmp_path / "run", "bara-gate", task__max_length=60, **how)
    ask = export(system, tmp_path / "lora")["ask"]
    assert ask == read_json(tmp_path / "lora" / "export.json")["ask"]
    by_id = {row["id"]: row for row in rows}
    split, tokenizer = system.split("test"), system.backbone.tokenizer
    for row_id, tokens in zip(split.ids, split.token_ids, strict=True):
        row = by_id[row_id]
        prompt = ask["prompt"].replace("{text}", row.get("text") or row["question"])
        prompt = prompt.replace("{context}", row.get("context", ""))
        for i, option in enumerate(row.get("choices", ()), start=1):
            prompt = prompt.replace(f"{{option {i}}}", option)
        sent = ask["front_tokens"] + tokenizer(prompt, add_special_tokens=False)["input_ids"]
        assert sent == list(tokens)
        assert len(sent) <= ask["max_length"]
    assert ask.get("text_score") == {"texts": "sum", "mean of texts": "mean"}.get(kind)
    answers = [None, None] if whole else system.answer_ids.tolist()
    assert [answer["token"] for answer in ask["answers"]] == answers
    assert [answer["class"] for answer in ask["answers"]] == (
        ["A", "B"] if kind == "options" else ["no", "yes"]
    )
