"""From one row of a hub dataset to one `Example`: a function per schema, all with the same signature.

The prompts are short and end in "Answer:"; options are printed as "A) text", in the order of the file
(truthful_qa excepted, whose right option always stands first there). A schema function raises `DataError`
with what is wrong in the row; the loader adds the file and the row number.
"""

import hashlib
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bara_pyro.data.types import Example
from bara_pyro.errors import DataError

Row = Mapping[str, Any]
Schema = Callable[[Row, str], Example]

ANSWER = "Answer:"
LETTERS = tuple(string.ascii_uppercase)
AG_NEWS_TOPICS = ("World", "Sports", "Business", "Sci/Tech")
PASSAGE_CHARACTERS = 1024  # the protocol of the BLoB line of papers cuts BoolQ's passage here


def lettered(stem: str, options: Sequence[str]) -> str:
    r"""Return the question with its options, one a line, and the cue for the answer.

    >>> lettered("Which is a fruit?", ["stone", "pear"])
    'Which is a fruit?\nA) stone\nB) pear\nAnswer:'
    """
    lines = [f"{letter}) {option}" for letter, option in zip(LETTERS, options, strict=False)]
    return "\n".join([stem, *lines, ANSWER])


def text_of(row: Row, key: str) -> str:
    """Return `row[key]`, stripped; raise `DataError` where it is absent, empty or no text."""
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"it has no text in {key!r} (found {value!r}).")
    return value.strip()


def answer_of(row: Row, key: str) -> Any:
    """Return `row[key]`; raise `DataError` where there is no answer."""
    value = row.get(key)
    if value is None or (isinstance(value, str) and not value.strip()):
        raise DataError(f"it has no answer in {key!r}: fill it in, or leave the row out.")
    return value


def options_of(values: Any, key: str) -> list[str]:
    """Return a list of at least two option texts; raise `DataError` for anything else."""
    if not isinstance(values, list) or not 2 <= len(values) <= len(LETTERS):
        raise DataError(f"it needs a list of 2 to {len(LETTERS)} options in {key!r} (found {values!r}).")
    for value in values:
        if not isinstance(value, str) or not value.strip():
            raise DataError(f"it has an option in {key!r} that is no text: {value!r}.")
    return [value.strip() for value in values]


def index_of(answer: Any, known: Sequence[Any]) -> int:
    """Return the place of `answer` in `known`; raise `DataError` naming the known ones."""
    if answer not in known:
        raise DataError(f"its answer {answer!r} is none of {', '.join(map(str, known))}.")
    return list(known).index(answer)


def ai2_arc(row: Row, row_id: str) -> Example:
    """ARC (allenai/ai2_arc): 3 to 5 options whose labels are letters or, in older exams, digits.

    The label is the option's place, so "1" and "A" are the same class and no digit ever is an answer token.
    """
    question, choices = text_of(row, "question"), row.get("choices") or {}
    options = options_of(choices.get("text"), "choices")
    names = [str(name) for name in choices.get("label") or []]
    if len(names) != len(options):
        raise DataError(f"it has {len(options)} options but {len(names)} labels.")
    return Example(row_id, lettered(question, options), index_of(answer_of(row, "answerKey"), names))


def openbookqa(row: Row, row_id: str) -> Example:
    """OpenBookQA (allenai/openbookqa, main): ARC's schema with the question in `question_stem`."""
    return ai2_arc({**row, "question": row.get("question_stem")}, row_id)


def winogrande(row: Row, row_id: str) -> Example:
    """WinoGrande (allenai/winogrande): which of two options fills the blank."""
    options = options_of([row.get("option1"), row.get("option2")], "option1, option2")
    stem = f"Fill in the blank: {text_of(row, 'sentence')}"
    return Example(row_id, lettered(stem, options), index_of(str(answer_of(row, "answer")), ["1", "2"]))


def boolq(row: Row, row_id: str) -> Example:
    """BoolQ (google/boolq): classes ('False', 'True'), so that `int(answer)` is the class.

    The code of earlier papers lists the labels the other way round and thereby teaches the model to answer
    "False" where the passage says yes; here True means 'True'.
    """
    question = text_of(row, "question").rstrip("?")
    answer = index_of(answer_of(row, "answer"), [False, True])
    passage = text_of(row, "passage")[:PASSAGE_CHARACTERS]
    return Example(row_id, f"True or False: {question}?\n{ANSWER}", answer, passage)


def mmlu(row: Row, row_id: str) -> Example:
    """MMLU (cais/mmlu): four options, the answer is an index."""
    options = options_of(row.get("choices"), "choices")
    answer = index_of(answer_of(row, "answer"), range(len(options)))
    return Example(row_id, lettered(text_of(row, "question"), options), answer)


def hellaswag(row: Row, row_id: str) -> Example:
    """HellaSwag (Rowan/hellaswag): which ending follows; the text to go on from is part of the question."""
    endings = options_of(row.get("endings"), "endings")
    places = [str(place) for place in range(len(endings))]
    answer = index_of(str(answer_of(row, "label")), places)
    return Example(row_id, lettered(f"What comes next? {text_of(row, 'ctx')}", endings), answer)


def truthful_qa(row: Row, row_id: str) -> Example:
    """TruthfulQA (truthfulqa/truthful_qa, multiple_choice), task mc1: one right option of 2 to 13.

    The file always puts the right option first, so the options are shuffled: by a hash of the row's id,
    which gives the same order in every run, on every machine and for every seed.
    """
    targets = row.get("mc1_targets") or {}
    options, marks = options_of(targets.get("choices"), "mc1_targets"), targets.get("labels") or []
    if len(marks) != len(options) or list(marks).count(1) != 1:
        raise DataError(f"its mc1_targets must mark exactly one of {len(options)} options (found {marks!r}).")
    order = sorted(range(len(options)), key=lambda place: digest(f"{row_id}/{place}"))
    question = lettered(text_of(row, "question"), [options[place] for place in order])
    return Example(row_id, question, order.index(list(marks).index(1)))


def ag_news(row: Row, row_id: str) -> Example:
    """AG News (fancyzhx/ag_news): the topic of an article, asked with lettered options."""
    answer = index_of(answer_of(row, "label"), range(len(AG_NEWS_TOPICS)))
    question = lettered("What is the topic of this article?", AG_NEWS_TOPICS)
    return Example(row_id, question, answer, text_of(row, "text"))


def digest(text: str) -> str:
    """Return a hash that stays the same across processes and versions, unlike Python's own."""
    return hashlib.sha256(text.encode()).hexdigest()
