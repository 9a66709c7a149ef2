"""What people get wrong, over all commands: exit code 2, one sentence, and the disk as it was."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from app_cases import Bara, Place, assert_one_sentence, questions, save_backbone, write_rows

HUGE = "99999999999999999999999"
DEEP = 100_000
TRAIN = "train --model {backbone} --task {rows} --out {new} "

# Values that an option of `train` refuses, one case each.
VALUES = {
    "--seed": ["-1", "4294967296", HUGE, "1.5", "abc"],
    "--steps": ["0", "-5", "abc", "1e3", "10000000000"],
    "--batch-size": ["0", "-1", "999999999", "x"],
    "--lr": ["0", "-1", "nan", "inf", "fast"],
    "--samples": ["-1", "abc", "1000000000"],
    "--device": ["tpu", "cuda:99"],
    "--dtype": ["float8"],
    "--labels": ["numbers"],
    "--too-long": ["cut"],
    "--evaluate-on": ["tset"],
    "--test-fraction": ["0", "1", "-0.1", "nan", "abc"],
    "--validation-rows": ["-1", "1000", "x"],
    "--max-length": ["0", "-3"],
    "--limit": ["0", "-1"],
    "--task-seed": ["-1", "4294967296"],
    "--r": ["0", "-1", "100000000", "1.5"],
    "--lora-alpha": ["0", "-1", "nan"],
    "--target-modules": ["[qproj]", "(", "[q_proj", "[]", ".*query"],
    "--accumulate": ["0", "3", "100000"],
    "--local-lr-scale": ["0"],
    "--warmup": ["-0.1", "1.5"],
    "--weight-decay": ["-1"],
    "--clip-norm": ["0"],
    "--autocast": ["int8"],
    "--checkpoint-every": ["0"],
    "--log-every": ["0"],
    "--predict-batch-size": ["0", "999999999"],
    "--memory-budget": ["0"],
    "--predict-seed": ["-1", HUGE],
    "--method": ["bora", "lora,bara"],
    "--model": ["/no/such/folder", "{file}", "{empty}", "{foreign}"],
    "--task": ["boolqq", "micro-none", "{absent}.jsonl", "{foreign}"],
    "--test-file": ["{absent}.jsonl", "{foreign}"],
    "--text-column": ["nope"],
    "--label-column": ["nope"],
    "--choices-column": ["nope"],
    "--context-column": ["nope"],
    "--classes": ["maybe"],
    "--config": [
        "{absent}.yaml",
        "{foreign}",
        "{list.yaml}",
        "{broken.yaml}",
        "{binary.jsonl}",
        "{deep.yaml}",
    ],
    "--out": ["{file}", "{file}/x", "/proc/foo", "/dev/null/x", "{foreign}", "{run}", "{backbone}"],
    "--set": [
        *("train.lr", "=1", "nothing=1", "train.larning_rate=1", "trian.lr=1", "method.gate=1", "train=3"),
        *("method.phi_prior=gama", "method.init_kappa=-1", "method.theta_prior=halfcauchy", "seed.a=1"),
        *("train.steps=[1", "adapter.r=100000000", "predict.samples=[]", "method=[1]", "method.name=5"),
        *(
            "seed=" + HUGE,
            "predict.samples=[-1]",
            "train.lr=.nan",
            "backbone.device=tpu",
            "seed=" + "[" * DEEP,
        ),
        *("method.beta_phi=-1", "method.guide=normal", "method.top_k=0", "adapter={{}}x", "method.form=wide"),
    ],
}
BLANK = [
    "--out",
    "--model",
    "--task",
    "--device",
    "--method",
    "--data-dir",
    "--test-file",
    "--config",
    "--revision",
]

# Files of rows that training and prediction refuse.
FILES = [
    "no-answer.jsonl",
    "no-question.jsonl",
    "same-id.jsonl",
    "empty.jsonl",
    "one-label.jsonl",
    "broken.jsonl",
    "deep.jsonl",
    "deep.json",
    "binary.jsonl",
    "latin.jsonl",
    "numbers.jsonl",
    "object.json",
    "some-choices.jsonl",
    "no-header.csv",
    "empty.csv",
    "rows.txt",
    "rows.parquet",
    "only-spaces.csv",
    "empty-list.json",
]
UNREADABLE = set(FILES) - {"no-answer.jsonl", "one-label.jsonl", "some-choices.jsonl"}

OTHERS = (
    """
