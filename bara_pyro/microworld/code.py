"""A tiny expression language, its safe interpreter, and problems given by examples.

A program is a prefix expression over one variable, `expr := x | 0..19 | op expr expr`, with op one of add,
sub, mul, max, min, and numbers modulo 20. The interpreter walks the tokens and never calls Python's `eval`.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bara_pyro.errors import DataError
from bara_pyro.microworld.words import NUMBERS

MODULUS = len(NUMBERS)
MAX_STEPS = 31  # most tokens of a program
SHOWN = 3

OPERATORS: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: (a + b) % MODULUS,
    "sub": lambda a, b: (a - b) % MODULUS,
    "mul": lambda a, b: (a * b) % MODULUS,
    "max": max,
    "min": min,
}


@dataclass(frozen=True)
class CodeProblem:
    """A program to find.

    Attributes:
        text: the prompt, with three examples, ending in "program :".
        shown: the (input, output) pairs in the prompt.
        hidden: the pairs for all other inputs; a program is right if it agrees with both.
    """

    text: str
    shown: tuple[tuple[int, int], ...]
    hidden: tuple[tuple[int, int], ...]


def program_value(program: str, x: int) -> int:
    """Return the value of a program, tokens separated by white space, at an input from 0 to 19.

    Raises:
        DataError: the program is malformed or longer than `MAX_STEPS` tokens, or the input is out of range.
    """
    if not 0 <= x < MODULUS:
        raise DataError(f"Input {x} is out of range: give a number from 0 to {MODULUS - 1}.")
    tokens = program.split()
    if len(tokens) > MAX_STEPS:
        raise DataError(f"The program has {len(tokens)} tokens: give at most {MAX_STEPS}.")
    rest = iter(tokens)
    value = _evaluate(rest, x)
    if (extra := next(rest, None)) is not None:
        raise DataError(f"The program has {extra!r} after its end: remove it.")
    return value


def _evaluate(tokens: Iterator[str], x: int) -> int:
    """Evaluate one expression from the front of `tokens`; the bound on tokens bounds the recursion."""
    word = next(tokens, None)
    if word is None:
        raise DataError("The program ends too early: an operator needs two expressions.")
    if word == "x":
        return x
    if word in OPERATORS:
        left = _evaluate(tokens, x)
        return OPERATORS[word](left, _evaluate(tokens, x))
    if word in NUMBERS:
        return int(word)
    known = ", ".join(OPERATORS)
    raise DataError(f"Unknown word {word!r} in the program: use x, 0 to {MODULUS - 1}, {known}.")


def solves(problem: CodeProblem, program: str) -> bool:
    """Return whether a program gives the right output for every input; False if it is malformed."""
    try:
        return all(program_value(program, x) == y for x, y in problem.shown + problem.hidden)
    except DataError:
        return False


def draw_problem(rng: random.Random) -> tuple[CodeProblem, str]:
    """Return a problem and the program it was made from (other programs may also solve it)."""
    program = _draw_program(rng)
    pairs = [(x, program_value(program, x)) for x in range(MODULUS)]
    rng.shuffle(pairs)
    shown = tuple(pairs[:SHOWN])
    examples = " , ".join(f"{x} gives {y}" for x, y in shown)
    return CodeProblem(f"{examples} . program :", shown, tuple(pairs[SHOWN:])), program


def _draw_program(rng: random.Random) -> str:
    """Draw an operator on x and a small number, a quarter of the time wrapped in a second one."""
    program = f"{rng.choice(list(OPERATORS))} x {rng.randrange(1, 10)}"
    if rng.random() < 0.25:
        program = f"{rng.choice(('add', 'sub', 'max', 'min'))} {program} {rng.randrange(1, 10)}"
    return program
