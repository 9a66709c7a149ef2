"""Questions with a closed set of answers: from the hub, a folder, a file or the microworld to batches."""

from bara_pyro.data.batching import batches, training_batches
from bara_pyro.data.encode import EncodedSplit, answer_token_ids, collate, encode, first_rows, prompt_text
from bara_pyro.data.letters import as_letters
from bara_pyro.data.loader import load_task
from bara_pyro.data.questions import load_questions
from bara_pyro.data.registry import SOURCES, Source
from bara_pyro.data.types import Batch, Example, Task

__all__ = [
    "SOURCES",
    "Batch",
    "EncodedSplit",
    "Example",
    "Source",
    "Task",
    "answer_token_ids",
    "as_letters",
    "batches",
    "collate",
    "encode",
    "first_rows",
    "load_questions",
    "load_task",
    "prompt_text",
    "training_batches",
]
