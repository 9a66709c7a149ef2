"""Answer the questions of a server with a run."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol

from bara_pyro.data import ColumnNames, EncodedSplit, Example, load_questions
from bara_pyro.data.columns import find_columns
from bara_pyro.data.labels import among_offered
from bara_pyro.data.questions import text_column
from bara_pyro.data.tables import read_table
from bara_pyro.errors import DataError
from bara_pyro.runs.predict import answers_of, names_of
from bara_pyro.runs.rows import encode_rows, longest, reading_notes
from bara_pyro.runs.system import System, require_answers
from bara_pyro.types import Fields, Json

PART = 2**16
"""Characters tokenized at a time, which takes about 0.05 s."""


@dataclass(frozen=True)
class QueuedQuestion:
    """A row that has been read.

    Attributes:
        example: the question.
        encoded: its tokens, as a split of one row.
    """

    example: Example
    encoded: EncodedSplit


@dataclass(frozen=True)
class Answer:
    """A run's answer to a question.

    Attributes:
        said: `id`, `label`, `probs`, `total`, `aleatoric` and `epistemic`, as `bara predict` writes them.
        classes: names of the C classes, the keys of `probs`.
        draws: probabilities of the classes under each draw, S lists of C numbers.
    """

    said: Json
    classes: tuple[str, ...]
    draws: list[list[float]]


class Engine(Protocol):
    """Interface of a served model; `compute` is called in one thread, `read` in several at once."""

    @property
    def about(self) -> Json:
        """Facts for `/health`; error messages use `text_column` as the name of a row's text."""
        ...

    def read(self, rows: Sequence[Fields]) -> tuple[list[QueuedQuestion], list[str]]:
        """Return the questions of a request and notes on them; raise a `BaraError` to refuse it."""
        ...

    def compute(self, questions: Sequence[QueuedQuestion]) -> list[Answer]:
        """Return answers in order; a question's answer must not depend on the others."""
        ...


class RunEngine:
    """Serve a fitted system.

    The noise of an answer is a function of seed, site, row id, position and draw (`bara_pyro.core.noise`),
    so an answer does not depend on the other questions of its batch, apart from rounding.

    Args:
        system: a fitted system; `load_system(folder, with_rows=False)` is enough.
        samples: posterior draws S of each answer; 0 for the posterior mean.
        seed: seed of the draws.
        memory_budget: approximate bytes for the activations of one forward pass; the run's own by default.

    Raises:
        ConfigError: the model was trained to write replies.
    """

    def __init__(
        self, system: System, *, samples: int = 10, seed: int = 0, memory_budget: int | None = None
    ) -> None:
        require_answers(system.config)
        self.system, self.samples, self.seed = system, samples, seed
        self.memory_budget = memory_budget or system.config.predict.memory_budget
        # A row that is too long is dropped here; `read` then refuses its request.
        self._reading = system.config.updated("task", too_long="drop")
        self._text_column = text_column(system.task)
        # One thread: tokenizers are not thread-safe.
        self._tokenizing = ThreadPoolExecutor(1, "tokenize")
        read_table([{"": ""}])  # import slow modules now, not during the first request

    @property
    def about(self) -> Json:
        """Return the method, task, classes, name of the text's column, draws and seed."""
        task = self.system.task
        return {
            "method": self.system.config.method.name,
            "task": task.name,
            "classes": list(task.names or task.labels),
            "text_column": self._text_column,
            "samples": self.system.model.members or self.samples,  # an ensemble's draws are its members
            "seed": self.seed,
        }

    def read(self, rows: Sequence[Fields]) -> tuple[list[QueuedQuestion], list[str]]:
        """Read rows as `bara predict` reads a file.

        Raises:
            DataError: a row cannot be read, is longer than `task.max_length`, or repeats an id.
        """
        self._check_text(rows)
        examples = load_questions(rows, self.system.task)
        split = united(list(self._encoded(examples)))
        if split.dropped:
            most = longest(self.system.config, self.system.backbone)
            raise DataError(
                f"The question of row {split.dropped[0]!r} is longer than {most} tokens, this run's limit: "
                "shorten it."
            )
        questions = [QueuedQuestion(example, split.take([i])) for i, example in enumerate(examples)]
        return questions, reading_notes(self._reading, self.system.backbone, split, "given")

    def _encoded(self, examples: Sequence[Example]) -> Iterator[EncodedSplit]:
        """Yield tokenized rows, a few at a time, so that other requests are read in between."""
        system = self.system
        for part in parts(examples):
            yield self._tokenizing.submit(
                encode_rows, self._reading, system.backbone, system.task, part
            ).result()

    def _check_text(self, rows: Sequence[Fields]) -> None:
        """Raise a `DataError` in terms of a request if no key holds the text."""
        keys = list(dict.fromkeys(key for row in rows for key in row))
        if self._text_column in keys:
            return
        try:
            find_columns(keys, ColumnNames(), "", answers=False, last_words=False)
        except DataError as error:
            there = ", ".join(map(repr, keys)) or "none"
            raise DataError(
                f"No key of the rows is known as their text (keys: {there}): name it {self._text_column!r}."
            ) from error

    def compute(self, questions: Sequence[QueuedQuestion]) -> list[Answer]:
        """Return answers in the order of the questions."""
        # Sorted by length, so that the parts of a batch have little padding.
        order = sorted(range(len(questions)), key=lambda i: questions[i].encoded.lengths[0])
        ordered = [questions[i] for i in order]
        split = replace(united([question.encoded for question in ordered]), labels=(-1,) * len(ordered))
        batch = split.batch(range(len(ordered)), self.system.answer_ids)
        log_probs = self.system.corrections.predict(
            self.system.model,
            self.system.guide,
            batch.to(self.system.backbone.device),
            samples=self.samples,
            seed=self.seed,
            memory_budget=self.memory_budget,
        )
        examples = [question.example for question in ordered]
        log_probs = among_offered(log_probs, [len(example.options) for example in examples])
        rows = answers_of(log_probs, examples, self.system.task)
        draws = log_probs.exp().transpose(0, 1).tolist()
        answers = [
            Answer(row, names_of(example, self.system.task), of_row)
            for row, example, of_row in zip(rows, examples, draws, strict=True)
        ]
        return [answers[place] for place in sorted(range(len(order)), key=order.__getitem__)]


def parts(examples: Sequence[Example]) -> Iterator[list[Example]]:
    """Yield consecutive examples in lists of about `PART` characters."""
    part: list[Example] = []
    size = 0
    for example in examples:
        part.append(example)
        size += len(example.context) + len(example.question) + sum(map(len, example.texts))
        if size >= PART:
            yield part
            part, size = [], 0
    if part:
        yield part


def united(splits: Sequence[EncodedSplit]) -> EncodedSplit:
    """Return several splits as one; ids may repeat."""
    tokens = [sum(map(len, split.token_ids)) for split in splits]
    unknown = sum(size * split.unknown for size, split in zip(tokens, splits, strict=True))
    return EncodedSplit(
        token_ids=tuple(row for split in splits for row in split.token_ids),
        labels=tuple(label for split in splits for label in split.labels),
        ids=tuple(row_id for split in splits for row_id in split.ids),
        pad_id=splits[0].pad_id,
        shortened=tuple(row_id for split in splits for row_id in split.shortened),
        dropped=tuple(row_id for split in splits for row_id in split.dropped),
        unknown=unknown / max(sum(tokens), 1),
        texts=tuple(texts for split in splits for texts in split.texts),
        offered=(),
    )
