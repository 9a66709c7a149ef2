"""Text to token ids: the token of each answer, and prompts that fit without losing the question."""

from collections import Counter
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from bara_pyro.data.schemas import ANSWER, unlisted
from bara_pyro.data.split import EncodedSplit
from bara_pyro.data.types import LETTERS, Batch, Example
from bara_pyro.data.unicode import check_unicode
from bara_pyro.errors import ConfigError, DataError, unknown

Tokenizer = Any  # a Hugging Face tokenizer; transformers ships no types for it


def prompt_text(example: Example) -> str:
    """Return the whole prompt: the context, a line break, the question.

    Examples:
        >>> from bara_pyro.data import Example, prompt_text
        >>> print(prompt_text(Example("a", "Is it warm ?", 0, context="It is summer .")))
        It is summer .
        Is it warm ?
    """
    return f"{example.context}\n{example.question}" if example.context else example.question


def answer_token_ids(tokenizer: Tokenizer, labels: Sequence[str]) -> Tensor:
    """Return the token that each label is when it follows the prompt without a space.

    The rule: what the tokenizer adds to a line break when the label is appended; where that is not one token,
    what it makes of the label alone. A line break, and not the prompt's own end, because some tokenizers
    merge across ("Answer:A" may hold the token ":A"), and the label alone is not enough either: SentencePiece
    puts a space in front of a text's first word (["_", "A"] or ["_A"]), which the label does not have here.
    For GPT-2 or Qwen tokenizers this is the token of "A", for Llama ones that of "A" inside a word: the
    tokens of the published protocol (class tokens without a leading space).

    Args:
        tokenizer: a Hugging Face tokenizer.
        labels: C distinct labels, in class order.

    Returns:
        long, `C`.

    Raises:
        DataError: a label is several tokens or unknown to the tokenizer, or two labels are the same token.

    Examples:
        >>> import bara_pyro as bp
        >>> tokenizer = bp.load_backbone("microworld").tokenizer
        >>> tokens = bp.answer_token_ids(tokenizer, ["A", "B"])
        >>> tokenizer.convert_ids_to_tokens(tokens.tolist())
        ['A', 'B']
    """
    found: dict[int, str] = {}
    for label in labels:
        token = _single(tokenizer, label, label_tokens(tokenizer, label))
        if token in found:
            raise DataError(
                f"The labels {found[token]!r} and {label!r} are the same token ({token}): rename one, or "
                "use labels='letters' (--labels letters)."
            )
        found[token] = label
    return torch.tensor(list(found), dtype=torch.long)


def label_tokens(tokenizer: Tokenizer, label: str) -> list[int]:
    """Return the tokens of a label of any length where it follows the prompt; see `answer_token_ids`."""
    readings = [continuation(tokenizer, "\n", label), ids_of(tokenizer, [label])[0]]
    return next((reading for reading in readings if len(reading) == 1), readings[0])


def _single(tokenizer: Tokenizer, label: str, tokens: list[int]) -> int:
    way_out = "use labels='letters' (--labels letters), which asks for a letter instead."
    if label in LETTERS and (len(tokens) != 1 or tokens[0] == tokenizer.unk_token_id):
        raise DataError(
            f"The tokenizer has no single token for the letter {label!r}: use another model, or a task with "
            "fewer options."
        )
    if len(tokens) != 1:
        pieces = ", ".join(map(repr, tokenizer.convert_ids_to_tokens(tokens)))
        raise DataError(
            f"The label {label!r} is {len(tokens)} tokens ({pieces}), and an answer must be one: {way_out}"
        )
    if tokens[0] == tokenizer.unk_token_id:
        raise DataError(f"The label {label!r} is not in the tokenizer's vocabulary: {way_out}")
    return tokens[0]


