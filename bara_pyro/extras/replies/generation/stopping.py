"""Stop a reply at given texts."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import StoppingCriteria

from bara_pyro.data.tokens import Tokenizer


class Stop(StoppingCriteria):
    """Ends a reply when it contains one of several texts, with any tokenizer, unlike transformers' class.

    A row ends at the first token with which its decoded tokens contain a text. The whole reply is decoded at
    each token, because the last tokens alone may decode to another text: 0.3 ms for 1,000 tokens.

    Args:
        texts: texts that end a reply; they are not empty.
        tokenizer: the language model's tokenizer.
        width: number of tokens of the prompts, including padding.

    Attributes:
        counts: number of tokens of each row when it ended; None for rows that have not ended.
    """

    def __init__(self, texts: Sequence[str], tokenizer: Tokenizer, width: int) -> None:
        self.texts = texts
        self.tokenizer = tokenizer
        self.width = width
        self.counts: list[int | None] = []

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: object) -> Tensor:
        """Return which rows have ended, bool, `rows`."""
        self.counts = self.counts or [None] * len(input_ids)
        for row, tokens in enumerate(input_ids[:, self.width :].tolist()):
            if self.counts[row] is None and self._holds(tokens):
                self.counts[row] = len(tokens)
        return torch.tensor([count is not None for count in self.counts], device=input_ids.device)

    def _holds(self, tokens: Sequence[int]) -> bool:
        decoded = self.tokenizer.decode(tokens, skip_special_tokens=True)
        return any(text in decoded for text in self.texts)
