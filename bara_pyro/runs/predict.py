"""Predict new rows with a run, and load rows to evaluate it on."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from bara_pyro.data import (
    ColumnNames,
    Example,
    Task,
    as_asked,
    encode_labels,
    is_file_name,
    load_questions,
)
from bara_pyro.data.conversations import load_conversations
from bara_pyro.data.reply_tasks import ReplyTask
from bara_pyro.data.rows import check_other_file
from bara_pyro.data.tables import Data
from bara_pyro.errors import ConfigError
from bara_pyro.metrics import decompose, posterior_predictive
from bara_pyro.runs.answers import Answers
from bara_pyro.runs.asked import ask
from bara_pyro.runs.config import RunConfig, load_config
from bara_pyro.runs.folder import check_own_rows, fitted, own_rows, trained_on
from bara_pyro.runs.remote import is_address, predict_remotely
from bara_pyro.runs.rows import OnRows, load_rows
from bara_pyro.runs.sections import TaskConfig
from bara_pyro.runs.stored import stored_config, stored_task
from bara_pyro.runs.system import System, require_answers
from bara_pyro.types import Json

SAMPLES = 10  # posterior draws of an answer, as in the paper


def predict(
    run: System | str | Path,
    data: Data,
    *,
    samples: int | None = None,
    seed: int | None = None,
    given: ColumnNames | None = None,
    on_rows: OnRows | None = None,
    on_total: OnRows | None = None,
) -> Answers:
    """Predict the answers of new rows.

    Args:
        run: the result of `train` or `load_system`, the folder of a run, or the address of a server
            ("http://..."). Its training rows are not needed.
        data: a file, DataFrame, Dataset, list of dictionaries or list of texts, with or without answers.
        samples: number S of posterior draws (default: 10), 0 for the posterior mean; a server has its own.
        seed: seed of the draws; default: the run's seed.
        given: columns of the rows, if their names differ from the training rows'.
        on_rows: called after each batch with its number of rows.
        on_total: called with the number of all rows before the first batch, but not with a server.

    Returns:
        The answers in order: `rows` has one dictionary per row with `id`, the most probable `label`, `probs`
        (label -> probability), and the uncertainties `total`, `aleatoric` and `epistemic` in nats.
        `to_pandas()` makes a DataFrame of them.

    Raises:
        ConfigError: the model was trained on replies, or a server does not answer.
        CheckpointError: the folder is not a finished run.
        DataError: the rows cannot be read, or have other classes than the run; see
            `data.questions.load_questions`.

    Examples:
        >>> import bara_pyro as bp
        >>> run = bp.train(task="micro-wgs", method="bara-gate", steps=5, limit=40, out="runs/first")
        >>> question = "vome meets bimu . in winter bimu keeps what ? A:goats B:ducks Answer :"
        >>> [answer] = bp.predict(run, [{"id": "bimu", "question": question}], samples=10).rows
        >>> sorted(answer), sorted(answer["probs"])
        (['aleatoric', 'epistemic', 'id', 'label', 'probs', 'total'], ['A', 'B'])
        >>> abs(answer["total"] - answer["aleatoric"] - answer["epistemic"]) < 1e-9
        True
        >>> again = bp.predict("runs/first", [question])  # the folder of a run, and texts
        >>> again.to_pandas()["id"].tolist()
        ['row-1']
    """
    if isinstance(run, str) and is_address(run):
        if (samples, seed, given) != (None, None, None):
            raise ConfigError(
                f"The server at {run} has its own draws and seed: leave out samples, seed and given."
            )
        return predict_remotely(run, data, on_rows)
    run = fitted(run)
    count = SAMPLES if samples is None else samples
    asked = ask(run, data, "given", given=given, samples=count, seed=seed, on_rows=on_rows, on_total=on_total)
    rows = answers_of(asked.draws, asked.examples, run.task)
    return Answers(rows, [*asked.notes], asked.given, run.task.names or run.task.labels)


def answers_of(draws: Tensor, examples: Sequence[Example], task: Task) -> list[Json]:
    """Return the predictions of each row (see `Answers`) from log-probabilities (`draw`), `S x n x C`."""
    mean, parts = posterior_predictive(draws), decompose(draws)
    rows = []
    for i, example in enumerate(examples):
        names = names_of(example, task)
        rows.append(
            {
                "id": example.id,
                "label": names[int(mean[i].argmax())],
                "probs": dict(zip(names, mean[i].exp().tolist(), strict=True)),
                "total": float(parts.total[i]),
                "aleatoric": float(parts.aleatoric[i]),
                "epistemic": float(parts.epistemic[i]),
            }
        )
    return rows


def names_of(example: Example, task: Task) -> tuple[str, ...]:
    """Return the user's name of each class in this row."""
    if not example.options:
        return task.names or task.labels
    names = [*example.options]
    for label in task.labels[len(example.options) :]:
        name = f"({label})"
        while name in names:  # an option may have this text
            name = f"({name})"
        names.append(name)
    return tuple(names)