def text_tokens(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the tokens of an answer's whole text behind a prompt, from which a space parts it.

    Raises:
        DataError: it has none, or the tokenizer does not know one of them.
    """
    tokens = continuation(tokenizer, ANSWER, f" {text}")
    if not tokens or tokenizer.unk_token_id in tokens:
        raise DataError(
            f"The tokenizer cannot read the answer {text!r}: give another language model (--model), ask for "
            "letters (--labels letters), or give the answers other names."
        )
    return tokens


def encode(
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    max_length: int = 300,
    *,
    too_long: str = "error",
    answers: Sequence[str] = (),
    classes: int | None = None,
) -> EncodedSplit:
    """Tokenise prompts, at most `max_length` tokens each (300 in the published protocol).

    Where a prompt is too long, tokens are taken off the end of its context and of nothing else: the beginning
    of the context, and the question with its options, stay. Special tokens that the tokenizer puts in front
    (BOS) are kept and counted; those it would put behind are not added, because the answer is read there.

    Args:
        examples: the rows.
        tokenizer: a Hugging Face tokenizer; one without a padding token is padded with its end token.
        max_length: the most tokens of a prompt.
        too_long: what to do where the question alone is longer: "error", or "drop" the row and list it in
            `EncodedSplit.dropped`.
        classes: their number C, where the answers are scored as whole texts; a row that knows the texts of
            its options is then asked without them.
        answers: these texts, for rows without options of their own.

    Raises:
        DataError: a question alone is longer than `max_length` (the row is named), two rows have one
            identifier, or an answer's text is to be scored which is not known or the tokenizer cannot read.
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
    if len({example.id for example in examples}) < len(examples):
        twice, _ = Counter(example.id for example in examples).most_common(1)[0]
        raise DataError(f"Two rows have the identifier {twice!r}: give each row its own.")
    if classes is not None:
        examples = [unlisted(example) for example in examples]
    front = front_ids(tokenizer)
    room = max_length - len(front)
    whole = ids_of(tokenizer, [prompt_text(example) for example in examples])
    kept: list[tuple[Example, list[int]]] = []
    shortened, dropped = [], []
    for example, tokens in zip(examples, whole, strict=True):
        if len(tokens) <= room:
            kept.append((example, front + tokens))
        elif (cut := _cut(example, tokenizer, room)) is not None:
            kept.append((example, front + cut))
            shortened.append(example.id)
        elif too_long == "drop":
            dropped.append(example.id)
        else:
            raise _too_long(example, tokenizer, len(front), max_length, answers)
    listed = tuple(len(example.options) for example, _ in kept)
    return EncodedSplit(
        token_ids=tuple(tokens for _, tokens in kept),
        labels=tuple(example.label for example, _ in kept),
        ids=tuple(example.id for example, _ in kept),
        pad_id=pad_id(tokenizer),
        shortened=tuple(shortened),
        dropped=tuple(dropped),
        unknown=unknown_share([tokens for _, tokens in kept], tokenizer),
        texts=() if classes is None else _texts([row for row, _ in kept], tokenizer, answers, classes),
        offered=listed if any(listed) else (),
    )


def _texts(
    examples: Sequence[Example], tokenizer: Tokenizer, answers: Sequence[str], classes: int
) -> tuple[tuple[list[int], ...], ...]:
    """Return the tokens of the C texts that could answer each row; none of one that it does not offer."""
    read = cache(partial(text_tokens, tokenizer))

    def of_row(example: Example) -> tuple[list[int], ...]:
        own = example.texts or tuple(answers)
        if not own:
            raise DataError(f"Row {example.id!r} does not know the texts of its answers: ask for letters.")
        return (*map(read, own), *([],) * (classes - len(own)))

    return tuple(map(of_row, examples))


def unknown_share(rows: Sequence[Sequence[int]], tokenizer: Tokenizer) -> float:
    """Return the percentage of unknown tokens; 0 for tokenizers that can spell everything."""
    total = sum(map(len, rows))
    return 100 * sum(row.count(tokenizer.unk_token_id) for row in rows) / max(total, 1)


def collate(
    examples: Sequence[Example], tokenizer: Tokenizer, answer_ids: Tensor, max_length: int = 300
) -> Batch:
    """Return a few examples as one left-padded batch; `encode` is the way for whole splits.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.data import Example, collate
        >>> tokenizer = bp.load_backbone("microworld").tokenizer
        >>> rows = [Example("a", "in winter", 0), Example("b", "in the winter", 1)]
        >>> batch = collate(rows, tokenizer, bp.answer_token_ids(tokenizer, ["A", "B"]))
        >>> batch.ids, batch.labels.tolist(), batch.attention_mask.tolist()  # padded on the left
        (('a', 'b'), [0, 1], [[False, True, True], [True, True, True]])
    """
    return encode(examples, tokenizer, max_length).batch(range(len(examples)), answer_ids)


def _too_long(
    example: Example, tokenizer: Tokenizer, front: int, max_length: int, answers: Sequence[str]
) -> DataError:
    length = front + len(ids_of(tokenizer, [example.question])[0])
    held = also = ""
    if len(answers) > 1 and all(answer in example.question for answer in answers):
        held = f", its {len(answers)} labels listed,"
        also = " score the labels' texts with labels='texts' (--labels texts),"
    return DataError(
        f"The question of row {example.id!r}{held} is {length} tokens long and max_length is {max_length}: "
        f"raise max_length,{also} or leave such rows out with too_long='drop' (--too-long drop)."
    )


def _cut(example: Example, tokenizer: Tokenizer, room: int) -> list[int] | None:
    """Return the prompt with its context cut to fit `room` tokens; None where the question does not."""
    question = ids_of(tokenizer, [example.question])[0]
    if len(question) > room:
        return None
    tail = continuation(tokenizer, "a", f"\n{example.question}")  # as it is tokenised behind a context
    if len(tail) >= room:
        return question
    return ids_of(tokenizer, [example.context])[0][: room - len(tail)] + tail


def continuation(tokenizer: Tokenizer, before: str, text: str) -> list[int]:
    """Return the tokens that `text` adds behind `before` (or those of `text` alone, where the two merge)."""
    start, both = ids_of(tokenizer, [before, before + text])
    return both[len(start) :] if both[: len(start)] == start else ids_of(tokenizer, [text])[0]


def ids_of(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """Tokenise texts as they are: no special tokens, no log line on length (we look after it).

    Raises:
        DataError: one is not valid Unicode.
    """
    if not texts:
        return []
    check_unicode(texts)
    return list(tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"])


def front_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the special tokens that the tokenizer puts before a text."""
    plain, full = ids_of(tokenizer, ["a"])[0], list(tokenizer("a")["input_ids"])
    starts = (start for start in range(len(full)) if plain and full[start : start + len(plain)] == plain)
    return full[: next(starts, 0)]


def pad_id(tokenizer: Tokenizer) -> int:
    """Return the token that rows are padded with: its padding token, else the end token."""
    known = (token for token in (tokenizer.pad_token_id, tokenizer.eos_token_id) if token is not None)
    return int(next(known, 0))
