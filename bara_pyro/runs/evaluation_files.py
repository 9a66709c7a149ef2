"""Read the files of an evaluation: its scores and its predictions."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

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


def mixture(log_probs: Tensor) -> Tensor:
    """Return `log mean_s p(reply | prompt, draw s)`, `n`, from `S x n`; a draw is for a whole reply."""
    return log_probs.logsumexp(0) - math.log(len(log_probs))


def reply_scores(log_probs: Tensor, tokens: Sequence[int]) -> dict[str, float]:
    """Score replies under S draws.

    Args:
        log_probs: float64, `S x n`: `log p(reply | prompt, draw)`, in nats.
        tokens: number of tokens of each of the n replies, including the one that ends it.

    Returns:
        `nll`: nats per token, `-sum(log mixture) / sum(tokens)`; `perplexity`: its exponential; `nll_reply`:
        nats per reply; `n` and `tokens`: numbers of replies and tokens.
    """
    total = float(-mixture(log_probs).sum())
    nll = total / sum(tokens)
    perplexity = math.exp(nll) if nll < 700 else math.inf  # exp overflows above 709
    return {
        "nll": nll,
        "perplexity": perplexity,
        "nll_reply": total / len(tokens),
        "n": len(tokens),
        "tokens": sum(tokens),
    }


def reply_rows(split: EncodedReplies, log_probs: Mapping[int, Tensor]) -> list[Json]:
    """Return one line per reply: its tokens and, for each number of draws, its log-probability in nats."""
    mixtures = {str(s): mixture(draws) for s, draws in log_probs.items()}
    return [
        {
            "id": row_id,
            "tokens": count,
            "log_prob": {s: float(values[i]) for s, values in mixtures.items()},
        }
        for i, (row_id, count) in enumerate(zip(split.ids, split.counts, strict=True))
    ]
