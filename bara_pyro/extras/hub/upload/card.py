"""Write the model card of a run: method, data, scores, limits, how to load it."""

from dataclasses import dataclass

from huggingface_hub import EvalResult, ModelCardData

from bara_pyro.data.registry import SOURCES
from bara_pyro.lm.loading import DTYPES
from bara_pyro.methods import METHODS
from bara_pyro.metrics.base import METRICS, Metric
from bara_pyro.report.table import Column, Table, markdown
from bara_pyro.runs.config import RunConfig
from bara_pyro.types import Json


@dataclass(frozen=True)
class Published:
    """Facts of a run for its card, without private names.

    Attributes:
        name: name on the hub, `user/model`.
        base: hub name of the language model, or None if unknown.
        config: the settings of the run.
        stored: content of the settings file: task, labels, number of training rows.
        report: content of metrics.json.
        peft: "LORA" or "BARA" if PEFT reads the folder, else "".
        figure: file name of the reliability diagram.
        temperature: temperature that divides the answers' logits, or None.
        steps: number of training steps.
        lr: peak learning rate.
    """

    name: str
    base: str | None
    config: RunConfig
    stored: Json
    report: Json
    peft: str
    figure: str
    temperature: float | None
    steps: int
    lr: float


def card(run: Published, license_name: str | None = None) -> str:
    """Return the card in Markdown, with its metadata as YAML at the top."""
    parts = [_what(run), _load(run), _data(run), _scores(run), _limits(run), _training(run)]
    return f"---\n{_metadata(run, license_name).to_yaml()}\n---\n\n" + "\n".join(parts)


def best_draws(report: Json) -> str:
    """Return the largest number of draws that was evaluated, which readers should use."""
    return max(report["metrics"], key=int)


def published(report: Json) -> list[Metric]:
    """Return the metrics of the card's table, without those that need the true probabilities."""
    scores = report["metrics"][best_draws(report)]
    return [m for m in METRICS.values() if m.heading and not m.of_truth and m.name in scores]


def _metadata(run: Published, license_name: str | None) -> ModelCardData:
    source, split = SOURCES.get(run.report["task"]), run.report["split"]
    scores = run.report["metrics"][best_draws(run.report)]
    results = [
        EvalResult(
            task_type="text-classification",
            dataset_type=source.hub if source else run.report["task"],
            dataset_name=run.report["task"],
            dataset_split=split,
            metric_type=metric.name,
            metric_name=metric.title,
            metric_value=round(scores[metric.name], 4),
        )
        for metric in published(run.report)
        if scores[metric.name] is not None  # infinite
    ]
    return ModelCardData(
        library_name="peft" if run.peft else "bara-pyro",
        base_model=run.base,
        datasets=source.hub if source else None,
        license=license_name,
        pipeline_tag="text-generation",
        tags=["bara-pyro", run.report["method"], "calibration", *(["lora"] if run.peft == "LORA" else [])],
        model_name=run.name,
        eval_results=results,
    )


def _what(run: Published) -> str:
    summary = METHODS.find(run.report["method"]).summary
    base = run.base or run.config.backbone.name
    return (
        f"# {run.name}\n\n{summary}. An adapter for the language model `{base}`, fine-tuned on "
        f"`{run.report['task']}` with `bara_pyro` (`pip install bara-pyro`). Its answers are probabilities, "
        "averaged over draws from the posterior.\n"
    )


