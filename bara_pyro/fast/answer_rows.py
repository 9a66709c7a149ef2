"""Logits of the answers' tokens only, without those of the rest of the vocabulary."""

from torch import Tensor, nn
from torch.nn import functional as F


def logits_of_rows(head: nn.Linear, hidden: Tensor, rows: Tensor) -> Tensor:
    """Return the output embedding's values of some tokens, `... x C`.

    Args:
        head: the output embedding, a linear layer of V tokens.
        hidden: `... x d`.
        rows: token ids, long, `C`.
    """
    bias = getattr(head, "bias", None)
    return F.linear(hidden, head.weight[rows], None if bias is None else bias[rows])
