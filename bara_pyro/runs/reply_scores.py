"""Score replies from their log-probabilities under each posterior draw."""

import math
from collections.abc import Mapping, Sequence

from torch import Tensor

from bara_pyro.data.replies import EncodedReplies
from bara_pyro.types import Json


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
