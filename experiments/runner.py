"""Run many configurations one after the other, skipping those that are done; results as one JSON file.

A run that was interrupted goes on from its checkpoint, a sweep from its first unfinished run.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bara_pyro.config import load_config
from bara_pyro.errors import TrainingError
from bara_pyro.evaluate import METRICS, evaluate_system
from bara_pyro.store import read_json, write_json
from bara_pyro.system import build_system
from bara_pyro.train import train

RESULTS = Path(__file__).parent / "results"


def run_all(jobs: Mapping[str, Mapping[str, Any]], folder: Path, results: Path) -> dict[str, Any]:
    """Train and evaluate each job.

    Args:
        jobs: name -> settings as dotted keys (see `bara_pyro.config.load_config`).
        folder: each job has its run in `folder / name`.
        results: JSON file: name -> what metrics.json of the run holds; rewritten after every job.

    Returns:
        The content of `results`.
    """
    reports = {}
    for number, (name, settings) in enumerate(jobs.items(), start=1):
        reports[name] = _portable(_one(folder / name, settings))
        write_json(results, reports)
        scores = {s: {k: round(v[k], 3) for k in ("acc", "ece", "nll")} for s, v in _scores(reports[name])}
        print(f"[{number}/{len(jobs)}] {name}: {scores or reports[name]}", flush=True)
    return reports


def _portable(report: dict[str, Any]) -> dict[str, Any]:
    """Keep the names of local folders and drop where they lie."""
    settings = report.get("settings", {})
    local = {key: Path(settings[key]).name for key in ("backbone.name", "task.data_dir") if settings.get(key)}
    return {**report, "settings": {**settings, **local}}


def _scores(report: dict[str, Any]) -> list[tuple[str, dict[str, float]]]:
    return list(report.get("metrics", {}).items())


def _one(out: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    if (out / METRICS).exists():
        return read_json(out / METRICS)
    system = build_system(load_config(overrides=dict(settings)))
    try:
        train(system, out, resume=True)
    except TrainingError as error:
        return {"failed": str(error), "method": system.config.method.name}
    return evaluate_system(system, out, settings=dict(settings))
