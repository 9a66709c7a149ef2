"""HumanEval (Chen et al. 2021, "Evaluating Large Language Models Trained on Code", arXiv:2107.03374).

164 functions to be written from their signature and docstring, each with a test `check(candidate)`.
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
from bara_pyro.extras.replies.sandbox.runner import check_isolation
from bara_pyro.extras.replies.sandbox.trial import Outcome, try_function
from bara_pyro.untrusted.schemas import MOST_JSON

# Where the paper stops a completion (section 3.2): what follows is another function or a statement.
STOP_SEQUENCES = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")


@dataclass(frozen=True)
class Problem:
    """A function to be written.

    Attributes:
        task_id: such as "HumanEval/0".
        prompt: imports, helpers, and the signature and docstring of the function.
        entry_point: its name.
        test: Python text that defines `check(candidate)`; trusted, though it runs isolated as well.
        canonical_solution: the body that the authors wrote.
    """

    task_id: str
    prompt: str
    entry_point: str
    test: str
    canonical_solution: str


@dataclass(frozen=True)
class Judged:
    """A completion and what came of it.

    Attributes:
        index: its position among those given.
        task_id: of its problem.
        outcome: whether it passed, and why not.
    """

    index: int
    task_id: str
    outcome: Outcome


def load_humaneval(path: str | Path) -> tuple[Problem, ...]:
    """Read the problems from HumanEval.jsonl or HumanEval.jsonl.gz.

    Raises:
        DataError: no such file, or a row that is no problem; both are named.

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
            raise DataError(f"{path}, row {number} has the task_id {problem.task_id!r} again: remove one.")
        problems[problem.task_id] = problem
    if not problems:
        raise DataError(f"{path} holds no problems: give HumanEval.jsonl or HumanEval.jsonl.gz.")
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
        raise DataError(f"{path} cannot be read ({error}): fetch it again.") from error


def _problem(line: str, place: str) -> Problem:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place} is not JSON ({error}): fetch the file again.") from error
    if not isinstance(row, dict):
        raise DataError(f"{place} is not a JSON object: {line[:40]!r}.")
    names = [field.name for field in fields(Problem)]
    for name in names:
        if not isinstance(row.get(name), str):
            wanted = ", ".join(names)
            raise DataError(f"{place} has {row.get(name)!r} as its {name}: a problem has the texts {wanted}.")
    problem = Problem(**{name: row[name] for name in names})
    if not problem.entry_point.isidentifier() or f"def {problem.entry_point}(" not in problem.prompt:
        raise DataError(f"{place} has a prompt that does not define its entry_point {problem.entry_point!r}.")
    return problem


def truncate(completion: str, stop: Sequence[str] = STOP_SEQUENCES) -> str:
    r"""Return a completion up to the first of the texts that end it, which is left out.

    Examples:
        >>> from bara_pyro.extras.replies.sandbox import truncate
        >>> truncate("    return x\n\ndef g():\n    pass")
        '    return x\n'
    """
    found = [at for at in map(completion.find, stop) if at >= 0]
    return completion[: min(found, default=len(completion))]


def judge(
    problems: Iterable[Problem],
    completions: Iterable[tuple[str, str]],
    *,
    limits: Limits | None = None,
    workers: int | None = None,
    unsandboxed: bool = False,
) -> Iterator[Judged]:
    """Test completions, several at a time, and yield what came of each as soon as it is known.

    The order is that in which they end; `index` says which one it was. Completions are drawn as there is room
    for them, so that the iterable may be long; one that is broken off waits for the few that run.

    Args:
        problems: what the completions are of.
        completions: pairs of a task_id and the text that follows the prompt, cut (`truncate`) where that is
            wanted; any number of each problem.
        limits: what each of a completion's two processes may use, and the seconds of both together.
        workers: completions at a time, by default one a processor core.
        unsandboxed: DANGEROUS: see `run_program`.

    Raises:
        SandboxError: bubblewrap is not installed, or may not make namespaces here.
        DataError: a task_id that none of the problems has.
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
        >>> found = sorted(judge([problem], completions), key=lambda judged: judged.index)
        >>> [judged.outcome.passed for judged in found]
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
                raise DataError(f"Completion {index} is of {task_id!r}, which none of the problems is.")
            running[pool.submit(outcome, known[task_id], completion)] = (index, task_id)
            if len(running) >= workers:
                yield from _ended(running)
        while running:
            yield from _ended(running)


def _ended(running: dict[Future[Outcome], tuple[int, str]]) -> Iterator[Judged]:
    """Wait for one at least, and take those that have ended."""
    done, _ = wait(running, return_when=FIRST_COMPLETED)
    for future in done:
        index, task_id = running.pop(future)
        yield Judged(index, task_id, future.result())