def _load(run: Published) -> str:
    model = f'"{run.base}"' if run.base else '"FOLDER"'
    packaged = run.config.backbone.name == "microworld"
    where = "" if packaged else f"backbone={model}, "
    lines = [
        "## How to load it",
        "",
        *([] if run.base or packaged else ["`FOLDER` is where you have the language model.", ""]),
        "The whole posterior, with bara_pyro:",
        "",
        "```python",
        "from pathlib import Path",
        "",
        "import bara_pyro as bp",
        "from huggingface_hub import snapshot_download",
        "",
        f'folder = Path(snapshot_download("{run.name}"))',
        f"run = bp.load_system(folder, {where}with_rows=False)",
        f'answers = bp.predict(run, "rows.jsonl", samples=10)  # columns: {_columns(run)}',
        "print(answers.rows[0])",
        "```",
        "",
    ]
    if run.peft:
        dtype = run.config.backbone.dtype if run.config.backbone.dtype in DTYPES else "bfloat16"
        merged = (
            "with the gates at their means or at one draw" if run.peft == "BARA" else "its posterior mean"
        )
        lines += [
            f"In PEFT, {merged}:",
            "",
            "```python",
            *(["import bara_pyro.peft"] if run.peft == "BARA" else []),
            "from peft import PeftModel",
            "from transformers import AutoModelForCausalLM",
            *(["", "from bara_pyro.microworld import backbone_path"] if packaged else []),
            "",
            f"lm = AutoModelForCausalLM.from_pretrained({'backbone_path()' if packaged else model}, "
            f'dtype="{dtype}")',
            f'model = PeftModel.from_pretrained(lm, "{run.name}")',
            *(["model.sample(seed=0)  # one draw; None: the means again"] if run.peft == "BARA" else []),
            "```",
            "",
        ]
    if run.peft and run.temperature is not None:
        lines += [
            f"PEFT does not apply the temperature: divide the answers' logits by {run.temperature:.4g}. "
            "bara_pyro does this for you.",
            "",
        ]
    return "\n".join(lines)


def _columns(run: Published) -> str:
    """Return the names of the columns of a question."""
    columns, source = run.stored.get("columns"), SOURCES.get(run.report["task"])
    named = (
        [columns[key] for key in ("context", "text", "choices") if columns.get(key)]
        if columns
        else ["question"]
    )
    return ", ".join(source.columns if source else named)


def _data(run: Published) -> str:
    names = run.stored.get("names") or run.stored["labels"]
    lines = [
        "## Data",
        "",
        f"- `{run.report['task']}`: {run.stored['num_data']:,} training rows, scored on the "
        f"{run.report['split']} rows.",
        f"- Classes: {', '.join(map(str, names))}.",
        *(f"- {note[:1].upper()}{note[1:]}." for note in run.report["notes"]),
        "",
    ]
    return "\n".join(lines)


def _scores(run: Published) -> str:
    rows = [{"S": s if int(s) else "0 (mean)", **scores} for s, scores in run.report["metrics"].items()]
    majority = run.report["majority_class"]
    scores = [Column(m.name, m.title, m.unit, f".{m.digits}f") for m in published(run.report)]
    columns = [Column("S", "draws S"), *scores, Column("n", "rows", format=",d")]
    return (
        f"## Scores\n\n{markdown(Table(columns, rows))}\n"
        f"Always answering {majority['label']!r} has an accuracy of {majority['acc']:.1f} %. These are the "
        f"scores of one run (seed {run.report['seed']}); another seed gives other scores.\n\n"
        f"![Accuracy against confidence]({run.figure})\n"
    )


def _limits(run: Published) -> str:
    gap = run.report["metrics"][best_draws(run.report)]["ece"]
    return "\n".join(
        [
            "## Limits",
            "",
            f"- The ECE is {gap:.1f} points on rows like those above; calibration on other data was not "
            "measured.",
            "- It answers questions with the classes above; it was not trained to write text.",
            "- Its uncertainty comes from the adapter's posterior and does not include gaps in the knowledge "
            "of the frozen language model.",
            "- It needs the language model that it was trained on; bara_pyro checks this, PEFT does not.",
            "- It inherits the biases and licences of the language model and of the data.",
            "",
        ]
    )


def _training(run: Published) -> str:
    train, adapter = run.config.train, run.config.adapter
    counts, versions = run.report["parameters"], run.report["environment"]["versions"]
    used = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"## Training\n\n{run.steps:,} steps of {train.batch_size} rows, peak learning rate {run.lr:g}; "
        f"rank {adapter.r}, alpha {adapter.lora_alpha:g}; {counts['trainable']:,} trainable parameters "
        f"and {counts['frozen']:,} frozen ones in {run.config.backbone.dtype}. All settings are in "
        f"`bara_config.json`. {used}.\n"
    )
