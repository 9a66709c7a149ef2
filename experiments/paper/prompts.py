"""Prompts by name: those of the Bayesian-PEFT line of code, on which the published tables rest, and ours."""

from collections.abc import Callable
from dataclasses import replace

from bara_pyro.data import Example, Task
from bara_pyro.data.labels import lettered
from bara_pyro.data.types import ANSWER

Rewrite = Callable[[Example], Example]

CHOICES = """\
Return the label of the correct answer for the question below.

Question: {question}
{heading}:
{choices}
Answer:"""
PASSAGE = """\
Read the passage below and answer the question with the words 'true' or 'false'.

Passage: {passage}"""
QUESTION = "Question: {question}\nAnswer (true or false):"


def _choices(stem: str = "", heading: str = "Choices", *, text_first: bool = False) -> Rewrite:
    """Return the rewriting of a question with options.

    Args:
        stem: beginning of our question that is left out.
        heading: line above the options.
        text_first: list an option as "text) label", as the public code of ARC and OpenBookQA does.
    """

    def rewrite(row: Example) -> Example:
        question = row.question.removesuffix(lettered("", row.texts)).strip().removeprefix(stem)
        letters = row.options if text_first else "ABCDEFGHIJKLM"
        pairs = zip(row.texts, letters, strict=False)
        lines = [f"{text}) {label}" if text_first else f"{label}) {text}" for text, label in pairs]
        return replace(
            row, question=CHOICES.format(question=question, heading=heading, choices="\n".join(lines))
        )

    return rewrite


def _passage(row: Example) -> Example:
    """Return a question about a passage, which is cut at its end if the prompt is too long."""
    question = row.question.removeprefix("True or False: ").removesuffix(f"?\n{ANSWER}")
    return replace(
        row, context=PASSAGE.format(passage=row.context), question=QUESTION.format(question=question)
    )


_ARC, _WINOGRANDE = _choices(text_first=True), _choices("Fill in the blank: ")
BAYESIAN_PEFT = {
    "arc_easy": _ARC,
    "arc_challenge": _ARC,
    "openbookqa": _choices(heading="Chioces", text_first=True),  # sic
    "winogrande_s": _WINOGRANDE,
    "winogrande_m": _WINOGRANDE,
    "boolq": _passage,
    "mmlu_college_chemistry": _choices(),
    "mmlu_college_physics": _choices(),
}
PROMPTS: dict[str, dict[str, Rewrite]] = {"bayesian-peft": BAYESIAN_PEFT, "ours": {}}


def with_prompts(task: Task, name: str) -> Task:
    """Return a task with its questions written as the prompts of this name have them."""
    rewrite = PROMPTS[name].get(task.name)
    return task if rewrite is None else task.each_row(rewrite)
