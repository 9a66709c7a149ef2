"""Read HumanEval problems and test completions of them.

HumanEval (Chen et al. 2021, "Evaluating Large Language Models Trained on Code", arXiv 2107.03374) has 164
functions to complete from signature and docstring, each with a test `check(candidate)`.
"""

import gzip
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, fields
from pathlib import Path

from bara_pyro.errors import ConfigError, DataError
from bara_pyro.extras.replies.sandbox.limits import Limits
from bara_pyro.extras.replies.sandbox.trial import Outcome, check_isolation, try_function
from bara_pyro.untrusted.schemas import MOST_JSON

# Texts that end a completion (section 3.2 of the paper): another function or a statement follows.
STOP_SEQUENCES = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")


@dataclass(frozen=True)
class Problem:
    """A function to complete.

    Attributes:
        task_id: identifier, for example "HumanEval/0".
        prompt: imports, helpers, and the signature and docstring of the function.
        entry_point: name of the function.
        test: Python text that defines `check(candidate)`; it is trusted, but also runs in isolation.
        canonical_solution: the authors' body of the function.
    """

    task_id: str
    prompt: str
    entry_point: str
    test: str
    canonical_solution: str


@dataclass(frozen=True)
class Judged:
    """The result of testing a completion.

    Attributes:
        index: position of the completion in the input.
        task_id: identifier of its problem.
        outcome: whether it passed, and the reason if not.
    """

    index: int
    task_id: str
    outcome: Outcome


def load_humaneval(path: str | Path) -> tuple[Problem, ...]:
    """Read the problems from HumanEval.jsonl or HumanEval.jsonl.gz.

    Raises:
        DataError: the file cannot be read, a row is not a problem, or a task_id repeats.

    Examples:
        >>> import json
        >>> from pathlib import Path
        >>> from bara_pyro.extras.replies.sandbox import load_humaneval
        >>> row = {
        ...     "task_id": "HumanEval/0",
        ...     "prompt": "def double(x): ",
        ...     "entry_point": "double",
        ...     "test": "def check(candidate): assert candidate(2) == 4",
        ...     "canonical_solution": "return 2 * x",
        ... }
        >>> _ = Path("HumanEval.jsonl").write_text(json.dumps(row))
        >>> [problem] = load_humaneval("HumanEval.jsonl")
        >>> problem.task_id, problem.entry_point
        ('HumanEval/0', 'double')
    """
    path = Path(path)
    problems: dict[str, Problem] = {}
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        problem = _problem(line, f"{path}, row {number}")
        if problem.task_id in problems:
            raise DataError(
                f"{path}, row {number} repeats the task_id {problem.task_id!r}: remove one of the two."
            )
        problems[problem.task_id] = problem
    if not problems:
        raise DataError(f"{path} contains no problems: give HumanEval.jsonl or HumanEval.jsonl.gz.")
    return tuple(problems.values())


def _text(path: Path) -> str:
    if not path.is_file():
        raise DataError(f"There is no file {path}: give HumanEval.jsonl or HumanEval.jsonl.gz.")
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read(MOST_JSON + 1)
        if len(data) > MOST_JSON:
            raise ValueError(f"it has more than {MOST_JSON:,} bytes")  # noqa: TRY301
        return data.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise DataError(f"Cannot read {path} ({error}): download it again.") from error


def _problem(line: str, place: str) -> Problem:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place} is not JSON ({error}): download the file again.") from error
    if not isinstance(row, dict):
        raise DataError(f"{place} is not a JSON object ({line[:40]!r}): download the file again.")
    names = [field.name for field in fields(Problem)]
    for name in names:
        if not isinstance(row.get(name), str):
            texts = ", ".join(names)
            raise DataError(f"{place} has {row.get(name)!r} as its {name}: give the texts {texts}.")
    problem = Problem(**{name: row[name] for name in names})
    if not problem.entry_point.isidentifier() or f"def {problem.entry_point}(" not in problem.prompt:
        raise DataError(
            f"The prompt of {place} does not define its entry_point {problem.entry_point!r}: correct the row."
        )
    return problem


