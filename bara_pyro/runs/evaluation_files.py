"""The files of an evaluation: its scores and its predictions."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from bara_pyro.data import EncodedSplit
from bara_pyro.data.replies import EncodedReplies
from bara_pyro.errors import CheckpointError
from bara_pyro.runs.manifest import METRICS, PREDICTIONS
from bara_pyro.types import Json
from bara_pyro.untrusted.files import read_json, read_jsonl
from bara_pyro.untrusted.schemas import MetricsFile, PredictionLine


def read_scores(folder: Path, schema: type[MetricsFile] = MetricsFile) -> Json:
    """Return the content of `metrics.json` in a folder; a `CheckpointError` if it is missing or damaged."""
    scores: Json = read_json(folder / METRICS, schema)
    return scores


def read_predictions(folder: Path) -> list[Json]:
    """Return the lines of `predictions.jsonl` in a folder, of answers or of replies.

    Raises:
        CheckpointError: the file is damaged, or its lines differ in their draws or classes.
    """
    path = folder / PREDICTIONS
    lines = read_jsonl(path, PredictionLine)
    for number, line in enumerate(lines, 1):
        shape = _shape(line)
        if shape != _shape(lines[0]) or (shape and line.get("label", -1) >= min(shape.values())):
            raise CheckpointError(
                f"{path} is damaged, as line {number} differs in form from the first: evaluate again."
            )
    return lines


def is_evaluated(folder: Path, config_hash: str) -> bool:
    """Return whether a folder has the predictions of an evaluation with these settings."""
    if not (folder / METRICS).exists() or read_scores(folder).get("config_hash") != config_hash:
        return False
    return bool(read_predictions(folder))


def log_probs_and_labels(lines: Sequence[Json], samples: str) -> tuple[Tensor, Tensor]:
    """Return lines of `read_predictions`, of a task with classes, as tensors.

    They are log-probabilities under this number of draws, float64, `n x C`, and labels, long, `n`; -1 for a
    row without an answer.
    """
    probs = torch.tensor([line["probs"][samples] for line in lines], dtype=torch.float64)
    return probs.log(), torch.tensor([line["label"] for line in lines])


def _shape(line: Json) -> dict[str, int]:
    """Return number of draws -> number of classes; empty for a reply."""
    return {samples: len(probs) for samples, probs in line.get("probs", {}).items()}


def reply_rows(split: EncodedReplies, log_probs: Mapping[str, Tensor]) -> list[Json]:
    """Return one line per reply: its tokens and, for each number of draws, its log-probability in nats."""
    return [
        {
            "id": row_id,
            "tokens": count,
            "log_prob": {s: float(values[i]) for s, values in log_probs.items()},
        }
        for i, (row_id, count) in enumerate(zip(split.ids, split.counts, strict=True))
    ]


def answer_rows(
    split: EncodedSplit,
    predictive: dict[int, Tensor],
    epistemic: dict[int, Tensor],
    names: Sequence[str],
    clusters: Mapping[str, str],
) -> list[Json]:
    """Return one line per row; `label` is the index of the right class in `classes` of metrics.json."""
    return [
        {
            "id": row_id,
            "label": split.labels[i],
            **({"answer": names[split.labels[i]]} if names and split.labels[i] >= 0 else {}),
            **({"cluster": clusters[row_id]} if clusters[row_id] else {}),
            "probs": {str(s): log_probs[i].exp().tolist() for s, log_probs in predictive.items()},
            "epistemic": {str(s): float(values[i]) for s, values in epistemic.items()},
        }
        for i, row_id in enumerate(split.ids)
    ]
