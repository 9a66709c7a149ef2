"""Measure the diversity of replies and the entropy of their tokens."""

from collections.abc import Iterable, Sequence

import numpy as np

from bara_pyro.errors import ConfigError
from bara_pyro.extras.replies.diversity import distinct_n, self_bleu_diversity
from bara_pyro.types import Fields, Json

FEW = 8  # replies compared for diversity: the time of Self-BLEU is quadratic in their number


def token_entropy(rows: Iterable[Fields]) -> Json:
    """Return the mean entropy per token of replies, in nats.

    `entropy` is the mean negative log-probability of the sampled tokens at temperature 1 over the whole
    vocabulary, under the draw that wrote each reply (or the mixture decoder's average). It estimates the
    entropy if tokens were sampled from that distribution. With another temperature, top-p or top-k it
    estimates the cross-entropy of the narrowed distribution to it, which is smaller.

    `total` and `epistemic` are included if the rows have them (`bara generate --uncertainty`). They are the
    exact entropy of the mixture of the judging draws, and the part due to their disagreement.

    Args:
        rows: dictionaries from `reply_lines`; a number is left out if rows lack the fields for it.
    """
    rows = list(rows)
    means: Json = {}
    if all(row.get("log_prob") is not None and row.get("tokens") for row in rows):
        means["entropy"] = -sum(row["log_prob"] for row in rows) / sum(row["tokens"] for row in rows)
    parts = {name: [value for row in rows for value in row.get(name, ())] for name in ("total", "epistemic")}
    if all(row.get(name) for row in rows for name in parts) and None not in (
        *parts["total"],
        *parts["epistemic"],
    ):
        means |= {name: float(np.mean(values)) for name, values in parts.items()}
    return means


def diversity_of(replies: Sequence[Sequence[str]]) -> Json:
    """Return the diversity of the first replies to each prompt, or nothing with one reply per prompt.

    Returns:
        Means over prompts: `distinct`, distinct 1- and 2-grams per hundred words; `diversity`, 100 -
        Self-BLEU, and its `signature`; or a `note` on why one of them is missing.
    """
    texts = [of_prompt[:FEW] for of_prompt in replies]
    if len(texts[0]) < 2:
        return {}
    if not all(any(text.strip() for text in of_prompt) for of_prompt in texts):
        return {"note": "A prompt has only blank replies, so diversity is not measured."}
    distinct = {"distinct": [float(np.mean(distinct_n(texts, n))) for n in (1, 2)]}
    try:
        spread = self_bleu_diversity(texts)
    except ConfigError as error:
        return {**distinct, "note": str(error)}
    return {**distinct, "diversity": spread.mean, "signature": spread.signature}


def sentences(found: Fields, few: int) -> list[str]:
    """Return sentences on `token_entropy`, and on `diversity_of` for the first `few` replies."""
    lines = []
    if "entropy" in found:
        lines.append(
            f"Entropy per token: {found['entropy']:.3f} nats (mean -log p of the sampled tokens at "
            "temperature 1, under each reply's own draw)"
        )
    if "total" in found:
        lines.append(
            f"Entropy per token under the mixture of draws: {found['total']:.3f} nats, of which epistemic "
            f"{found['epistemic']:.3f}"
        )
    if "distinct" in found:
        words = " and ".join(f"{value:.1f}" for value in found["distinct"])
        lines.append(f"Distinct 1- and 2-grams of the first {few} replies: {words} per hundred words")
    if "diversity" in found:
        diversity = f"{found['diversity']:.1f} ({found['signature']})"
        lines.append(f"100 - Self-BLEU of the first {few} replies: {diversity}")
    return lines + ([f"Note: {found['note']}"] if "note" in found else [])
