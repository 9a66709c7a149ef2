"""Diversity of the words of the replies to a prompt: Self-BLEU and distinct-n.

Every measure gives one number for each prompt, higher for more diverse replies.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bara_pyro.errors import ConfigError, DataError
from bara_pyro.extras.replies.over_prompts import Floats

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU


@dataclass(frozen=True)
class SelfBleuDiversity:
    """100 - Self-BLEU in percent; 0 if all replies to a prompt are the same.

    Attributes:
        per_prompt: `prompts`, 0..100.
        mean: the mean over prompts.
        signature: how sacrebleu computed BLEU: tokenizer, smoothing, number of references, version. Compare
            only values with the same signature, and above all with the same number of replies.
    """

    per_prompt: Floats
    mean: float
    signature: str


def self_bleu_diversity(replies: Sequence[Sequence[str]]) -> SelfBleuDiversity:
    """Return 100 - Self-BLEU of the replies to each prompt; higher is more diverse.

        100 - 1 / n * sum_i BLEU(reply_i, references: all other replies)

    It is a mean of sentence scores, not a corpus score. BLEU is `BLEU(effective_order=True)` of sacrebleu
    (Post 2018): up to 4-grams, or fewer for shorter replies. A blank reply scores 0; two blank replies count
    as the same reply and score 100. The time is quadratic in the number of replies: seconds for 32 long ones.

    Source: Zhu et al. 2018, Texygen (arXiv 1802.01886).

    Args:
        replies: for each prompt its replies, the same number for all: BLEU rises with the number of
            references.

    Raises:
        DataError: there is no prompt, or prompts have fewer than two or different numbers of replies.
        ConfigError: the package sacrebleu is not installed.

    Examples:
        >>> from bara_pyro.extras.replies.diversity import self_bleu_diversity
        >>> same, other = "the guest lives in the marsh", "one two three four five six"
        >>> self_bleu_diversity([[same, same], [same, other]]).per_prompt.round(1).tolist()
        [0.0, 100.0]
    """
    _check_replies(replies)
    counts = [len(of_prompt) for of_prompt in replies]
    for prompt, count in enumerate(counts):
        if count != counts[0] or count < 2:
            raise DataError(
                f"Prompt {prompt} has {count} replies and prompt 0 has {counts[0]}: "
                "give every prompt the same number of replies, two or more."
            )
    bleu = _sacrebleu()
    self_bleu = [np.mean(_each_against_the_rest(bleu, list(of_prompt))) for of_prompt in replies]
    # For two equal replies sacrebleu returns 100 plus a rounding error.
    per_prompt = np.clip(100.0 - np.array(self_bleu), 0.0, 100.0)
    return SelfBleuDiversity(per_prompt, float(per_prompt.mean()), str(bleu.get_signature()))


def _sacrebleu() -> "BLEU":
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ImportError as error:
        raise ConfigError(
            "Self-BLEU needs the package sacrebleu, which is not installed: pip install 'bara-pyro[text]'."
        ) from error
    return BLEU(effective_order=True)


def _each_against_the_rest(bleu: "BLEU", replies: list[str]) -> list[float]:
    """Return the BLEU of each reply with all others as its references (0..100)."""
    # `corpus_score([reply], [rest])` would take the rest as one reference for each of many replies, and use
    # only the first.
    scores = [
        bleu.sentence_score(reply, replies[:i] + replies[i + 1 :]).score for i, reply in enumerate(replies)
    ]
    blank = [not reply.strip() for reply in replies]
    return [
        100.0 if is_blank and sum(blank) > 1 else score for is_blank, score in zip(blank, scores, strict=True)
    ]


def distinct_n(replies: Sequence[Sequence[str]], n: int) -> Floats:
    """Return distinct-n of the replies to each prompt (percent, `prompts`); higher is more diverse.

        100 * (number of distinct n-grams) / (number of words)

    over all replies to a prompt. Words are separated by white space and case matters; n-grams do not cross
    replies. Longer replies give lower values, so compare lengths also. Some authors divide by the number of
    n-grams instead, which is n - 1 smaller for each reply.

    Source: Li et al. 2016 (arXiv 1510.03055).

    Args:
        replies: for each prompt its replies.
        n: the length of the n-grams; 1 and 2 in the paper.

    Raises:
        DataError: there is no prompt, or the replies to a prompt have no words.
        ConfigError: `n` is not a positive integer.

    Examples:
        >>> from bara_pyro.extras.replies.diversity import distinct_n
        >>> replies = [["a b a b", "a b"]]  # one prompt
        >>> distinct_n(replies, 1).round(2).tolist(), distinct_n(replies, 2).round(2).tolist()  # 2 of 6
        ([33.33], [33.33])
    """
    if not isinstance(n, int) or n < 1:
        raise ConfigError(f"n is {n!r}: give a positive integer, 2 for example.")
    _check_replies(replies)
    return np.array([_distinct(of_prompt, n, prompt) for prompt, of_prompt in enumerate(replies)])


def _distinct(replies: Sequence[str], n: int, prompt: int) -> float:
    words = [reply.split() for reply in replies]
    total = sum(map(len, words))
    if not total:
        raise DataError(f"The replies to prompt {prompt} have no words: leave the prompt out.")
    grams = {tuple(reply[i : i + n]) for reply in words for i in range(len(reply) - n + 1)}
    return 100.0 * len(grams) / total


def _check_replies(replies: Sequence[Sequence[str]]) -> None:
    """Raise `DataError` unless `replies` is a list of texts for each prompt (a single text is a sequence)."""
    if not len(replies):
        raise DataError("replies is empty: there is nothing to score.")
    for prompt, of_prompt in enumerate(replies):
        if isinstance(of_prompt, str) or not all(isinstance(reply, str) for reply in of_prompt):
            raise DataError(f"replies[{prompt}] is {of_prompt!r:.60}: give a list of texts for each prompt.")