def check_rows_of_run(system: System, folder: Path, data_dir: Path | None = None) -> None:
    """Raise a `DataError` if a run's own rows differ from those that it was trained and tested on."""
    run_config, stored = stored_config(folder)
    config = load_config(overrides={"task.data_dir": data_dir} if data_dir else {}, base=run_config)
    task = own_rows(folder, config, stored)
    if isinstance(task, ReplyTask):
        then = replace(system, conversations=task, config=config)
    else:
        asked = replace(task, chat=system.task.chat)
        labelled = encode_labels(asked, system.backbone.tokenizer, config.task.labels)
        then = replace(system, task=labelled, config=config)
    check_own_rows(then, folder)


def rows_to_evaluate(folder: Path, config: RunConfig) -> Task | ReplyTask:
    """Load rows to evaluate a finished run on, in the format that it was trained on.

    All rows of a file other than the run's own are tested on; it is read like the rows of `predict`, and each
    row needs its answer. Classes are matched by name. `config` is that of the run in the folder, with changed
    settings of the task.

    Raises:
        ConfigError: a folder of data is given, but the rows are in a file.
        DataError: the rows cannot be read, or their classes are not the run's.
    """
    run_config, stored = stored_config(folder)
    c = config.task
    file = c.test_file if c.test_file != run_config.task.test_file else None
    if file is None and is_file_name(c.name) and c.name != run_config.task.name:
        file = c.test_file or Path(c.name)
    if file is not None:
        if c.data_dir not in (None, run_config.task.data_dir):
            raise ConfigError(
                f"data_dir={str(c.data_dir)!r} only applies to known tasks, and {str(file)!r} is a file: "
                "leave it out."
            )
        check_other_file(run_config.task.name, file)
        return _whole_file(file, c, stored_task(stored), run_config)
    task = own_rows(folder, config, stored) if c.name == run_config.task.name else load_rows(config)
    if isinstance(task, ReplyTask):
        return task
    trained = stored_task(stored)
    return as_asked(task, trained.labels, trained.names)


def rows_asked(run: System, data: Data | Task) -> Task:
    """Return other rows to score a fitted run on, in the format that it was trained on.

    All rows become test rows, so they need their answers; or give a task.

    Raises:
        ConfigError: the model was trained on replies.
        DataError: the rows cannot be read, or their classes are not the run's.
    """
    require_answers(run.config)
    if isinstance(data, Task):
        return replace(as_asked(data, run.task.labels, run.task.names), chat=run.task.chat)
    name = Path(data).stem if isinstance(data, str | Path) else "rows"
    rows = tuple(load_questions(data, run.task, answers=True))
    notes = (f"tested on all {len(rows)} rows given",)
    return replace(run.task, name=name, train=(), validation=(), test=rows, notes=notes)


def _whole_file(file: Path, c: TaskConfig, trained: Task, run_config: RunConfig) -> Task | ReplyTask:
    """Return a task with all rows of a file as test rows; `run_config` are the settings of the run."""
    if c.likelihood == "completion":
        replies = load_conversations(file)[: c.limit]
        return ReplyTask(
            file.stem, test=replies, notes=(f"tested on all {len(replies)} rows of {file.name}",)
        )
    rows = tuple(load_questions(file, trained, given=c.columns, answers=True)[: c.limit])
    notes = [f"tested on all {len(rows)} rows of {file.name}"]
    if known := trained_on(rows, run_config, trained):
        notes.append(f"the run was trained on {len(known)} of them")
    cluster = trained.columns.cluster if trained.columns else None
    if cluster and not any(row.cluster for row in rows):
        notes.append(
            f"{file.name} has no column {cluster!r}, the run's cluster column: intervals treat its rows as "
            "independent (--cluster-column names another column)"
        )
    return Task(file.stem, trained.labels, (), (), rows, tuple(notes), trained.names, trained.columns)
