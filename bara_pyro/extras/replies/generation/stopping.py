"""Where a reply has come to a text that ends it, found without decoding all of it at every token."""

import re
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import StoppingCriteria

from bara_pyro.data.tokens import Tokenizer

BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # a byte of a character that has no token
CHARACTER = 4  # bytes, at most
TIDIED = 4  # characters that a decoder tidies together, at most


class Stop(StoppingCriteria):
    """Ends a reply once it holds one of some texts; transformers' own does not take every tokenizer.

    A row has ended at the first token with which its decoded tokens hold a text. That token made the text
    whole, so a tail of the tokens is decoded, as many as a text of n bytes can reach back over:

    - a token has a byte or more; what has no text when it is decoded alone is not counted;
    - a decoder that tidies spaces takes away two at most for a character that it leaves (" ' "), so the text
      was made of 3 n bytes or fewer, and looks at four characters (" n't"), of which the text may be the
      first: four more;
    - the first token that is decoded may lose the space before it: one more;
    - UTF-8 tells where a character begins, so that the rest of one that is cut in two harms no other. Where
      single bytes are tokens one bad byte spoils all next to it, so there the tail begins with a first byte.

    What the tail seems to hold (a cut may make it up) is looked for in the whole.

    Args:
        texts: that end a reply, none of them empty.
        tokenizer: of the language model.
        width: tokens of the prompts, padding included.

    Attributes:
        counts: for each row, how many tokens it had when it ended; None: it has not.
    """

    def __init__(self, texts: Sequence[str], tokenizer: Tokenizer, width: int) -> None:
        self.texts = texts
        self.tokenizer = tokenizer
        self.width = width
        self.counts: list[int | None] = []
        self._reach = 1 + TIDIED + 3 * max(len(text.encode("utf-8", "replace")) for text in texts)
        self._left_out = set(tokenizer.all_special_ids)
        self._told: list[list[int]] = []  # the tokens of each row, without those that have no text ever
        self._texts: dict[int, bool] = {}
        self._rests: dict[int, bool] = {}

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: object) -> Tensor:
        """Return which rows have ended, bool."""
        columns = input_ids.shape[1] - self.width
        if not self._told:
            self._told = [[] for _ in input_ids]
            self.counts = [None] * len(input_ids)
            self._read = 0
        for row, tokens in enumerate(input_ids[:, self.width + self._read :].tolist()):
            new = [token for token in tokens if token not in self._left_out]
            self._told[row] += new
            if new and self.counts[row] is None and self._holds(self._tail(self._told[row])):
                self.counts[row] = columns if self._holds(self._told[row]) else None
        self._read = columns
        return torch.tensor([count is not None for count in self.counts], device=input_ids.device)

    def _holds(self, tokens: Sequence[int]) -> bool:
        told = self.tokenizer.decode(tokens, skip_special_tokens=True)
        return any(text in told for text in self.texts)

    def _tail(self, tokens: Sequence[int]) -> Sequence[int]:
        """Return the last tokens, as many as a text that ends a reply can reach back over."""
        start, count = len(tokens), 0
        while start and count < self._reach:
            start -= 1
            count += self._has_text(tokens[start])
        for _ in range(CHARACTER - 1):
            start -= bool(start) and self._goes_on(tokens[start])
        return tokens[start:]

    def _has_text(self, token: int) -> bool:
        if token not in self._texts:
            self._texts[token] = bool(self.tokenizer.decode([token], skip_special_tokens=True))
        return self._texts[token]

    def _goes_on(self, token: int) -> bool:
        """Return whether a token is one byte, and not the first, of a character."""
        if token not in self._rests:
            byte = BYTE.fullmatch(self.tokenizer.convert_ids_to_tokens(token) or "")
            self._rests[token] = byte is not None and 0x80 <= int(byte[1], 16) < 0xC0
        return self._rests[token]