def truncate(completion: str, stop: Sequence[str] = STOP_SEQUENCES) -> str:
    r"""Return a completion up to, and without, the first text that ends it.

    Examples:
        >>> from bara_pyro.extras.replies.sandbox import truncate
        >>> truncate("    return x\n\ndef g():\n    pass")
        '    return x\n'
    """
    ends = [at for at in map(completion.find, stop) if at >= 0]
    return completion[: min(ends, default=len(completion))]


def judge(
    problems: Iterable[Problem],
    completions: Iterable[tuple[str, str]],
    *,
    limits: Limits | None = None,
    workers: int | None = None,
    unsandboxed: bool = False,
) -> Iterator[Judged]:
    """Test completions, several at a time, and yield each result as soon as it is known.

    Results come in the order in which the tests end; `index` identifies the completion. Completions are read
    as workers become free, so the iterable may be long. Closing the generator waits for the running tests.

    Args:
        problems: the problems.
        completions: pairs of a task_id and the text that follows the prompt (use `truncate` to cut it); any
            number per problem.
        limits: limits on each of a completion's two processes; `seconds` is for both together.
        workers: number of completions tested in parallel; by default one per processor core.
        unsandboxed: DANGEROUS: see `run_program`.

    Raises:
        SandboxError: bubblewrap is not installed, or cannot create namespaces on this machine.
        DataError: a task_id belongs to none of the problems.
        ConfigError: `workers` is not a positive whole number.

    Examples:
        >>> from bara_pyro.extras.replies.sandbox import Problem, judge
        >>> problem = Problem(
        ...     task_id="mine/0",
        ...     prompt="def double(x): 'twice x'; ",
        ...     entry_point="double",
        ...     test="def check(candidate): assert candidate(2) == 4",
        ...     canonical_solution="return 2 * x",
        ... )
        >>> completions = [("mine/0", "return x + x"), ("mine/0", "return x")]
        >>> results = sorted(judge([problem], completions), key=lambda judged: judged.index)
        >>> [judged.outcome.passed for judged in results]
        [True, False]
    """
    workers = workers if workers is not None else os.cpu_count() or 1
    if type(workers) is not int or workers < 1:
        raise ConfigError(f"workers is {workers!r}: give a positive whole number.")
    if not unsandboxed:
        check_isolation()
    known = {problem.task_id: problem for problem in problems}
    return _judged(known, completions, limits or Limits(), workers, unsandboxed)


def _judged(
    known: dict[str, Problem],
    completions: Iterable[tuple[str, str]],
    limits: Limits,
    workers: int,
    unsandboxed: bool,
) -> Iterator[Judged]:
    def outcome(problem: Problem, completion: str) -> Outcome:
        return try_function(
            problem.prompt + completion,
            problem.entry_point,
            problem.test,
            prompt=problem.prompt,
            limits=limits,
            unsandboxed=unsandboxed,
        )

    running: dict[Future[Outcome], tuple[int, str]] = {}
    with ThreadPoolExecutor(workers, thread_name_prefix="judge") as pool:
        for index, (task_id, completion) in enumerate(completions):
            if task_id not in known:
                raise DataError(
                    f"Completion {index} has the task_id {task_id!r}, which no problem has: give its problem."
                )
            running[pool.submit(outcome, known[task_id], completion)] = (index, task_id)
            if len(running) >= workers:
                yield from _ended(running)
        while running:
            yield from _ended(running)


def _ended(running: dict[Future[Outcome], tuple[int, str]]) -> Iterator[Judged]:
    """Wait until at least one test has ended, and yield the results of all that have."""
    done, _ = wait(running, return_when=FIRST_COMPLETED)
    for future in done:
        index, task_id = running.pop(future)
        yield Judged(index, task_id, future.result())
