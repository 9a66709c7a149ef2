"""How different replies are, and how open the distributions that wrote them."""

from collections.abc import Iterable, Sequence

import numpy as np

from bara_pyro.errors import ConfigError
from bara_pyro.metrics import distinct_n, self_bleu_diversity
from bara_pyro.types import Fields, Json

FEW = 8  # replies whose diversity is looked at: Self-BLEU takes time with the square of their number


def token_entropy(rows: Iterable[Fields]) -> Json:
    """Return the entropy of a token that lines of replies tell, in nats, mean over all their tokens.

    `entropy` is minus the log-probability of the tokens that were drawn, each under the draw of the posterior
    that wrote it (of the mixture decoder: under the mean of its draws), at temperature 1 and of the whole
    vocabulary. Where tokens were drawn from that distribution it estimates its entropy; where that was
    narrowed (another temperature, top-p, top-k), the cross-entropy of the narrowed distribution to it, which
    is smaller.

    `total` and `epistemic`, where the lines have them (`bara generate --uncertainty`), are of the mixture of
    the draws that judged them: the entropy of its distribution, exactly, at every token, and the part of it
    that the draws disagree about.

    Args:
        rows: as `reply_lines` makes them; of rows that lack what a figure needs it is left out.
    """
    rows = list(rows)
    found: Json = {}
    if all(row.get("log_prob") is not None and row.get("tokens") for row in rows):
        found["entropy"] = -sum(row["log_prob"] for row in rows) / sum(row["tokens"] for row in rows)
    told = {name: [value for row in rows for value in row.get(name, ())] for name in ("total", "epistemic")}
    if all(row.get(name) for row in rows for name in told) and None not in (
        *told["total"],
        *told["epistemic"],
    ):
        found |= {name: float(np.mean(values)) for name, values in told.items()}
    return found


def diversity_of(replies: Sequence[Sequence[str]]) -> Json:
    """Return how different the first few replies to each prompt are; nothing where there is one a prompt.

    Returns:
        `distinct`: distinct 1- and 2-grams a hundred words; `diversity`: 100 - Self-BLEU, and its
        `signature`; or a `note` that says why one of them is missing. Means over prompts.
    """
    texts = [own[:FEW] for own in replies]
    if len(texts[0]) < 2:
        return {}
    if not all(any(text.strip() for text in own) for own in texts):
        return {"note": "Some prompt has blank replies alone, and no diversity."}
    distinct = {"distinct": [float(np.mean(distinct_n(texts, n))) for n in (1, 2)]}
    try:
        spread = self_bleu_diversity(texts)
    except ConfigError as error:
        return {**distinct, "note": str(error)}
    return {**distinct, "diversity": spread.mean, "signature": spread.signature}


def sentences(found: Fields, few: int) -> list[str]:
    """Return what `token_entropy` and `diversity_of`, of the first `few` replies, say."""
    said = []
    if "entropy" in found:
        said.append(
            f"Entropy of a token: {found['entropy']:.3f} nats (-log p of those drawn, at temperature 1, "
            "under their own draw)"
        )
    if "total" in found:
        said.append(
            f"Entropy of a token under the mixture of draws: {found['total']:.3f} nats, of which epistemic "
            f"{found['epistemic']:.3f}"
        )
    if "distinct" in found:
        words = " and ".join(f"{value:.1f}" for value in found["distinct"])
        said.append(f"Distinct 1- and 2-grams of the first {few} replies: {words} a hundred words")
    if "diversity" in found:
        told = f"{found['diversity']:.1f} ({found['signature']})"
        said.append(f"100 - Self-BLEU of the first {few} replies: {told}")
    return said + ([f"Note: {found['note']}"] if "note" in found else [])
