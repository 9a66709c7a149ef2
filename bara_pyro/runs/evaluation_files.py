"""The files of an evaluation, read back: its scores and what was said of each row."""

from pathlib import Path

from bara_pyro.errors import CheckpointError
from bara_pyro.runs.manifest import METRICS, PREDICTIONS
from bara_pyro.types import Json
from bara_pyro.untrusted.files import read_json, read_jsonl
from bara_pyro.untrusted.schemas import MetricsFile, PredictionLine


def read_scores(folder: Path, schema: type[MetricsFile] = MetricsFile) -> Json:
    """Return what `metrics.json` of a folder holds; a `CheckpointError` where it is missing or damaged."""
    scores: Json = read_json(folder / METRICS, schema)
    return scores


def read_predictions(folder: Path) -> list[Json]:
    """Return the lines of `predictions.jsonl` of a folder, all with the same draws and classes, or replies.

    Raises:
        CheckpointError: the file is damaged, or its lines are not of one evaluation.
    """
    path = folder / PREDICTIONS
    lines = read_jsonl(path, PredictionLine)
    for number, line in enumerate(lines, 1):
        shape = _shape(line)
        if shape != _shape(lines[0]) or (shape and line.get("label", -1) >= min(shape.values())):
            raise CheckpointError(f"{path} is damaged, line {number} is not like the first: evaluate again.")
    return lines


def _shape(line: Json) -> dict[str, int]:
    """Return the number of classes by the number of draws; nothing of a reply."""
    return {samples: len(probs) for samples, probs in line.get("probs", {}).items()}
