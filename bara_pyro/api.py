"""Train and evaluate runs in Python, with the names of the command line's options."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bara_pyro.data import Task
from bara_pyro.data.reply_tasks import ReplyTask
from bara_pyro.data.tables import Data
from bara_pyro.errors import ConfigError
from bara_pyro.lm.backbone import Backbone
from bara_pyro.moved import warn_renamed
from bara_pyro.runs.assignments import by_key
from bara_pyro.runs.config import load_config
from bara_pyro.runs.evaluate import evaluate_system
from bara_pyro.runs.folder import fitted
from bara_pyro.runs.manifest import check_free, is_run
from bara_pyro.runs.predict import rows_asked
from bara_pyro.runs.rows import rows_given
from bara_pyro.runs.steps import OnStep
from bara_pyro.runs.stored import resumed
from bara_pyro.runs.system import System, build_system
from bara_pyro.runs.train import train as fit
from bara_pyro.types import Json

# Settings for which `train` has a separate argument.
ARGUMENTS = {"task.name": "task", "backbone.name": "model", "method.name": "method"}


def train(
    *,
    task: Data | Task | ReplyTask | None = None,
    method: str | Json | None = None,
    model: str | Path | Backbone | None = None,
    out: str | Path,
    resume: bool = False,
    on_step: OnStep | None = None,
    on_split_half: OnStep | None = None,
    on_rehearsal: OnStep | None = None,
    **settings: object,
) -> System:
    """Fine-tune a language model on a task and write the run to a folder, like `bara train` without scores.

    Args:
        task: name of a task ("micro-wgs" by default), a file of rows, rows (a DataFrame, a Dataset, a list of
            dictionaries), or the result of `task_from_rows` or `replies_from_rows`.
        method: name of a method ("bara-gate" by default), or its settings: `{"name": "bara-gate",
            "beta_theta": 1e-4}`.
        model: "microworld" (the default), a Hugging Face folder, a hub name, or a `Backbone`, for example
            from `load_backbone`. If the `Backbone` has no name, read the run with
            `load_system(out, backbone=...)`.
        out: folder of the run.
        resume: continue the run in `out` from its last checkpoint; a finished run is only loaded. The run
            keeps its settings: you need not repeat them, and other values are refused.
        on_step: called after each step with the number of steps done and the parts of the loss.
        on_split_half: the same for the steps of split-half calibration.
        on_rehearsal: old name of `on_split_half`.
        settings: all other settings, by the name of the command-line option (`lr=1e-4` for `--lr 1e-4`) or by
            dotted key.

    Returns:
        The fitted run, as `load_system(out)` loads it.

    Raises:
        ConfigError: a setting is unknown or out of range, `out` holds a run and `resume` is False, or a
            resumed run was started with another setting.
        BaraError: see `bara_pyro.runs.system.build_system` and `bara_pyro.runs.train.train`.

    Examples:
        >>> import bara_pyro as bp
        >>> run = bp.train(task="micro-wgs", method="bara-gate", steps=20, limit=40, out="runs/first")
        >>> scores = bp.evaluate(run)["metrics"]["10"]  # over 10 draws of the posterior
        >>> answers = bp.predict(run, [{"question": row.question} for row in run.task.test[:2]])
        >>> [sorted(answer["probs"]) for answer in answers.rows]
        [['A', 'B'], ['A', 'B']]

        Train on your own rows with settings of the method, then resume the run:

        >>> names = ("summer", "winter")
        >>> rows = [{"text": f"in {name} {i}", "label": name} for name in names for i in range(10)]
        >>> how = {"method": {"name": "bara-gate", "beta_theta": 1e-4}, "steps": 5, "out": "runs/seasons"}
        >>> run = bp.train(task=rows, **how)  # or a DataFrame, a datasets.Dataset
        >>> again = bp.train(task=rows, out="runs/seasons", resume=True)  # finished, so only loaded
        >>> again.task.names
        ('summer', 'winter')
    """
    if on_rehearsal is not None:
        warn_renamed("on_rehearsal", "on_split_half")
        on_split_half = on_rehearsal
    check_free(Path(out), resume)
    typed: dict[str, Any] = {**({} if method is None else {"method": method}), **by_key(settings)}
    for key, argument in ARGUMENTS.items():
        if key in typed:
            raise ConfigError(f"{key}={typed[key]!r} has its own argument: use {argument}=.")
    if isinstance(task, str | Path):
        typed["task.name"] = str(task)
    elif isinstance(task, ReplyTask):
        typed.setdefault("task.likelihood", "completion")
    backbone = model if isinstance(model, Backbone) else None
    if isinstance(model, Backbone):
        of_model = {f"backbone.{key}": value for key, value in model.settings.items()}
        for key, has in of_model.items():
            if (requested := typed.get(key, has)) != has:
                name = key.partition(".")[2]
                raise ConfigError(
                    f"{name}={requested!r}, but the given language model has {name} {has}: leave {name} out, "
                    "or load the model with it."
                )
        typed |= of_model
        typed.setdefault("backbone.shortcuts", sorted(model.shortcuts))
    elif isinstance(model, str | Path):
        typed["backbone.name"] = str(model)
    elif model is not None:
        raise ConfigError(
            f"model is a {type(model).__name__}: pass a name, a folder, or bp.Backbone(model, tokenizer)."
        )
    started = None
    if resume and is_run(Path(out)):
        with_rows = not isinstance(task, str | Path | None)
        started, config = resumed(Path(out), None, typed, [], with_rows=with_rows)
    else:
        config = load_config(overrides=typed)
    rows = None if isinstance(task, str | Path | None) else rows_given(config, task, typed.keys())
    run = build_system(config, backbone, rows, started=started)
    fit(run, Path(out), resume=resume, on_step=on_step, on_split_half=on_split_half)
    return run


def from_peft(
    adapter: str | Path,
    *,
    task: Data | Task | None = None,
    method: str | Json | None = None,
    model: str | Path | Backbone | None = None,
    out: str | Path,
    **settings: Any,
) -> System:
    """Put a posterior around a LoRA that PEFT trained, and write a run, like `bara train --from-adapter`.

    A and B are kept. "bara-gate" (the default) trains gates Phi over them, "laplace" and "tfb" fit a
    posterior of the weights without training, "temperature" fits a temperature on validation rows, and "lora"
    changes nothing.

    Args:
        adapter: a folder that PEFT's `save_pretrained` wrote, or a hub name: LoRA or rsLoRA in safetensors.
        task: rows, see `train`.
        method: one of these methods, or its settings.
        model: the language model; by default the one that the adapter names.
        out: folder of the run, which no longer needs the adapter.
        settings: as for `train`.

    Returns:
        The fitted run, as for `train`.

    Raises:
        BaraError: the adapter uses an option of PEFT that is not supported; otherwise see `train`.

    Examples:
        >>> import bara_pyro as bp
        >>> lora = bp.train(task="micro-wgs", method="lora", steps=5, limit=40, out="runs/lora")
        >>> run = bp.from_peft("runs/lora", task="micro-wgs", method="laplace", limit=40, out="runs/mine")
        >>> run.config.method.name  # a run of LoRA is a folder that PEFT reads, and so an adapter
        'laplace'
    """
    return train(task=task, method=method, model=model, out=out, from_adapter=str(adapter), **settings)


def evaluate(
    run: System | str | Path,
    data: Data | Task | None = None,
    *,
    samples: int | Sequence[int] | None = None,
    split: str | None = None,
    out: str | Path | None = None,
) -> Json:
    """Score a fitted run on its test rows, as `bara train` and `bara evaluate` do.

    Args:
        run: the result of `train` or `load_system`, or the run's folder.
        data: other labelled rows, all of which are scored: a file, DataFrame, Dataset or list of
            dictionaries, read as by `predict`; or a task, such as `load_task("micro-far")`.
        samples: numbers S of posterior draws, 0 for the posterior mean; by default the run's (0 and 10).
        split: "test" or "validation"; by default the run's.
        out: folder for `metrics.json` and `predictions.jsonl`; by default nothing is written.

    Returns:
        The contents of `metrics.json`, see `bara_pyro.runs.evaluate.evaluate_system`: the scores are in
        `metrics`, with S as a string key; `bara_pyro.metrics.evaluate` names them and their
        units.

    Raises:
        ConfigError: a value is out of range.
        CheckpointError: the folder is not a finished run.
        DataError: the split has no rows, or the rows cannot be read.

    Examples:
        >>> import bara_pyro as bp
        >>> run = bp.train(task="micro-wgs", method="bara-gate", steps=5, limit=40, out="runs/first")
        >>> report = bp.evaluate(run, samples=[0, 4])
        >>> report["task"], report["metrics"]["4"]["n"]
        ('micro-wgs', 40)
        >>> rows = [{"question": row.question, "answer": "AB"[row.label]} for row in run.task.test[:9]]
        >>> bp.evaluate("runs/first", rows, samples=4)["metrics"]["4"]["n"]
        9
    """
    run = fitted(run, with_rows=data is None)
    if data is not None:
        run = replace(run, task=rows_asked(run, data))
    numbers = samples if isinstance(samples, Sequence | None) and not isinstance(samples, str) else [samples]
    settings = {"predict.samples": numbers, "task.evaluate_on": split}
    changes = {key: value for key, value in settings.items() if value is not None}
    config = load_config(overrides=changes, base=run.config)
    return evaluate_system(run.with_config(config), None if out is None else Path(out))
