"""What people get wrong, over all commands, and what has to be said: tables for `test_bad_inputs.py`."""

from bara_pyro.cli.architectures import ARCHITECTURES

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
    "--test-file": ["{absent}.jsonl", "{foreign}", "{maybe.jsonl}", "{broken.jsonl}"],
    "--text-column": ["nope"],
    "--label-column": ["nope"],
    "--choices-column": ["nope"],
    "--context-column": ["nope"],
    "--classes": ["maybe"],
    "--config": [
        *("{absent}.yaml", "{foreign}", "{list.yaml}", "{broken.yaml}", "{binary.jsonl}", "{deep.yaml}"),
    ],
    "--out": ["{file}", "{file}/x", "/proc/foo", "/dev/null/x", "{foreign}", "{run}", "{backbone}"],
    "--set": [
        *("train.lr", "=1", "nothing=1", "train.larning_rate=1", "trian.lr=1", "method.gate=1", "train=3"),
        *("method.theta_prior=5", "method.phi_prior=[1]"),
        *("method.phi_prior=gama", "method.init_kappa=-1", "method.theta_prior=halfcauchy", "seed.a=1"),
        *("train.steps=[1", "adapter.r=100000000", "predict.samples=[]", "method=[1]", "method.name=5"),
        *("seed=" + HUGE, "seed=" + "[" * DEEP, "predict.samples=[-1]", "train.lr=.nan"),
        *("method.beta_phi=-1", "method.guide=normal", "method.top_k=0", "adapter={{}}x", "method.form=wide"),
        "backbone.device=tpu",
    ],
}
BLANK = (
    *("--out", "--model", "--task", "--device", "--method", "--data-dir", "--test-file", "--config"),
    "--revision",
)