nothing
--nothing
train
evaluate
predict
inspect
prune
microworld nothing
methods extra
methods --what
train --stepz 1
TRAIN --lr
TRAIN extra
train --resume --out {new}
train --resume --out {foreign}
train --resume --out {empty}
train --resume --out {run} --lr 0.5
train --resume --out {run} --method lora
train --resume --overwrite --out {run}
train --resume --out {file}
train --resume --out {spoilt}
evaluate {absent}
evaluate {file}
evaluate {empty}
evaluate {foreign}
evaluate {backbone}
evaluate {stopped}
evaluate {spoilt}
evaluate {run} --split tset
evaluate {run} --split validation
evaluate {run} --samples -1
evaluate {run} --samples x
evaluate {run} --samples 1000000000
evaluate {run} --task boolqq
evaluate {run} --task {absent}.csv
evaluate {run} --limit 0
evaluate {run} --test-file {absent}.csv
evaluate {run} --out {run}
evaluate {run} --out {file}
evaluate {run} --out {foreign}
evaluate {run} --out /proc/foo
evaluate {run} --labels letters
evaluate {run} --model {absent}
evaluate {run} --model {other}
evaluate {run} --device tpu
evaluate {run} --task {no-answer.jsonl}
evaluate {run} --task {classes.jsonl}
evaluate {run} --text-column nope --task {renamed.jsonl}
predict {run}
predict {run} --input {rows}
predict {run} --output {new}.jsonl
predict {run} --input {rows} --output {rows}
predict {run} --input {rows} --output {there.jsonl}
predict {run} --input {rows} --output {rows} --overwrite
predict {run} --input {rows} --output {empty}
predict {run} --input {rows} --output {new}.txt
predict {run} --input {rows} --output {new}
predict {run} --input {rows} --output {run}/metrics.jsonl
predict {absent} --input {rows} --output {new}.jsonl
predict {run} --input {rows} --output {run}/predictions.jsonl --overwrite
predict {run} --input {rows} --output /proc/foo/x.jsonl
predict {spoilt} --input {rows} --output {new}.jsonl
predict {stopped} --input {rows} --output {new}.jsonl
predict {run} --input {empty} --output {new}.jsonl
predict {run} --input {absent}.jsonl --output {new}.jsonl
predict {run} --input {rows} --output {new}.jsonl --seed -1
predict {run} --input {rows} --output {new}.jsonl --seed 99999999999999999999999
predict {run} --input {rows} --output {new}.jsonl --seed x
predict {run} --input {rows} --output {new}.jsonl --samples -1
predict {run} --input {rows} --output {new}.jsonl --samples 99999999999999999999999
predict {run} --input {rows} --output {new}.jsonl --samples x
predict {run} --input {rows} --output {new}.jsonl --device tpu
predict {run} --input {rows} --output {new}.jsonl --model {other}
predict {run} --input {rows} --output {new}.jsonl --text-column nope
inspect {run} --rows 0
inspect {run} --rows x
inspect {run} --samples 1
inspect {run} --tau -1
inspect {run} --tau nan
inspect {run} --rows 99999999999999999999999
inspect {run} --samples 99999999999999999999999
inspect {run} --device tpu
inspect {run} --model {absent}
inspect {absent}
inspect {spoilt}
inspect {stopped}
inspect {foreign}
inspect {reported}
prune {run}
prune {run} --out {run}
prune {run} --out {run} --overwrite
prune {run} --out {foreign}
prune {run} --out {new} --tolerance -1
prune {run} --out {new} --tolerance 2
prune {run} --out {new} --tolerance nan
prune {run} --out {new} --tolerance abc
prune {run} --out {new} --rows 0
prune {absent} --out {new}
prune {spoilt} --out {new}
prune {run} --out {file}
prune {run} --out /proc/foo
prune {run} --out {new} --device tpu
params
params --arch gpt-5
params --arch qwen2.5-7b --model microworld
params --model {absent}
params --arch qwen2.5-7b --method bora
params --arch qwen2.5-7b --set adapter.r=0
params --arch qwen2.5-7b --set method.gate=1
params --arch qwen2.5-7b --set adapter.r=100000000
params --arch qwen2.5-7b --set adapter.target_modules=[qproj]
params --model {empty}
tasks nothing
tasks micro-wgs --rows -1
tasks {absent}.jsonl
tasks {foreign}
tasks boolq --data-dir {empty}
demo --steps 0
demo --steps -1
demo --steps x
demo --seed -1
demo --seed 99999999999999999999999
demo --out {file}
demo --out {foreign}
demo --out /proc/foo
demo --out {new} --model {absent}
demo --out {finished-demo}
demo --out {new} --task boolqq
demo --out {new} --device tpu
demo --out {backbone}
microworld build
microworld build --out {foreign}
microworld build --out {file}
microworld build --out {new} --hidden-size 33
microworld build --out {new} --hidden-size 0
microworld build --out {new} --hidden-size -32
microworld build --out {new} --hidden-size x
microworld build --out {new} --steps 0
microworld build --out {new} --layers 0
microworld build --out {new} --seed -1
microworld build --out {new} --card {rows}
microworld card --out {rows}
microworld card --out {empty}
microworld card --out {new} --seeds 0
microworld card --out {new} --model {absent}
microworld card --out /proc/foo/card.md
""".strip()
    .replace("TRAIN", TRAIN.strip())
    .splitlines()
)

CASES = [
    *(f"{TRAIN}{option}={value}" for option, values in VALUES.items() for value in values),
    *(f"{TRAIN}--task {{{name}}}" for name in FILES),
    *(f"predict {{run}} --input {{{name}}} --output {{new}}.jsonl" for name in sorted(UNREADABLE)),
    *OTHERS,
]
EMPTY = [
    *([*TRAIN.split(), f"{option}="] for option in BLANK),
    ["evaluate", ""],
    ["evaluate", "{run}", "--out", ""],
    ["predict", "{run}", "--input", "", "--output", "{new}.jsonl"],
    ["predict", "{run}", "--input", "{rows}", "--output", ""],
    ["prune", "{run}", "--out", " "],
    ["inspect", "{run}", "--text", "the fox", "--text", " "],
    ["tasks", ""],
    ["demo", "--out", ""],
    ["params", "--arch", ""],
    ["microworld", "build", "--out", ""],
]


def write_bad_files(folder: Path) -> None:
    rows = questions()

    def without(key: str) -> list[dict]:
        return [{k: v for k, v in row.items() if k != key or i != 2} for i, row in enumerate(rows)]

    offered = {"id": "x", "question": "?", "choices": ["a", "b"], "answer": 0}
    write_rows(folder / "no-answer.jsonl", without("answer"))
    write_rows(folder / "no-question.jsonl", without("question"))
    write_rows(folder / "same-id.jsonl", [{**row, "id": "one"} for row in rows])
    write_rows(folder / "one-label.jsonl", [row for row in rows if row["answer"] == "yes"])
    write_rows(folder / "some-choices.jsonl", [*rows, offered])
    write_rows(folder / "classes.jsonl", [{**row, "answer": row["answer"] + "!"} for row in rows])
    write_rows(folder / "renamed.jsonl", [{"text": row["question"], "label": row["answer"]} for row in rows])
    write_rows(folder / "there.jsonl", rows)
    texts = {
        "empty.jsonl": "",
        "broken.jsonl": '{"question": "is the fox red ?", "answer": "yes"}\n{"question\n',
        "deep.jsonl": '{"question": ' + "[" * DEEP + "]" * DEEP + "}\n",
        "deep.json": "[" * DEEP + "]" * DEEP,
        "numbers.jsonl": "1\n2\n",
        "object.json": '{"question": "?"}',
        "empty-list.json": "[]",
        "no-header.csv": "is the fox red ?\nis the hen red ?\n",
        "empty.csv": "",
        "only-spaces.csv": "  \n \n",
        "rows.txt": "is the fox red ? yes\n",
        "rows.parquet": "no parquet",
        "list.yaml": "- 1\n",
        "broken.yaml": "train: [\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "binary.jsonl").write_bytes(bytes(range(256)) * 8)
    (folder / "latin.jsonl").write_bytes('{"question": "Käse?", "answer": "ja"}\n'.encode("latin-1"))


@pytest.fixture(scope="module")
def world(place: Place, finished: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Good and bad files, runs and folders, by the names that the table uses."""
    root = tmp_path_factory.mktemp("bad")
    write_bad_files(root)
    for name in ("empty", "foreign", "finished-demo"):
        (root / name).mkdir()
    (root / "foreign" / "notes.txt").write_text("mine")
    (root / "finished-demo" / "index.html").write_text("mine")
    (root / "file").write_text("mine")
    for name in ("run", "spoilt", "stopped", "reported"):
        shutil.copytree(finished, root / name)
    with (root / "spoilt" / "guide.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    for name in ("manifest.json", "guide.safetensors"):
        (root / "stopped" / name).unlink()
    (root / "reported" / "report").mkdir()
    (root / "reported" / "report" / "index.html").write_text("mine")
    save_backbone(root / "other", seed=1)
    known = {path.name: path for path in root.iterdir()}
    return {
        **known,
        "root": root,
        "absent": root / "absent",
        "new": root / "new",
        "rows": place.rows,
        "backbone": place.backbone,
    }


def snapshot(*folders: Path) -> dict[str, tuple[int, int]]:
    found = {}
    for folder in folders:
        for path in folder.rglob("*"):
            status = path.stat()
            found[str(path)] = (status.st_size, status.st_mtime_ns if path.is_file() else 0)
    return found


@pytest.fixture
def refused(
    world: dict[str, Path], bara: Bara, monkeypatch: pytest.MonkeyPatch
) -> Callable[[list[str]], None]:
    """Return what runs arguments, and looks at what was said and at the disk."""

    def run(arguments: list[str]) -> None:
        monkeypatch.chdir(world["empty"])
        folders = (world["root"], world["rows"].parent)
        before = snapshot(*folders)
        for name, path in world.items():
            arguments = [argument.replace(f"{{{name}}}", str(path)) for argument in arguments]
        result = bara(*arguments)
        changed = snapshot(*folders).items() ^ before.items()
        shutil.rmtree(world["new"], ignore_errors=True)
        assert result.code == 2, result.out + result.err
        assert_one_sentence(result)
        assert not changed

    return run


@pytest.mark.parametrize("line", CASES, ids=lambda line: line[:80])
def test_refused(line: str, refused: Callable[[list[str]], None]) -> None:
    refused(line.split())


@pytest.mark.parametrize("arguments", EMPTY, ids=lambda arguments: " ".join(arguments)[-60:])
def test_empty_arguments(arguments: list[str], refused: Callable[[list[str]], None]) -> None:
    refused(arguments)


def test_the_table_is_long_enough_and_names_no_case_twice() -> None:
    assert len(set(CASES)) == len(CASES)
    assert len(CASES) + len(EMPTY) >= 180
