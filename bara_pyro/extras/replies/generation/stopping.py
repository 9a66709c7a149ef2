"""Stop a reply at given texts without decoding the complete reply at every token."""

import re
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import StoppingCriteria

from bara_pyro.data.tokens import Tokenizer

BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # a byte of a character without a token
CHARACTER = 4  # most bytes of a character
TIDIED = 4  # most characters that a decoder tidies together


class Stop(StoppingCriteria):
    """Ends a reply when it contains one of several texts, with any tokenizer, unlike transformers' class.

    A row ends at the first token with which its decoded tokens contain a text. That token completes the text,
    so it suffices to decode the last tokens, as many as a text of n bytes can span:

    - Each token has at least one byte. Tokens that decode to an empty text are not counted.
    - A decoder that tidies spaces removes at most two per character that it keeps (" ' "), so the text comes
      from at most 3 n bytes. It looks at four characters (" n't"), of which the text may be the first: four
      more.
    - The first decoded token may lose the space before it: one more.
    - In UTF-8 the rest of a character that is cut does not affect other characters. If single bytes are
      tokens, however, one invalid byte spoils its neighbours, so the tail begins with a first byte.

    A text found in the tail may be an artefact of the cut, so it is then searched for in the complete reply.

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
        self._reach = 1 + TIDIED + 3 * max(len(text.encode("utf-8", "replace")) for text in texts)
        self._left_out = set(tokenizer.all_special_ids)
        self._tokens: list[list[int]] = []  # tokens of each row, without special tokens
        self._texts: dict[int, bool] = {}
        self._rests: dict[int, bool] = {}

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: object) -> Tensor:
        """Return which rows have ended, bool, `rows`."""
        columns = input_ids.shape[1] - self.width
        if not self._tokens:
            self._tokens = [[] for _ in input_ids]
            self.counts = [None] * len(input_ids)
            self._read = 0
        for row, tokens in enumerate(input_ids[:, self.width + self._read :].tolist()):
            new = [token for token in tokens if token not in self._left_out]
            self._tokens[row] += new
            if new and self.counts[row] is None and self._holds(self._tail(self._tokens[row])):
                self.counts[row] = columns if self._holds(self._tokens[row]) else None
        self._read = columns
        return torch.tensor([count is not None for count in self.counts], device=input_ids.device)

    def _holds(self, tokens: Sequence[int]) -> bool:
        decoded = self.tokenizer.decode(tokens, skip_special_tokens=True)
        return any(text in decoded for text in self.texts)

    def _tail(self, tokens: Sequence[int]) -> Sequence[int]:
        """Return the last tokens, as many as a text that ends a reply can span."""
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
        """Return whether a token is a byte of a character, but not its first."""
        if token not in self._rests:
            byte = BYTE.fullmatch(self.tokenizer.convert_ids_to_tokens(token) or "")
            self._rests[token] = byte is not None and 0x80 <= int(byte[1], 16) < 0xC0
        return self._rests[token]
