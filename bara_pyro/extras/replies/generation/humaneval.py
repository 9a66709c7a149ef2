"""HumanEval: let a run write programs, test them in the sandbox and compute pass@k."""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bara_pyro.atomic import write_json
from bara_pyro.errors import DataError
from bara_pyro.extras.replies.generation.decoding import Decoding
from bara_pyro.extras.replies.generation.file import append_lines, lines_there, made_by, reply_lines
from bara_pyro.extras.replies.generation.prompts import encode_prompts
from bara_pyro.extras.replies.generation.spread import diversity_of, token_entropy
from bara_pyro.extras.replies.over_prompts import SamplingCurve
from bara_pyro.extras.replies.sampling import pass_at_k
from bara_pyro.extras.replies.sandbox import Limits, Problem, judge
from bara_pyro.extras.replies.sandbox.humaneval import STOP_SEQUENCES
from bara_pyro.runs.manifest import JUDGED, PROGRAMS
from bara_pyro.runs.system import System
from bara_pyro.types import Json
from bara_pyro.untrusted.files import read_jsonl
from bara_pyro.untrusted.schemas import SCHEMA, ReplyLine

SCORES = "humaneval.json"
OnProgram = Callable[[], object]
FEWEST = 2  # problems: the intervals of `score_programs` are over them


def check_problems(problems: Sequence[Problem]) -> None:
    """Raise `DataError` if there are too few problems for intervals."""
    if len(problems) < FEWEST:
        raise DataError(
            f"The number of problems is {len(problems)}, too few for intervals of pass@k: "
            f"give at least {FEWEST}."
        )


def write_programs(
    system: System,
    problems: Sequence[Problem],
    out: str | Path,
    how: Decoding,
    *,
    replies: int,
    on_program: OnProgram | None = None,
) -> list[Json]:
    """Complete each problem `replies` times, continuing an earlier run in the folder.

    Completions end at the texts of `STOP_SEQUENCES`, as in Chen et al. (2021), section 3.2.

    The programs are written to `programs.jsonl` in the folder. Of the decoding settings, `stop` is replaced.
    `on_program` is called after each completion.

    Returns:
        One dictionary per completion; see `reply_lines`.

    Raises:
        DataError: there are fewer than two problems; nothing is written.
        ConfigError: existing programs come from another run, other settings or other prompts.
    """
    check_problems(problems)
    how = replace(how, stop=STOP_SEQUENCES)
    file = Path(out) / PROGRAMS
    texts = [problem.prompt for problem in problems]
    names = [problem.task_id for problem in problems]
    prompts = list(zip(encode_prompts(texts, system.backbone.tokenizer, ids=names), texts, strict=True))
    there = lines_there(file, made_by(system, how, 0), prompts)
    skip = {(row["id"], row["number"]) for row in there}
    lines = reply_lines(system, prompts, how, replies=replies, skip=skip)
    append_lines(file, there, lines, on_program)
    keys = {(name, number) for name in names for number in range(replies)}
    return [row for row in read_jsonl(file, ReplyLine) if (row["id"], row["number"]) in keys]


def judge_programs(
    problems: Sequence[Problem],
    programs: Sequence[Json],
    out: str | Path,
    *,
    limits: Limits | None = None,
    workers: int | None = None,
    unsandboxed: bool = False,
    on_program: OnProgram | None = None,
) -> list[Json]:
    """Test the programs that have no result yet, in the sandbox, and write the results.

    The programs are those of `write_programs`. The results are written to `judged.jsonl` in the folder, and
    `on_program` is called after each program. Other arguments are those of
    `bara_pyro.extras.replies.sandbox.judge`; `unsandboxed` is DANGEROUS.

    Returns:
        One dictionary per program: `id`, `number`, `made`, `problem_key` (a hash of the problem and its
        test), `passed`, `reason`, `message` and `seconds`.

    Raises:
        SandboxError: this machine cannot isolate programs.
    """
    file = Path(out) / JUDGED
    keys = {
        problem.task_id: hashlib.blake2b(repr(problem).encode(), digest_size=8).hexdigest()
        for problem in problems
    }
    current = {(row["id"], row["number"]): (row["made"], keys[row["id"]]) for row in programs}

    def is_current(row: Json) -> bool:
        return (row["id"], row["number"]) in current

    # Keep results of other replies and problems, and drop outdated ones.
    there = [
        row
        for row in read_jsonl(file, ReplyLine)
        if not is_current(row) or current[row["id"], row["number"]] == (row["made"], row.get("problem_key"))
    ]
    done = {(row["id"], row["number"]) for row in there}
    left = [row for row in programs if (row["id"], row["number"]) not in done]
    results = judge(
        problems,
        ((row["id"], row["reply"]) for row in left),
        limits=limits,
        workers=workers,
        unsandboxed=unsandboxed,
    )
    lines = (
        {
            **{name: left[one.index][name] for name in ("id", "number", "made")},
            "problem_key": keys[one.task_id],
            "passed": one.outcome.passed,
            "reason": one.outcome.reason,
            "message": one.outcome.message,
            "seconds": round(one.outcome.seconds, 3),
        }
        for one in results
    )
    append_lines(file, there, lines, on_program)
    return [row for row in read_jsonl(file, ReplyLine) if is_current(row)]


def score_programs(
    programs: Sequence[Json], judged: Sequence[Json], out: str | Path
) -> tuple[SamplingCurve, Json]:
    """Return pass@k of tested programs, and write it with other statistics to `humaneval.json`.

    Returns:
        The curve in percent, and the content of the file: `pass_at_k` (k -> percent with its interval over
        problems), `reasons` (counts of results), `entropy` per token (see `token_entropy`), `distinct`,
        `diversity` and `signature` (see `diversity_of`), mean `tokens` per program, `problems`, `replies`.
    """
    names = list(dict.fromkeys(row["id"] for row in programs))
    passed = {(row["id"], row["number"]): row["passed"] for row in judged}
    counts = {row["number"] for row in programs}
    table = np.array([[passed[name, number] for number in sorted(counts)] for name in names], dtype=float)
    curve = pass_at_k(table)
    texts = {(row["id"], row["number"]): row["reply"] for row in programs}
    report = {
        "schema": SCHEMA,
        "problems": len(names),
        "replies": len(counts),
        "pass_at_k": {
            str(k): {"value": value, "low": low, "high": high}
            for k, value, low, high in zip(
                curve.budgets.tolist(),
                curve.mean.tolist(),
                curve.low.tolist(),
                curve.high.tolist(),
                strict=True,
            )
        },
        "reasons": dict(sorted(Counter(row["reason"] for row in judged).items())),
        **token_entropy(programs),
        **diversity_of([[texts[name, number] for number in sorted(counts)] for name in names]),
        "tokens": sum(row["tokens"] for row in programs) / len(programs),
        "made": programs[0]["made"],
    }
    write_json(Path(out) / SCORES, report)
    return curve, report
