"""Functions for the task files: read rows in other layouts than lm-eval's own tasks."""

import re

from datasets import Dataset
from lm_eval.tasks.hellaswag.utils import preprocess

from bara_pyro.types import Json

# The end of a sentence, after which the second half of a HellaSwag context begins.
STOP = re.compile(r"(.*[.!?]['\")]*\s+)(?=\S)", re.DOTALL)


def hellaswag(dataset: Dataset) -> Dataset:
    """Return rows with `query`, `choices` and `gold`, as lm-eval's `process_docs` of hellaswag does.

    In rows without `ctx_a` and `ctx_b`, the unfinished last sentence of `ctx` is `ctx_b`.
    """
    return dataset.map(_hellaswag_row)


def _hellaswag_row(row: Json) -> Json:
    first, second = (row["ctx_a"], row["ctx_b"]) if "ctx_a" in row else divided_context(row["ctx"])
    query = preprocess(f"{row['activity_label']}: {first} {second.capitalize()}")
    return {"query": query, "choices": [preprocess(e) for e in row["endings"]], "gold": int(row["label"])}


def divided_context(context: str) -> tuple[str, str]:
    """Split a HellaSwag context into its complete sentences and the unfinished last one."""
    match = STOP.match(context)
    if context.rstrip().endswith((".", "!", "?")) or match is None:
        return context, ""
    return match[1].rstrip(), context[match.end() :]


def boolq(dataset: Dataset) -> Dataset:
    """Return rows with SuperGLUE's `label` (0 or 1), from rows with a true or false `answer`."""
    if "label" in dataset.column_names:
        return dataset
    return dataset.map(_boolq_row)


def _boolq_row(row: Json) -> Json:
    return {"label": row["label"] if "label" in row else int(row["answer"])}


OF_ROWS = {hellaswag: _hellaswag_row, boolq: _boolq_row}
"""The function of each of these for one row."""
