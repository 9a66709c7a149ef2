"""Turn texts into token ids, cutting long contexts but never the question."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial

from bara_pyro.data.labels import unlisted, without_cue
from bara_pyro.data.rows import check_ids
from bara_pyro.data.split import EncodedSplit, Texts
from bara_pyro.data.tokens import (
    Leading,
    Tokenizer,
    continuation,
    front_ids,
    ids_of,
    leading,
    pad_id,
    text_tokens,
    unknown_share,
)
from bara_pyro.data.types import ChatFrame, Example
from bara_pyro.errors import ConfigError, DataError, unknown

MUCH = 8  # the tokens of a question that is too long are counted up to this multiple of the limit


def prompt_text(example: Example) -> str:
    """Return the whole prompt: the context, a line break, the question.

    Examples:
        >>> from bara_pyro.data import Example, prompt_text
        >>> print(prompt_text(Example("a", "Is it warm ?", 0, context="It is summer .")))
        It is summer .
        Is it warm ?
    """
    return "\n".join(part for part in (example.context, example.question) if part)


def encode(
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    max_length: int = 300,
    *,
    too_long: str = "error",
    answers: Sequence[str] = (),
    classes: int | None = None,
    context: int | None = None,
    chat: ChatFrame | None = None,
) -> EncodedSplit:
    """Tokenise prompts, at most `max_length` tokens each (300 in the published protocol).

    If a prompt is too long, the end of its context is cut; the beginning of the context and the question with
    its options stay. A text also counts as too long if it has more than 256 characters per token of
    `max_length`. Special tokens that the tokenizer puts in front (BOS) are kept and counted; none are added
    at the end, where the answer is read.

    Args:
        examples: the rows.
        tokenizer: a Hugging Face tokenizer; without a padding token, its end token is used for padding.
        max_length: the most tokens of a prompt.
        too_long: what to do if the question alone is too long: raise an "error", or "drop" the row and list
            it in `EncodedSplit.dropped`.
        classes: number of classes C, if answers are scored as whole texts; options are then left out of the
            prompts of rows that list them.
        answers: texts of the answers, for rows that list no options.
        context: the language model's limit for a prompt and its answer in tokens (`Backbone.context`); it
            applies if `max_length` is larger. None: no limit.
        chat: the text around each question, if questions go through a chat template (`data.chat_frame`). It
            is never cut, and replaces "Answer:" and the tokenizer's own special tokens.

    Returns:
        The rows as tokens, with their identifiers and labels; `batch` makes batches of them.

    Raises:
        DataError: a question is too long (the row is named), two rows have the same identifier, or the text
            of an answer is missing or unreadable for the tokenizer.
        ConfigError: `max_length` is not positive, or `too_long` is unknown.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.data import Example
        >>> tokenizer = bp.load_backbone("microworld").tokenizer
        >>> split = bp.encode([Example("a", "in winter bimu keeps what ?", label=1)], tokenizer)
        >>> split.ids, split.labels, tokenizer.convert_ids_to_tokens(split.token_ids[0])
        (('a',), (1,), ['in', 'winter', 'bimu', 'keeps', 'what', '?'])
    """
    if max_length < 1:
        raise ConfigError(f"max_length is {max_length}: choose a positive number of tokens.")
    if too_long not in ("error", "drop"):
        raise ConfigError(unknown("way to treat long questions", too_long, ("error", "drop")))
    check_ids([example.id for example in examples], "The split")
    if classes is not None:
        examples = [unlisted(example) for example in examples]
    if chat is not None:
        examples = [without_cue(example) for example in examples]
    fitting = _Fitting(tokenizer, max_length, context, tuple(answers), classes, chat)
    encoded: list[_EncodedRow] = []
    shortened, dropped = [], []
    for example, row in zip(examples, fitting.rows(examples), strict=True):
        if row is None and too_long == "error":
            raise fitting.error(example)
        if row is None:
            dropped.append(example.id)
            continue
        encoded.append(row)
        if row.cut:
            shortened.append(example.id)
    listed = tuple(len(row.example.options) for row in encoded)
    return EncodedSplit(
        token_ids=tuple(row.tokens for row in encoded),
        labels=tuple(row.example.label for row in encoded),
        ids=tuple(row.example.id for row in encoded),
        pad_id=pad_id(tokenizer),
        shortened=tuple(shortened),
        dropped=tuple(dropped),
        unknown=unknown_share([row.tokens for row in encoded], tokenizer),
        texts=() if classes is None else tuple(row.texts for row in encoded),
        offered=listed if any(listed) else (),
    )


@dataclass(frozen=True)
class _EncodedRow:
    example: Example
    tokens: list[int]
    cut: bool
    texts: Texts


@dataclass(frozen=True)
class _Fitting:
    """Fits rows into `max_length`, and with their answers into the language model; see `encode`."""

    tokenizer: Tokenizer
    max_length: int
    context: int | None
    answers: Sequence[str]
    classes: int | None
    chat: ChatFrame | None = None

    @cached_property
    def front(self) -> list[int]:
        return [] if self.chat else front_ids(self.tokenizer)

    @property
    def around(self) -> ChatFrame:
        """The text around each question."""
        return self.chat or ChatFrame("", "")

    def _framed(self, text: str) -> str:
        return f"{self.around.before}{text}{self.around.after}"

    @property
    def longest(self) -> int:
        """The most tokens of a prompt, including special tokens in front."""
        return min(self.max_length, self.context or self.max_length)

    def rows(self, examples: Sequence[Example]) -> Iterator[_EncodedRow | None]:
        """Yield a row for each example, or None if its question or answers do not fit."""
        prompts = [self._framed(prompt_text(example)) for example in examples]
        starts = leading(self.tokenizer, prompts, self.longest - len(self.front))
        for example, start in zip(examples, starts, strict=True):
            texts = () if self.classes is None else self._texts(example, self.classes)
            yield None if texts is None else self._row(example, start, texts)

    def _row(self, example: Example, start: Leading, texts: Texts) -> _EncodedRow | None:
        room = self.longest
        if self.context is not None and texts:
            # The last token of a text is never an input.
            room = min(room, self.context - max(map(len, texts)) + 1)
        room -= len(self.front)
        if start.whole and len(start.tokens) <= room:
            return _EncodedRow(example, self.front + start.tokens, cut=False, texts=texts)
        cut = self._cut(example, room)
        return None if cut is None else _EncodedRow(example, self.front + cut, cut=True, texts=texts)

    def _cut(self, example: Example, room: int) -> list[int] | None:
        """Return the prompt with its context cut to `room` tokens, or None if the question does not fit."""
        question = leading(self.tokenizer, [self._framed(example.question)], room)[0]
        if not question.whole or len(question.tokens) > room:
            return None
        # As tokenised after a context.
        ending = f"\n{example.question}" if example.question else ""
        tail = continuation(self.tokenizer, "a", ending + self.around.after)
        left = room - len(tail)
        if left <= self._opening:
            return question.tokens
        begun = self.around.before + example.context
        return leading(self.tokenizer, [begun], left)[0].tokens[:left] + tail

    @cached_property
    def _opening(self) -> int:
        """The number of tokens in front of a question."""
        return len(ids_of(self.tokenizer, [self.around.before])[0])

    def _texts(self, example: Example, classes: int) -> Texts | None:
        """Return the tokens of an example's C answers, empty for one that it does not offer.

        None if an answer does not fit.
        """
        answers = example.texts or tuple(self.answers)
        if not answers:
            raise DataError(
                f"Row {example.id!r} has no texts of its answers: use labels='letters' (--labels letters)."
            )
        if not all(map(self._readable, answers)):
            return None
        return (*map(self._read, answers), *([],) * (classes - len(answers)))

    def _readable(self, text: str) -> bool:
        """Return whether an answer fits into the language model."""
        if self.context is None or len(text) <= self.context:
            return True
        start = leading(self.tokenizer, [text], self.context)[0]
        return start.whole and len(start.tokens) <= self.context

    @cached_property
    def _read(self) -> Callable[[str], list[int]]:
        return cache(partial(text_tokens, self.tokenizer, chat=self.chat))

    def error(self, example: Example) -> DataError:
        """Return the error for an example that does not fit."""
        held = also = ""
        if len(self.answers) > 1 and all(answer in example.question for answer in self.answers):
            held = f", which lists {len(self.answers)} labels,"
            also = " score the labels' texts with labels='texts' (--labels texts),"
        start = leading(self.tokenizer, [self._framed(example.question)], MUCH * self.longest)[0]
        length = ("" if start.whole else "more than ") + str(len(self.front) + len(start.tokens))
        if self.longest == self.max_length < len(self.front) + len(start.tokens):
            limit, way_out = f"but max_length is {self.max_length}", "raise max_length"
        else:
            behind = "" if self.classes is None else " including the answer"
            limit, way_out = f"and the language model takes {self.context}{behind}", "shorten it"
        return DataError(
            f"The question of row {example.id!r}{held} is {length} tokens long, {limit}: {way_out},{also} or "
            "drop such rows with too_long='drop' (--too-long drop)."
        )
