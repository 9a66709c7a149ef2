"""Turn a row of a hub dataset into an `Example`: one function per schema, all with the same signature.

The prompts are short and end in "Answer:". Options are listed as "A) text" in the order of the file; only
those of truthful_qa, whose file lists the right one first, are shuffled. A row without an answer gets the
label -1. A schema function raises a `DataError` about the row; the loader adds the file and the row's number.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence

from bara_pyro.data.labels import lettered
from bara_pyro.data.tables import label_text, missing, text_field
from bara_pyro.data.types import ANSWER, LETTERS, Example
from bara_pyro.errors import DataError
from bara_pyro.types import Fields

Row = Fields
Schema = Callable[[Row, str], Example]

AG_NEWS_TOPICS = ("World", "Sports", "Business", "Sci/Tech")
PASSAGE_CHARACTERS = 1024  # BoolQ's passage is cut here, as in the protocol of BLoB and later papers


def options_of(values: object, key: str) -> list[str]:
    """Return a list of at least two options as texts; raise a `DataError` for anything else."""
    if not isinstance(values, list) or not 2 <= len(values) <= len(LETTERS):
        raise DataError(f"it needs a list of 2 to {len(LETTERS)} options in {key!r} (found {values!r:.60}).")
    for value in values:
        if not isinstance(value, str | int | float) or missing(value):
            raise DataError(f"it has an option in {key!r} that is not a text: {value!r:.60}.")
    return [str(value).strip() for value in values]


def index_of(answer: object, known: Sequence[object]) -> int:
    """Return the index of `answer` in `known`, -1 if empty; raise a `DataError` if it is not there."""
    if missing(answer):
        return -1
    if answer not in known:
        raise DataError(f"its answer {answer!r} is not one of {', '.join(map(str, known))}.")
    return list(known).index(answer)


def named_options(choices: object, key: str) -> tuple[list[str], tuple[str, ...]]:
    """Return the options of a row and their labels; no labels if the row lists only texts.

    Choices are texts, objects with a `text` and a `label`, ARC's `{"text": [...], "label": [...]}`, or `{"A":
    "iron", "B": "tin"}`. In another format, with fewer than 2 or more than 26 options, or with equal labels,
    they raise a `DataError`.
    """
    if isinstance(choices, list) and any(isinstance(option, Mapping) for option in choices):
        choices = _of_objects(choices, key)
    elif isinstance(choices, Mapping) and "text" not in choices:
        there = {name: text for name, text in choices.items() if text is not None}  # Parquet fills in nulls
        choices = {"text": [*there.values()], "label": [*there]}
    if not isinstance(choices, Mapping):
        return options_of(choices, key), ()
    options = options_of(choices.get("text"), key)
    named = choices.get("label") or ()
    if not isinstance(named, list | tuple):
        raise DataError(f"its options' labels in {key!r} are not a list: {named!r:.60}.")
    names = tuple(label_text(name, f"an option's label in {key!r}") for name in named)
    if named and (len(names) != len(options) or len(set(names)) != len(names)):
        raise DataError(f"it has {len(options)} options but {len(set(names))} different labels.")
    return options, names


def _of_objects(options: Sequence[object], key: str) -> Row:
    """Return options given as objects, each with a text and all or none with a label, in ARC's format."""
    objects = [option if isinstance(option, Mapping) else {} for option in options]
    labelled = [option for option in objects if option.get("label") is not None]
    if any("text" not in option for option in objects) or len(labelled) not in (0, len(objects)):
        raise DataError(
            f"its {key!r} mix objects of different form: give each a 'text', and all or none a 'label' "
            f"(found {options!r:.60})."
        )
    texts = [option["text"] for option in objects]
    return {"text": texts, "label": [option["label"] for option in labelled]}


def ai2_arc(row: Row, row_id: str, column: str = "question") -> Example:
    """Read a row of ARC (allenai/ai2_arc): 3 to 5 options, labelled by letters or, in older exams, digits.

    The class is the option's index, so "1" and "A" are the same class and no digit is an answer token.
    """
    question = text_field(row, column)
    options, names = named_options(row.get("choices"), "choices")
    names = names or LETTERS[: len(options)]
    return _choice(row_id, question, options, _place(row.get("answerKey"), names), names)


def openbookqa(row: Row, row_id: str) -> Example:
    """Read a row of OpenBookQA (allenai/openbookqa, main): ARC's schema, question in `question_stem`."""
    return ai2_arc(row, row_id, "question_stem")


def winogrande(row: Row, row_id: str) -> Example:
    """Read a row of WinoGrande (allenai/winogrande): which of two options fills the blank."""
    options = options_of([row.get("option1"), row.get("option2")], "option1, option2")
    stem = f"Fill in the blank: {text_field(row, 'sentence')}"
    return _choice(row_id, stem, options, _place(row.get("answer"), ["1", "2"]), ("1", "2"))


def boolq(row: Row, row_id: str) -> Example:
    """Read a row of BoolQ (google/boolq): classes ('False', 'True'), so that `int(answer)` is the class.

    The code of earlier papers swaps the labels, which teaches the model to answer "False" when the passage
    says yes; here True means 'True'.
    """
    question = text_field(row, "question").rstrip("?")
    answer = row.get("answer")
    label = index_of(answer, ["False", "True"] if isinstance(answer, str) else [False, True])
    passage = text_field(row, "passage")[:PASSAGE_CHARACTERS]
    return Example(row_id, f"True or False: {question}?\n{ANSWER}", label, passage)


def mmlu(row: Row, row_id: str) -> Example:
    """Read a row of MMLU (cais/mmlu): four options, the answer is an index."""
    options = options_of(row.get("choices"), "choices")
    return _indexed(row_id, text_field(row, "question"), options, row.get("answer"))


def hellaswag(row: Row, row_id: str) -> Example:
    """Read a row of HellaSwag (Rowan/hellaswag): which ending follows; the question includes the text."""
    endings = options_of(row.get("endings"), "endings")
    return _indexed(row_id, f"What comes next? {text_field(row, 'ctx')}", endings, row.get("label"))


def truthful_qa(row: Row, row_id: str) -> Example:
    """Read a row of TruthfulQA (truthfulqa/truthful_qa, multiple_choice), mc1: one right option of 2 to 13.

    The file always lists the right option first, so the options are shuffled by a hash of the row's id. The
    order is the same in every run and for every seed.
    """
    targets = row.get("mc1_targets")
    if not isinstance(targets, Mapping):
        raise DataError(f"it needs 'choices' and 'labels' in 'mc1_targets' (found {targets!r}).")
    options, marks = options_of(targets.get("choices"), "mc1_targets"), targets.get("labels") or []
    if not isinstance(marks, list):
        raise DataError(f"its 'labels' in 'mc1_targets' are not a list: {marks!r}.")
    if marks and (len(marks) != len(options) or marks.count(1) != 1):
        raise DataError(f"its mc1_targets must mark exactly one of {len(options)} options (found {marks!r}).")
    order = sorted(
        range(len(options)), key=lambda place: hashlib.sha256(f"{row_id}/{place}".encode()).digest()
    )
    shuffled = tuple(options[place] for place in order)
    label = order.index(marks.index(1)) if marks else -1
    return _choice(row_id, text_field(row, "question"), shuffled, label, shuffled)


def ag_news(row: Row, row_id: str) -> Example:
    """Read a row of AG News (fancyzhx/ag_news): the topic of an article, with lettered options."""
    answer = row.get("label")
    label = index_of(answer, AG_NEWS_TOPICS if isinstance(answer, str) else range(len(AG_NEWS_TOPICS)))
    question = lettered("What is the topic of this article?", AG_NEWS_TOPICS)
    return Example(row_id, question, label, text_field(row, "text"))


def _indexed(row_id: str, stem: str, options: Sequence[str], answer: object) -> Example:
    places = tuple(map(str, range(len(options))))
    return _choice(row_id, stem, options, _place(answer, places), places)


def _choice(row_id: str, stem: str, options: Sequence[str], label: int, names: tuple[str, ...]) -> Example:
    """Return a question that lists its options; `names` are the source's names of the options."""
    return Example(row_id, lettered(stem, options), label, options=names, texts=tuple(options))


def _place(answer: object, places: Sequence[str]) -> int:
    """Return the index that a number, or its text, stands for."""
    return index_of(answer if answer is None else str(answer).strip(), places)
