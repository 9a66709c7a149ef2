"""HumanEval: read row by row, cut where the paper cuts, judged as its own tests judge in one process."""

import gzip
import json
from pathlib import Path

import pytest

from bara_pyro.errors import ConfigError, DataError
from bara_pyro.extras.replies.sandbox import Limits, Problem, judge, load_humaneval, truncate

DOUBLE = Problem(
    "Own/0",
    'def double(x):\n    """Return twice x."""\n',
    "double",
    "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate('a') == 'aa'\n",
    "    return x + x\n",
)
# As HumanEval/50 does, the test calls a function that the prompt defines.
UNSHIFT = Problem(
    "Own/1",
    'def shift(s):\n    return s[1:] + s[:1]\n\n\ndef unshift(s):\n    """Undo shift."""\n',
    "unshift",
    "def check(candidate):\n    for s in ('', 'a', 'abc'):\n        assert candidate(shift(s)) == s\n",
    "    return s[-1:] + s[:-1]\n",
)
OWN = (DOUBLE, UNSHIFT)
# Some of their tests call helpers of the prompt or the function by its name, copy, draw, or compare floats.
CHOSEN = (0, 2, 4, 10, 32, 33, 38, 45, 50, 53, 72, 92, 111, 129, 151, 163)


def written(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


def row(**changes: object) -> dict[str, object]:
    return {**vars(DOUBLE), **changes}


def test_problems_are_read_plain_or_packed(tmp_path: Path) -> None:
    path = written(tmp_path / "HumanEval.jsonl", vars(DOUBLE), "", {**vars(UNSHIFT), "more": 1})
    assert load_humaneval(path) == OWN
    packed = tmp_path / "HumanEval.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert load_humaneval(str(packed)) == OWN


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "contains no problems"),
        (["{"], "row 1 is not JSON"),
        (["[" * 10**5], "row 1 is not JSON"),
        ([[1]], "row 1 is not a JSON object"),
        (
            [vars(UNSHIFT), {"task_id": "a"}],
            "row 2 has None as its prompt: give the texts task_id, prompt",
        ),
        ([row(test=3)], "row 1 has 3 as its test"),
        ([row(), row()], "row 2 repeats the task_id 'Own/0'"),
        ([row(entry_point="half")], "row 1 does not define its entry_point 'half'"),
        ([row(entry_point="a b")], "row 1 does not define its entry_point 'a b'"),
    ],
)
def test_a_row_that_is_no_problem_is_named(tmp_path: Path, rows: list[object], said: str) -> None:
    path = written(tmp_path / "rows.jsonl", *rows)
    with pytest.raises(DataError) as caught:
        load_humaneval(path)
    assert str(path) in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize("content", [None, b"\xff\xff", b"\x1f\x8b\x08broken"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    for name in ("rows.jsonl", "rows.jsonl.gz"):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=name):
            load_humaneval(tmp_path / name)


@pytest.mark.parametrize("stop", ["\nclass A:", "\ndef g():", "\n# next", "\nif __name__", "\nprint(f(1))"])
def test_a_completion_ends_where_something_else_begins(stop: str) -> None:
    body = "    if x:\n        print(x)  # \n    def g(): pass\n    return x\n"
    assert truncate(body + stop + "\nrest\nclass B") == body
    assert truncate(body) == body
    assert truncate(stop) == ""
    assert truncate("a\nEND\ndef", stop=["\nEND"]) == "a"


@pytest.mark.usefixtures("isolation")
def test_completions_are_judged_in_any_number_and_order() -> None:
    given = [
        ("Own/1", UNSHIFT.canonical_solution, "passed"),
        ("Own/0", "    import time\n    time.sleep(1e6)\n", "timeout"),
        ("Own/0", DOUBLE.canonical_solution, "passed"),
        ("Own/0", "    return 2 * x", "passed"),
        ("Own/0", "    return x ** 2", "error"),
        ("Own/0", "    return x", "wrong"),
        ("Own/0", "    return bytearray(2**40)", "memory"),
        ("Own/0", "    return 'a' * 2**25", "output"),
        ("Own/0", "no python", "error"),
        ("Own/1", "    return s\n\ndef shift(s):\n    return s\n", "wrong"),
    ]
    limits = Limits(seconds=8.0)  # of which only the endless one has need
    judged = list(judge(OWN, [case[:2] for case in given], limits=limits, workers=2))
    assert sorted(case.index for case in judged) == list(range(len(given)))
    for case in judged:
        assert case.task_id == given[case.index][0]
        assert case.outcome.reason == given[case.index][2], (given[case.index], case.outcome)
        assert case.outcome.passed == (case.outcome.reason == "passed")
    assert judged[0].index != 1  # the endless one holds up nobody


@pytest.mark.usefixtures("isolation")
def test_results_come_while_completions_are_still_drawn() -> None:
    drawn = []

    def completions():
        for number in range(100):
            drawn.append(number)
            yield "Own/0", DOUBLE.canonical_solution

    results = judge(OWN, completions(), workers=1)
    assert not drawn
    assert next(results).outcome.passed
    results.close()
    assert len(drawn) <= 2


@pytest.mark.usefixtures("isolation")
def test_a_completion_of_no_problem_is_named() -> None:
    given = [("Own/0", DOUBLE.canonical_solution), ("Own/7", "")]
    with pytest.raises(DataError, match="Completion 1 has the task_id 'Own/7'"):
        list(judge(OWN, given, workers=1))


@pytest.mark.parametrize("workers", [0, -1, 1.5, True, "2"])
def test_workers_that_are_no_number_are_refused(workers: object) -> None:
    with pytest.raises(ConfigError, match=f"workers is {workers!r}"):
        judge(OWN, [], workers=workers)  # type: ignore[arg-type]


def in_one_process(problem: Problem, completion: str) -> bool:
    """Judge as the authors' own harness does, for completions that are known to be harmless."""
    names: dict = {}
    try:
        exec(f"{problem.prompt}{completion}\n{problem.test}\ncheck({problem.entry_point})", names)
    except Exception:  # noqa: BLE001 - as they do
        return False
    return True


@pytest.mark.usefixtures("isolation")
def test_the_real_problems_are_judged_as_in_one_process(problems: tuple[Problem, ...]) -> None:
    by_number = {int(problem.task_id.split("/")[1]): problem for problem in problems}
    chosen = [by_number[number] for number in CHOSEN]
    given = [
        (problem, completion)
        for problem in chosen
        for completion in (problem.canonical_solution, "    return None\n")
    ]
    pairs = [(problem.task_id, completion) for problem, completion in given]
    judged = {case.index: case.outcome for case in judge(problems, pairs)}
    for index, (problem, completion) in enumerate(given):
        right = completion == problem.canonical_solution
        assert judged[index].passed == right, (problem.task_id, judged[index])
        assert in_one_process(problem, completion) == right


def test_there_are_164_of_them_and_their_solutions_are_never_cut(problems: tuple[Problem, ...]) -> None:
    assert [problem.task_id for problem in problems] == [f"HumanEval/{number}" for number in range(164)]
    for problem in problems:
        assert truncate(problem.canonical_solution) == problem.canonical_solution
        assert in_one_process(problem, problem.canonical_solution)
