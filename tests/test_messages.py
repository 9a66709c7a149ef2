"""Errors are short: what they say around the values that they name is at most 200 characters."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LONGEST = 200
VALUE = "x" * 12  # about as long as a number, a name or the end of a path


def spoken(node: ast.expr) -> str:
    """Return a message with a short value in place of each that it names."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(spoken, node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return spoken(node.left) + spoken(node.right)
    return VALUE


def messages(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            yield node.lineno, spoken(node.exc.args[0])


def test_errors_are_at_most_200_characters_long() -> None:
    files = [path for folder in ("bara_pyro", "models", "guides") for path in (ROOT / folder).rglob("*.py")]
    found = [(path, *one) for path in files for one in messages(path.read_text(encoding="utf-8"))]
    assert len(found) > 500
    long = [f"{path}:{line}: {said}" for path, line, said in found if len(said) > LONGEST]
    assert not long, "\n".join(long)


def test_a_long_error_is_seen() -> None:
    [(line, said)] = messages("raise ValueError(f'" + "y" * 180 + " {a}' + f' and {b}')")
    assert (line, len(said)) == (1, 180 + 1 + len(VALUE) + 5 + len(VALUE))