# Files of rows that training and prediction refuse.
FILES = [
    *("no-answer.jsonl", "no-question.jsonl", "same-id.jsonl", "empty.jsonl", "one-label.jsonl"),
    *("three-labels.jsonl", "some-choices.jsonl", "numbers.jsonl", "broken.jsonl", "deep.jsonl", "deep.json"),
    *("binary.jsonl", "latin.jsonl", "object.json", "empty-list.json", "no-header.csv", "empty.csv"),
    *("only-spaces.csv", "rows.txt", "rows.parquet", "half.jsonl"),
]
UNREADABLE = {*FILES} - {"no-answer.jsonl", "one-label.jsonl", "three-labels.jsonl", "some-choices.jsonl"}


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
TRAIN --steps 5 --epochs 2
TRAIN extra
TRAIN --method lora --one-pass
TRAIN --method temperature --validation-rows 8 --set adapter.calibrated=true
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
predict {run} --input {rows} "is the fox red ?"
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
lm-eval
lm-eval {run}
lm-eval {absent} --tasks boolq
lm-eval {spoilt} --tasks boolq
lm-eval {stopped} --tasks boolq --distribution base
lm-eval {backbone} --tasks boolq
lm-eval {run} --tasks boolq --distribution median
lm-eval {run} --tasks boolq --samples 0
lm-eval {run} --tasks boolq --batch-size 0
lm-eval {run} --tasks boolq --num-fewshot -1
lm-eval {run} --tasks boolq --limit 0
lm-eval {run} --tasks boolq --data-dir {absent}
lm-eval {run} --tasks boolq --include-path {file}
lm-eval {run} --tasks boolq --out {run}/found.json
lm-eval {run} --tasks boolq --out {there.jsonl} --overwrite
lm-eval {run} --tasks boolq --out /proc/foo/x.json
export {run} --out {new} --as foo
export {run} --out {new} --fit foo
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
inspect {run} --tau 0
inspect {run} --text fox
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
# What the sentence has to name, by how a case ends.
SAID = {
    "--config={absent}.yaml": ["absent.yaml"],
    "--device=tpu": ["'tpu'", "cpu"],
    "--model=/no/such/folder": ["/no/such/folder", "microworld"],
    "--out={file}": ["is a file"],
    "--set=method.theta_prior=5": ["method.theta_prior=5 is no prior", "name (gamma, ", "{name: .., ..}"],
    "--out={run}": ["already holds a run", "--resume"],
    "--set=method.theta_prior=halfcauchy": ["theta", "no analytic KL"],
    "--target-modules=(": ["regular expression"],
    "--target-modules=.*query": ["'.*query'", "matches no linear layer"],
    "--target-modules=[qproj]": ["'qproj'", "q_proj"],
    "--task=boolqq": ["'boolqq'", "boolq", ".jsonl"],
    "--task=micro-none": ["'micro-none'", "micro-wgs"],
    "--test-file={broken.jsonl}": ["line 2"],
    "--test-file={maybe.jsonl}": ["maybe.jsonl, row 1", "'maybe'", "no, yes"],
    "--too-long=cut": ["task.too_long", "drop"],
    "--validation-rows=1000": ["1000"],
    "--out {new} --task {no-answer.jsonl}": ["no-answer.jsonl, row 3", "answer"],
    "--out {new} --task {no-question.jsonl}": ["no-question.jsonl, row 3", "question"],
    "--out {new} --task {same-id.jsonl}": ["same-id.jsonl, rows 1 and 2", "'one'"],
    "--out {new} --task {one-label.jsonl}": ["one-label.jsonl", "one answer only", "'yes'"],
    "--out {new} --task {three-labels.jsonl}": ["3 classes", "single tokens for only 2"],
    "--out {new} --task {some-choices.jsonl}": ["some-choices.jsonl, row 41", "choices"],
    "--out {new} --task {empty.jsonl}": ["empty.jsonl is empty"],
    "--out {new} --task {half.jsonl}": ["half.jsonl, row 3", "'question' is not valid Unicode", "'\\ud800'"],
    "predict {run} --input {half.jsonl} --output {new}.jsonl": [
        "half.jsonl, row 3",
        "'question' is not valid",
    ],
    "train --resume --out {run} --lr 0.5": ["another train.lr"],
    "export {run} --out {new} --as foo": ["'--as': 'foo' is not 'lora', the only value: see"],
    "export {run} --out {new} --fit foo": ["'--fit': 'foo' is not one of 'least-squares', 'mean': see"],
    "--steps 5 --epochs 2": ["train.steps=5 and train.epochs=2"],
    "--method lora --one-pass": ["the method 'lora' has none that differ"],
    "--set adapter.calibrated=true": ["(adapter.calibrated)", "fits one of its own"],
    "evaluate {file}": ["is a file, not the folder of a run"],
    "evaluate {run} --model {other}": ["fingerprint", "--model"],
    "evaluate {run} --split tset": ["task.evaluate_on", "'tset'"],
    "evaluate {run} --split validation": ["no validation rows"],
    "predict {run} --input {rows} --output {rows} --overwrite": ["what is read"],
    "predict {run} --input {rows} --output {there.jsonl}": ["was not written by bara"],
    "predict {run} --input {rows} --output {empty}": ["is a folder"],
    "predict {run} --input {rows} --output {new}.txt": ["new.txt", ".jsonl"],
    "params": ["--arch", "--model"],
    "params --arch gpt-5": ["'gpt-5'", *ARCHITECTURES],
    "tasks nothing": ["'nothing'"],
    "inspect {run} --tau 0": ["--tau", "--deep"],
    "inspect {run} --text fox": ["--text", "--deep"],
    "inspect {empty} --text the fox --text  ": ["--text", "empty"],  # said before the run is read
}

EMPTY = [
    *([*TRAIN.split(), f"{option}="] for option in BLANK),
    ["evaluate", ""],
    ["evaluate", "{run}", "--out", ""],
    ["predict", "{run}", "--input", "", "--output", "{new}.jsonl"],
    ["predict", "{run}", "--input", "{rows}", "--output", ""],
    ["lm-eval", "{run}", "--tasks", ""],
    ["lm-eval", "", "--tasks", "boolq"],
    ["prune", "{run}", "--out", " "],
    *(["inspect", run, "--text", "the fox", "--text", " "] for run in ("{run}", "{empty}")),
    ["tasks", ""],
    ["demo", "--out", ""],
    ["params", "--arch", ""],
    ["microworld", "build", "--out", ""],
]
