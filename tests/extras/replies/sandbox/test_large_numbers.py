"""Whole numbers beyond the 4,300 digits that Python writes in decimal pass between a test and a function."""

import pytest

from bara_pyro.extras.replies.sandbox import Limits, try_function
from bara_pyro.extras.replies.sandbox.inside import NotPlainError, from_message, to_message

SMALL = Limits(seconds=120.0, memory=256 * 2**20)
NUMBERS = "[sign * size for sign in (1, -1) for size in (2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**64 + 1, "
NUMBERS += "10**4299, 10**4300 - 1, 10**4300, 10**5000 + 7, 3**20000)]"


def test_one_line_of_text_holds_any() -> None:
    for value in (0, 2**64 - 1, 2**64, -(2**64), 10**4300, 7 - 10**5000, {3**9999: (-(3**9999), True)}):
        back = from_message(to_message(value))
        assert type(back) is type(value)
        assert back == value
    assert type(from_message(to_message([True]))[0]) is bool


@pytest.mark.parametrize("sent", [["int", 5], ["int", "xyz"], ["int", ["1"]], ["int", None], ["int", ""]])
def test_what_is_no_number_is_no_value(sent: list) -> None:
    with pytest.raises(NotPlainError):
        from_message(sent)


@pytest.mark.usefixtures("isolation")
def test_they_come_back_as_they_are() -> None:
    """As arguments, as values, as keys and within other values; what is compared is the test's own."""
    program = "def f(x, more=()): return {'same': x, x: [x - 1, (x,)], 'more': more}"
    test = f"""
def check(candidate):
    for value in {NUMBERS}:
        found = candidate(value, more={{value}})
        assert found == {{"same": value, value: [value - 1, (value,)], "more": {{value}}}}
        assert type(found["same"]) is int and found["same"] % 1009 == value % 1009
"""
    outcome = try_function(program, "f", test, limits=SMALL)
    assert outcome.passed, outcome


@pytest.mark.usefixtures("isolation")
@pytest.mark.parametrize(
    ("program", "test"),
    [
        ("def f(): return 10**5000", "def check(c): assert c() == 10**5000"),
        ("def f(n): return n + 1", "def check(c): assert c(10**5000) == 10**5000 + 1"),
        (
            "def f(n):\n    a, b = 0, 1\n    for _ in range(n): a, b = b, a + b\n    return a",
            "def check(c): assert c(30001) == c(15000) ** 2 + c(15001) ** 2",
        ),
        (
            "import math\ndef f(n): return math.factorial(n)",
            "def check(c):\n    own = 1\n    for n in range(1, 2001): own *= n\n    assert c(2000) == own",
        ),
    ],
)
def test_right_programs_pass_and_wrong_ones_do_not(program: str, test: str) -> None:
    outcome = try_function(program, "f", test, limits=SMALL)
    assert outcome.passed, outcome
    wrong = f"{program}\nright = f\ndef f(*args): return right(*args) + 2"
    assert try_function(wrong, "f", test, limits=SMALL).reason == "wrong"


@pytest.mark.usefixtures("isolation")
def test_a_wrong_one_that_a_test_would_print_is_wrong() -> None:
    """Python does not write it: the message is then the kind of error alone."""
    test = "def check(candidate):\n    found = candidate()\n    assert found == 1, found"
    outcome = try_function("def f(): return 10**5000", "f", test, limits=SMALL)
    assert (outcome.reason, outcome.message) == ("wrong", "AssertionError")
