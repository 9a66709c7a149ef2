"""BaRA as PEFT's: a run's folder gives, in PEFT, the answers that bara_pyro gives."""

import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from core_cases import backbone, make_lm
from fit_cases import tiny_run
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import AutoModelForCausalLM

from bara_pyro.core.prediction import predict
from bara_pyro.data import batches
from bara_pyro.data.types import Batch
from bara_pyro.errors import BackboneError, ConfigError
from bara_pyro.methods import build, method_config
from bara_pyro.microworld import backbone_path
from bara_pyro.runs.config import load_config
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.store import read_tensors
from bara_pyro.runs.system import System, assemble, build_system
from bara_pyro.runs.train import train
from bara_pyro.runs.writing import save_system, write_config

peft = pytest.importorskip("peft")
import bara_pyro.extras.hub.peft  # noqa: E402

# PEFT reads a name that transformers deprecates; nothing of ours.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
FORMS = ["bara", "bara-gate"]
TOLERANCE = 1e-5  # of log-probabilities of a few nats in float32; seen: 3e-7


def trained(folder: Path, method: dict, **settings: object) -> System:
    """A run of a few steps at a high rate, so that everything has moved; in `folder / "run"`."""
    config = load_config(base=tiny_run(folder, method), overrides={"train.lr": 0.05, **settings})
    system = build_system(config)
    train(system, folder / "run")
    return system


def base(folder: Path) -> nn.Module:
    return AutoModelForCausalLM.from_pretrained(folder / "backbone").eval()


