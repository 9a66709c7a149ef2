"""How different the replies to one prompt are: in words (Self-BLEU, distinct-n) and in embeddings.

Each is a figure of one prompt, higher where replies differ more; `metrics.mean_over_prompts` averages them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from bara_pyro.errors import ConfigError, DataError
from bara_pyro.metrics._inputs import as_finite_array
from bara_pyro.metrics.over_prompts import Floats

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU


@dataclass(frozen=True)
class SelfBleuDiversity:
    """100 - Self-BLEU in percent: 0 where all replies to a prompt are the same.

    Attributes:
        per_prompt: `prompts`, 0..100.
        mean: the mean over prompts.
        signature: how sacrebleu computed BLEU: tokens, smoothing, number of references, version. Figures
            of other signatures, of another number of replies above all, cannot be compared.
    """

    per_prompt: Floats
    mean: float
    signature: str


def self_bleu_diversity(replies: Sequence[Sequence[str]]) -> SelfBleuDiversity:
    """Return 100 - Self-BLEU of the replies to each prompt.

    Self-BLEU (Zhu et al. 2018, Texygen, arXiv 1802.01886) is the mean over replies of the BLEU of one with
    all others as its references: a mean of sentence scores, not a score of the corpus. BLEU is sacrebleu's
    (Post 2018), `BLEU(effective_order=True)`: up to 4-grams, or as long as the reply has them. Of a blank
    reply it is 0; two blank ones are the same reply all the same, and count as 100.

    Time is quadratic in the number of replies: seconds for 32 long ones.

    Args:
        replies: of each prompt, as many as of every other: BLEU rises with the number of references.

    Raises:
        DataError: there is no prompt, fewer than two replies a prompt, or not as many of each.
        ConfigError: the package sacrebleu is not installed.

    Examples:
        >>> from bara_pyro.metrics import self_bleu_diversity
        >>> same, other = "the guest lives in the marsh", "one two three four five six"
        >>> self_bleu_diversity([[same, same], [same, other]]).per_prompt.round(1).tolist()
        [0.0, 100.0]
    """
    _check_replies(replies)
    counts = [len(of_prompt) for of_prompt in replies]
    for prompt, count in enumerate(counts):
        if count != counts[0] or count < 2:
            raise DataError(
                f"Prompt {prompt} has {count} replies and prompt 0 has {counts[0]}: Self-BLEU compares two "
                "or more and rises with their number, so give as many of every prompt."
            )
    bleu = _sacrebleu()
    self_bleu = [np.mean(_each_against_the_rest(bleu, list(of_prompt))) for of_prompt in replies]
    # Of two equal replies sacrebleu's logarithms make 100 and a rounding error.
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
    # `corpus_score([reply], [rest])` would read the rest as one reference each of so many replies, and use
    # the first of them alone.
    scores = [
        bleu.sentence_score(reply, replies[:i] + replies[i + 1 :]).score for i, reply in enumerate(replies)
    ]
    blank = [not reply.strip() for reply in replies]
    return [
        100.0 if is_blank and sum(blank) > 1 else score for is_blank, score in zip(blank, scores, strict=True)
    ]


def distinct_n(replies: Sequence[Sequence[str]], n: int) -> Floats:
    """Return the distinct n-grams of each prompt's replies per 100 words (percent, `prompts`).

    As Li et al. 2016 (arXiv 1510.03055) define it: the number of distinct n-grams over the number of words,
    all replies to the prompt taken together. (Many divide by the number of n-grams, n - 1 fewer a reply.)
    Words are what white space parts, case and all; no n-gram goes from one reply into the next. It falls
    with the length of replies: compare lengths too.

    Args:
        replies: of each prompt.
        n: the length of the n-grams, 1 and 2 in the paper.

    Raises:
        DataError: there is no prompt, or one whose replies have no word.
        ConfigError: `n` is not a positive integer.

    Examples:
        >>> from bara_pyro.metrics import distinct_n
        >>> replies = [["a b a b", "a b"]]  # of one prompt
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
        raise DataError(f"The replies to prompt {prompt} have no word: leave the prompt out.")
    found = {tuple(reply[i : i + n]) for reply in words for i in range(len(reply) - n + 1)}
    return 100.0 * len(found) / total


def _check_replies(replies: Sequence[Sequence[str]]) -> None:
    """Raise `DataError` for anything but texts by prompt (a text is a sequence of texts too)."""
    if not len(replies):
        raise DataError("replies is empty: there is nothing to score.")
    for prompt, of_prompt in enumerate(replies):
        if isinstance(of_prompt, str) or not all(isinstance(reply, str) for reply in of_prompt):
            raise DataError(f"replies[{prompt}] is {of_prompt!r:.60}: give a list of texts for every prompt.")


def mean_cosine_distance(embeddings: ArrayLike) -> Floats:
    """Return the mean of 1 - cosine over the pairs of replies to each prompt (0..2, `prompts`).

    Args:
        embeddings: `prompts x samples x dim`, of any length but 0.

    Raises:
        DataError: `embeddings` is empty, ragged or not finite, one is all zeros, or there is
            one reply a prompt.

    Examples:
        >>> from bara_pyro.metrics import mean_cosine_distance
        >>> mean_cosine_distance([[[1.0, 0.0], [0.0, 2.0]], [[1.0, 1.0], [3.0, 3.0]]]).round(6).tolist()
        [1.0, 0.0]
    """
    checked = as_finite_array(embeddings, "embeddings", ("prompts", "samples", "dim"))
    samples = checked.shape[1]
    if samples < 2:
        raise DataError("There is 1 reply a prompt: a distance needs two or more.")
    length = np.linalg.norm(checked, axis=2, keepdims=True)
    if not length.all():
        prompt, sample = np.argwhere(length[..., 0] == 0)[0].tolist()
        raise DataError(
            f"embeddings[{prompt}, {sample}] is all zeros, which has no direction: embed the reply again."
        )
    # The square of the sum of unit vectors counts each once with itself and each pair twice.
    total = np.square((checked / length).sum(axis=1)).sum(axis=1)
    cosine = (total - samples) / (samples * (samples - 1))
    return np.maximum(1.0 - cosine, 0.0)
