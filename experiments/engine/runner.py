"""Runs by name and their results in one JSON file, for studies that are no experiments of arms and tasks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bara_pyro.runs.store import write_json
from experiments.engine.sweep import Job, sweep

RESULTS = Path(__file__).parents[1] / "results"


def run_all(jobs: Mapping[str, Mapping[str, Any]], folder: Path, results: Path) -> dict[str, Any]:
    """Train and evaluate each job, one after the other; what is done is not repeated.

    Args:
        jobs: name -> settings as dotted keys (see `bara_pyro.runs.config.load_config`).
        folder: of the runs, see `experiments.engine.sweep`.
        results: JSON file: name -> record of the run.

    Returns:
        The content of `results`.
    """
    records = sweep([Job(settings) for settings in jobs.values()], folder, launcher="serial")
    reports = dict(zip(jobs, records, strict=True))
    write_json(results, reports)
    return reports
