"""The check of the prose: what it finds in pages and docstrings, and what it leaves alone."""

from pathlib import Path

import pytest

from docs.tools.prose import BRACKETS, LONGEST, of_module, of_page, paragraphs


def found(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "page.md"
    path.write_text(text)
    return list(of_page(path))


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        ("One.\n\nA file of one's own is read.", "3: 'one's own'"),
        ("The two cannot be told apart.", "1: 'cannot be told'"),
        ("- first\n- read it where there is one.", "2: 'where there is one'"),
        (" ".join(["word"] * (LONGEST + 1)) + ".", f"1: a sentence of {LONGEST + 1} words"),
        ("It (a) is (b) so (c).", f"1: {BRACKETS} brackets"),
    ],
)
def test_a_sentence_to_write_anew_is_found(text: str, remark: str, tmp_path: Path) -> None:
    assert [line for line in found(tmp_path, text) if line.startswith(remark)]


@pytest.mark.parametrize(
    "text",
    [
        "A file of your own is read.",
        "```\na file of one's own\n```",
        "| one's own |\n|---|",
        "Set `one's own` or [follow](one's.md).",
        "A file of one's own. <!-- meant -->",
        " ".join(["word"] * LONGEST) + ". Another sentence.",
        "[One](a.md), [two](b.md) and [three](c.md).",
    ],
)
def test_other_text_is_left_alone(text: str, tmp_path: Path) -> None:
    assert found(tmp_path, text) == []


def test_a_paragraph_begins_on_its_first_line() -> None:
    page = "# Title\n\nOne\ntwo.\n\n1. three\n2. four"
    assert list(paragraphs(page)) == [(3, "One two."), (6, "three"), (7, "four")]


def test_docstrings_are_read_and_examples_are_not(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        '''"""A module of one's own."""
A = """A text of one's own."""  # no docstring
def f():
    """Return it.

    >>> "one's own"
    """
def g():
    """Return one's own."""  # meant
'''
    )
    assert [line.split(":")[0] for line in of_module(path)] == ["1"]