Runs = dict[str, tuple[Path, System]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """A run of either form and its folder, to be read and not written to."""
    folders = {method: tmp_path_factory.mktemp(method) for method in FORMS}
    return {method: (folder, trained(folder, {"name": method})) for method, folder in folders.items()}


def rows_of(system: System, count: int = 5) -> Batch:
    """Rows without identifiers, left-padded."""
    return replace(next(batches(system.split("test"), system.answer_ids, count)), ids=())


def arguments(batch: Batch) -> dict[str, Tensor]:
    mask = batch.attention_mask.long()
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    return {"input_ids": batch.input_ids, "attention_mask": mask, "position_ids": positions}


def answers(model: nn.Module, batch: Batch) -> Tensor:
    """The answers' log-probabilities, `B x C`, float64, from a language model's own logits."""
    with torch.no_grad():
        logits = model(**arguments(batch)).logits
    return logits[:, -1, batch.answer_ids].double().log_softmax(-1)


def assert_same_answers(model: nn.Module, system: System, batch: Batch) -> None:
    """Compare means and three draws with `predict`."""
    mean = predict(system.model, system.guide, batch, samples=0)[0]
    assert_close(answers(model, batch), mean, rtol=0, atol=TOLERANCE)
    drawn = predict(system.model, system.guide, batch, samples=3, seed=5)
    for number in range(3):
        model.sample(5, draw=number)
        assert_close(answers(model, batch), drawn[number], rtol=0, atol=TOLERANCE)
    if system.guide.stochastic:
        assert (drawn[0] - drawn[1]).abs().max() > 100 * TOLERANCE
    model.sample(None)
    assert_close(answers(model, batch), mean, rtol=0, atol=TOLERANCE)


# What PEFT reads --------------------------------------------------------------------------------------


VARIANTS = [
    {"name": "bara-gate", "latent": "theta"},
    {"name": "bara-gate", "latent": "phi"},
    {"name": "bara", "guide": "gamma"},
    {"name": "bara", "centred": True},
    {"name": "bara-gate", "guide": "lognormal", "shape_width": "scalar"},
    {"name": "bara", "activation": "topk", "normalize_input": True, "max_kappa": 0.6},
]


@pytest.mark.parametrize("method", VARIANTS, ids=lambda m: "-".join(map(str, m.values())))
def test_every_variant_of_the_program_and_its_guide(method: dict, tmp_path: Path) -> None:
    system = trained(tmp_path, method)
    model = peft.PeftModel.from_pretrained(base(tmp_path), tmp_path / "run", low_cpu_mem_usage=True)
    assert_same_answers(model, system, rows_of(system))


def test_the_adapter_loader_of_transformers(runs: Runs) -> None:
    folder, system = runs["bara-gate"]
    batch, lm = rows_of(system), base(folder)
    lm.load_adapter(folder / "run")
    mean = predict(system.model, system.guide, batch, samples=0)[0]
    assert_close(answers(lm, batch), mean, rtol=0, atol=TOLERANCE)


def test_a_run_with_smaller_ranks(runs: Runs, tmp_path: Path) -> None:
    """As the one of a PEFT adapter with a `rank_pattern`, or one that `bara prune` wrote."""
    folder, system = runs["bara-gate"]
    ranks = {target.path: 1 + target.index for target in system.model.targets[:3]}
    smaller = assemble(system.config, system.backbone, system.task, system.model.num_data, ranks)
    torch.manual_seed(1)
    with torch.no_grad():
        for value in (*smaller.model.parameters(), *smaller.guide.parameters()):
            value.add_(0.2 * torch.randn_like(value))
    write_config(smaller, tmp_path / "small")
    save_system(smaller, tmp_path / "small", 5)
    model = peft.PeftModel.from_pretrained(base(folder), tmp_path / "small")
    assert_same_answers(model, smaller, rows_of(smaller))
    again = load_system(tmp_path / "small")
    assert again.model.rank_pattern == ranks
    assert_same_answers(model, again, rows_of(again))


def test_rows_have_noise_of_their_own(runs: Runs) -> None:
    folder, system = runs["bara"]
    model = peft.PeftModel.from_pretrained(base(folder), folder / "run")
    batch = replace(rows_of(system), ids=("p", "q", "r", "s", "t"))
    drawn = predict(system.model, system.guide, batch, samples=1, seed=2)[0]
    model.sample(2, ids=batch.ids)
    assert_close(answers(model, batch), drawn, rtol=0, atol=TOLERANCE)
    model.sample(2)
    assert (answers(model, batch) - drawn).abs().max() > 100 * TOLERANCE
    model.sample(2, ids=["p", "q"])
    with pytest.raises(ConfigError, match="5 rows and 2 ids"):
        answers(model, batch)


def test_generation_with_a_cache_sees_the_gates_of_one_without(runs: Runs) -> None:
    folder, system = runs["bara-gate"]
    model = peft.PeftModel.from_pretrained(base(folder), folder / "run")
    batch = rows_of(system)
    scores = {}
    for cache in (True, False):
        model.sample(3)
        out = model.generate(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask.long(),
            max_new_tokens=4,
            min_new_tokens=4,
            do_sample=False,
            use_cache=cache,
            output_logits=True,
            return_dict_in_generate=True,
        )
        scores[cache] = torch.stack(out.logits)
    assert_close(scores[True], scores[False], rtol=0, atol=1e-4)


def test_what_peft_saves_it_reads_back(runs: Runs, tmp_path: Path) -> None:
    folder, system = runs["bara-gate"]
    model = peft.PeftModel.from_pretrained(base(folder), folder / "run")
    model.save_pretrained(tmp_path / "again", save_embedding_layers=False)
    ours, theirs = (
        load_file(place / "adapter_model.safetensors") for place in (folder / "run", tmp_path / "again")
    )
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert_same_answers(
        peft.PeftModel.from_pretrained(base(folder), tmp_path / "again"), system, rows_of(system)
    )


def test_no_weight_is_stored_twice(runs: Runs) -> None:
    folder, system = runs["bara-gate"]
    adapter, guide = (
        read_tensors(folder / "run" / f"{name}.safetensors")[0] for name in ("adapter_model", "guide")
    )
    own = [*system.model.parameters(), *system.guide.parameters()]
    assert sum(value.numel() for value in own) == sum(value.numel() for value in adapter.values())
    assert not guide


def test_a_language_model_of_other_sizes_is_refused(runs: Runs) -> None:
    folder, _ = runs["bara-gate"]
    lm = AutoModelForCausalLM.from_pretrained(backbone_path(), dtype=torch.float32)
    other = "was trained on another language model"
    with pytest.warns(UserWarning, match="fingerprint"), pytest.raises(BackboneError, match=other) as error:
        peft.PeftModel.from_pretrained(lm, folder / "run")
    said = str(error.value)
    assert "\n" not in said
    assert ". " not in said
    assert said.endswith(f"here): load {folder / 'backbone'}.")


def test_a_language_model_with_other_weights_is_warned_of(runs: Runs) -> None:
    folder, _ = runs["bara"]
    for lm in (base(folder), base(folder).to(torch.bfloat16)):
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            model = peft.PeftModel.from_pretrained(lm, folder / "run", adapter_name="one")
            model.load_adapter(folder / "run", adapter_name="two")  # beside the first one's layers
    other = base(folder)
    with torch.no_grad():
        other.model.layers[0].mlp.up_proj.weight.add_(0.1)
    with pytest.warns(UserWarning, match="fingerprint") as told:
        peft.PeftModel.from_pretrained(other, folder / "run")
    [said] = [str(one.message) for one in told if "fingerprint" in str(one.message)]
    assert f"load {folder / 'backbone'}, unless" in said
    assert ". " not in said
    other = base(folder)
    with torch.no_grad():
        other.lm_head.weight.add_(0.1)
    with pytest.warns(UserWarning, match="fingerprint"):
        other.load_adapter(folder / "run")


@pytest.mark.slow
def test_without_bara_pyro_pefts_error_says_what_to_install(tmp_path: Path) -> None:
    trained(tmp_path, {"name": "bara"})
    code = (
        "import sys, transformers, peft\n"
        "lm = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1] + '/backbone')\n"
        "peft.PeftModel.from_pretrained(lm, sys.argv[1] + '/run')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], check=False, capture_output=True, text=True
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("KeyError: 'BARA: pip install bara-pyro and `import bara_pyro.peft`")


# Modules for whoever trains ---------------------------------------------------------------------------


@pytest.mark.parametrize("method", FORMS)
def test_get_peft_model_gives_the_programs_parameters(method: str) -> None:
    lm = make_lm("qwen2").eval()
    ids = torch.tensor([[5, 7, 9, 3]])
    before = lm(ids).logits
    torch.manual_seed(3)
    model = peft.get_peft_model(lm, bara_pyro.extras.hub.peft.BaRAConfig(r=3, lora_alpha=6, method=method))
    assert torch.equal(model(ids).logits, before)  # B starts at 0
    own, guide = build(method_config(method), backbone(), 4, {"r": 3, "lora_alpha": 6.0})
    trainable = [p for p in model.parameters() if p.requires_grad]
    expected = [*own.parameters(), *guide.parameters()]
    assert sum(p.numel() for p in trainable) == sum(p.numel() for p in expected)
    kinds = {name.rsplit(".", 3)[1] for name, p in model.named_parameters() if p.requires_grad}
    assert kinds == {"lora_B", "lora_phi", "lora_theta"} | ({"lora_A"} if method == "bara-gate" else set())
    optim = torch.optim.AdamW(trainable, lr=0.02)
    losses = []
    for _ in range(12):
        loss = model(input_ids=ids, labels=ids).loss
        optim.zero_grad()
        loss.backward()
        optim.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.1
    assert all(p.grad is None for p in lm.parameters() if not p.requires_grad)
    assert all(p.grad.abs().sum() > 0 for name, p in model.named_parameters() if "lora_theta" in name)


def test_adapters_are_switched_and_taken_out_bit_for_bit(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    systems = {"one": trained(first, {"name": "bara"}), "two": trained(second, {"name": "bara-gate"})}
    lm = base(first)
    plain = {name: value.clone() for name, value in lm.state_dict().items()}
    batch = rows_of(systems["one"])
    untouched = answers(lm, batch)
    model = peft.PeftModel.from_pretrained(lm, first / "run", adapter_name="one")
    model.load_adapter(second / "run", adapter_name="two")
    for name in ("two", "one"):
        model.set_adapter(name)
        assert_same_answers(model, systems[name], batch)
    with model.disable_adapter():
        assert torch.equal(answers(model, batch), untouched)
    model.delete_adapter("two")
    model.sample(1)
    with pytest.raises(ConfigError, match="bara export --as lora"):
        model.merge_adapter()
    bare = model.unload()
    assert not bare._forward_pre_hooks
    assert torch.equal(answers(bare, batch), untouched)
    assert all(torch.equal(value, plain[name]) for name, value in bare.state_dict().items())


def test_each_row_of_a_batch_has_the_adapter_that_is_named_for_it(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    # Of other modules: a row of "two" goes through layers that this adapter does not have.
    some = {"adapter.target_modules": ["q_proj", "lm_head"]}
    systems = {"one": trained(first, {"name": "bara"}), "two": trained(second, {"name": "bara-gate"}, **some)}
    lm, batch = base(first), rows_of(systems["one"])
    found = {"__base__": answers(lm, batch)}
    model = peft.PeftModel.from_pretrained(lm, first / "run", adapter_name="one").eval()
    model.load_adapter(second / "run", adapter_name="two")
    names = ["two", "__base__", "one", "two", "one"]
    for seed in (None, 3):
        model.sample(seed)
        for name in ("two", "one"):  # which is then the active one
            model.set_adapter(name)
            found[name] = answers(model, batch)
        expected = torch.stack([found[name][row] for row, name in enumerate(names)])
        with torch.no_grad():
            logits = model(**arguments(batch), adapter_names=names).logits[:, -1, batch.answer_ids]
        assert_close(logits.double().log_softmax(-1), expected, rtol=0, atol=TOLERANCE)
        assert (found["one"] - found["two"]).abs().min() > 100 * TOLERANCE
    assert_close(answers(model, batch), found["one"])  # nothing of it is left


def test_generation_takes_an_adapter_a_row(runs: Runs) -> None:
    folder, system = runs["bara-gate"]
    model = peft.PeftModel.from_pretrained(base(folder), folder / "run", adapter_name="one").eval()
    batch = rows_of(system, 2)
    how = {"max_new_tokens": 3, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    given = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask.long(), **how}
    mixed = model.generate(**given, adapter_names=["__base__", "one"])
    with model.disable_adapter():
        bare = model.generate(**given)
    adapted = model.generate(**given)
    assert_close(mixed.logits[0][0], bare.logits[0][0])
    assert_close(mixed.logits[0][1], adapted.logits[0][1])
    assert (bare.logits[0] - adapted.logits[0]).abs().max() > 1e-3
    beams = model.generate(**given, num_beams=3, adapter_names=["__base__", "one"])
    assert len(beams.sequences) == 2


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["one"] * 4, "4 names for a batch of 5 rows"),
        (["one", "one", "tow", "one", "__base__"], "'tow', which is not an adapter"),
        ("one", "'e', which is not"),
    ],
)
def test_adapter_names_that_cannot_be_meant_are_refused(names: list[str], said: str, runs: Runs) -> None:
    folder, system = runs["bara"]
    model = peft.PeftModel.from_pretrained(base(folder), folder / "run", adapter_name="one").eval()
    batch = rows_of(system)
    before = answers(model, batch)
    with pytest.raises(ConfigError, match=said):
        model(**arguments(batch), adapter_names=names)
    assert torch.equal(answers(model, batch), before)
    with pytest.raises(ConfigError, match="training mode"):
        model.train()(**arguments(batch), adapter_names=["one"] * 5)


def test_other_methods_and_unknown_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="'lora': choose bara, bara-gate"):
        bara_pyro.extras.hub.peft.BaRAConfig(method="lora")
    with pytest.raises(ConfigError, match="nothing"):
        bara_pyro.extras.hub.peft.BaRAConfig(method={"name": "bara", "nothing": 1})
