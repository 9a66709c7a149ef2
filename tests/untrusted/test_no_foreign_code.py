"""Code that comes with a language model is never run, and nobody is asked whether it should be."""

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from app_cases import save_backbone
from safetensors.torch import save_file
from torch import zeros

import bara_pyro as bp
from bara_pyro.errors import BackboneError
from bara_pyro.extras.replies.reward import load_reward_model
from bara_pyro.lm.loading import load_tokenizer

ROOT = Path(__file__).parents[2]
PLACES = ("bara_pyro", "models", "guides", "experiments", "benchmarks", "examples")
# What is loaded by these runs no code of others, and does not take the argument.
WITHOUT = {"PeftModel", "GenerationConfig"}
OWN = {"AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "evil.EvilModel"}


def loading_calls(source: str) -> list[ast.Call]:
    """Every call of `from_pretrained`, `from_config` and `pipeline`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        of = getattr(function.value, "id", "") if isinstance(function, ast.Attribute) else ""
        if name in ("from_pretrained", "from_config", "pipeline") and of not in WITHOUT:
            found.append(node)
    return found


def refuses_code(call: ast.Call) -> bool:
    given = [key.value for key in call.keywords if key.arg == "trust_remote_code"]
    return len(given) == 1 and isinstance(given[0], ast.Constant) and given[0].value is False


def test_every_call_that_loads_says_that_no_code_is_run() -> None:
    files = [path for place in PLACES for path in (ROOT / place).rglob("*.py")]
    calls = [(path, call) for path in files for call in loading_calls(path.read_text(encoding="utf-8"))]
    assert len(calls) > 8
    assert [f"{path}:{call.lineno}" for path, call in calls if not refuses_code(call)] == []


def test_the_walk_sees_what_is_missing() -> None:
    assert not refuses_code(loading_calls("AutoConfig.from_pretrained(name)")[0])
    assert not refuses_code(loading_calls("kind.from_config(c, trust_remote_code=True)")[0])
    assert refuses_code(loading_calls("kind.from_config(c, trust_remote_code=False)")[0])


def foreign(folder: Path, file: str = "config.json", **settings: object) -> Path:
    """A language model whose settings are changed, with a file of code beside it that leaves a trace."""
    save_backbone(folder)
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    trace = f"open({str(folder / 'RAN')!r}, 'w').close()\n"
    names = ("EvilConfig", "EvilModel", "EvilTokenizer", "Qwen2Config", "Qwen2ForCausalLM")
    (folder / "evil.py").write_text(trace + "".join(f"class {name}:\n    pass\n" for name in names))
    return folder


REFUSED = {
    "an architecture of its own": {"model_type": "evil", "auto_map": OWN},
    "a known architecture": {"auto_map": OWN},
    "code of another repository": {"auto_map": {"AutoConfig": "somebody/model--evil.EvilConfig"}},
    "no name of a class": {"auto_map": ["evil.EvilConfig", 5]},
    "a kernel to be downloaded": {"attn_implementation": "somebody/kernel"},
    "a tokenizer": {
        "file": "tokenizer_config.json",
        "tokenizer_class": "EvilTokenizer",
        "auto_map": {"AutoTokenizer": ["evil.EvilTokenizer", None]},
    },
    "a tokenizer under a known name": {
        "file": "tokenizer_config.json",
        "auto_map": {"AutoTokenizer": ["evil.EvilTokenizer", None]},
    },
}


@pytest.mark.parametrize("case", REFUSED)
def test_code_of_a_language_model_is_refused(case: str, tmp_path: Path) -> None:
    folder = foreign(tmp_path / "lm", **REFUSED[case])  # type: ignore[arg-type]
    for load in (bp.load_backbone, load_reward_model):
        with pytest.raises(BackboneError, match="code"):
            load(folder)
    assert not (folder / "RAN").exists()


def test_code_of_a_tokenizer_is_refused_where_it_is_loaded_alone(tmp_path: Path) -> None:
    folder = foreign(tmp_path / "lm", **REFUSED["a tokenizer"])  # type: ignore[arg-type]
    with pytest.raises(BackboneError, match="EvilTokenizer"):
        load_tokenizer(str(folder))
    assert not (folder / "RAN").exists()


def test_classes_that_transformers_has_by_now_are_its_own(tmp_path: Path) -> None:
    """As Falcon and Phi-3 name files of code that are long a part of transformers."""
    own = {"AutoConfig": "evil.Qwen2Config", "AutoModelForCausalLM": "evil.Qwen2ForCausalLM"}
    folder = foreign(tmp_path / "lm", auto_map=own)
    assert type(bp.load_backbone(folder).lm).__module__.startswith("transformers.")
    assert not (folder / "RAN").exists()


def test_an_adapter_beside_a_language_model_is_refused(tmp_path: Path) -> None:
    """transformers would read it, and match its `target_modules` as a regular expression."""
    folder = save_backbone(tmp_path / "lm")
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "target_modules": "(a+)+$"}')
    save_file({"x": zeros(1)}, folder / "adapter_model.safetensors")
    with pytest.raises(BackboneError, match="adapter"):
        bp.load_backbone(folder)


@pytest.mark.slow
def test_no_answer_lets_it_run(finished: Path, tmp_path: Path) -> None:
    run, folder = (
        shutil.copytree(finished, tmp_path / "run"),
        foreign(tmp_path / "lm", **REFUSED["a known architecture"]),
    )
    own = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(own | {"model_type": "evil"}))
    command = ["evaluate", str(run), "--model", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "bara_pyro", *command],
        input="y\n" * 20,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 2
    assert "needs its own code" in done.stderr
    assert "[y/N]" not in done.stdout + done.stderr
    assert not (folder / "RAN").exists()
