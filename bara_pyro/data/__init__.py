"""Questions with a fixed set of answers: load them from the hub, a file or memory, and batch them."""

from bara_pyro.columns import ColumnNames
from bara_pyro.data.chat import chat_frame
from bara_pyro.data.encode import encode, prompt_text
from bara_pyro.data.labels import as_asked, as_letters, encode_labels
from bara_pyro.data.loader import is_file_name, load_task
from bara_pyro.data.questions import load_questions
from bara_pyro.data.registry import SOURCES, Generated, Source, register_task
from bara_pyro.data.split import EncodedRows, EncodedSplit, batches, first_rows, training_batches
from bara_pyro.data.tokens import answer_token_ids
from bara_pyro.data.types import Batch, ChatFrame, Columns, Example, Task
from bara_pyro.data.userfile import task_from_rows

__all__ = [
    "SOURCES",
    "Batch",
    "ChatFrame",
    "ColumnNames",
    "Columns",
    "EncodedRows",
    "EncodedSplit",
    "Example",
    "Generated",
    "Source",
    "Task",
    "answer_token_ids",
    "as_asked",
    "as_letters",
    "batches",
    "chat_frame",
    "encode",
    "encode_labels",
    "first_rows",
    "is_file_name",
    "load_questions",
    "load_task",
    "prompt_text",
    "register_task",
    "task_from_rows",
    "training_batches",
]
