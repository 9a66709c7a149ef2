"""Fewer bytes: what is drawn, and how it looks, stays the same."""

import re
from xml.etree import ElementTree

import pytest

from bara_pyro.report.svg import compact

INHERITED = ("style", "clip-path")


def shapes(text: str) -> list[tuple[str, list[str], str, str]]:
    """Every shape and text in order: what it is, its numbers, its look, its words."""
    found = []

    def walk(node: ElementTree.Element, looks: tuple[str, ...]) -> None:
        own = tuple(node.get(key, "").replace(" ", "") for key in INHERITED if node.get(key))
        if node.tag != "g":
            points = re.findall(r"-?[\d.]+", " ".join(node.get(key, "") for key in ("d", "x", "y")))
            found.append((node.tag, points, "".join((*looks, *own)), node.text or ""))
        for child in node:
            walk(child, (*looks, *own))

    for top in ElementTree.fromstring(f"<svg>{text}</svg>"):
        walk(top, ())
    return found


LOOK = 'clip-path="url(#a)" style="fill: none; stroke: #000000"'


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ('<path d="M 1 2 \nL 3 4 \nL 5 6 \nz\n"/>', '<path d="M 1 2 3 4 5 6 z"/>'),
        # After a curve a line has to say that it is one.
        ('<path d="M 1 2 \nQ 3 4 5 6 \nL 7 8"/>', '<path d="M 1 2 Q 3 4 5 6 L 7 8"/>'),
        ('<use x="123.456789" y="3.14159"/>', '<use x="123.4" y="3.14"/>'),
        ('<use x="10.0" y="0.0"/>', '<use x="10" y="0"/>'),
        ('<text transform="rotate(-0 1 2)" x="1">0.0375; a: b</text>', '<text x="1">0.0375; a: b</text>'),
        ('<text transform="rotate(-90 1 2)">a</text>', '<text transform="rotate(-90 1 2)">a</text>'),
        ('<g>\n<g id="a">\n<g/>\n<use/>\n</g>\n</g>', '<g id="a">\n<use/>\n</g>'),
        ('<path d="M 0 0\nz\n" style="fill: #000000"/>\n<use/>', "<use/>"),
    ],
)
def test_what_is_left_out(given: str, expected: str) -> None:
    assert compact(given) == expected


def test_looks_that_follow_one_another_are_said_once() -> None:
    given = "\n".join(f'<g>\n<path d="M {i} 1 \nL {i} 2" {LOOK}/>\n</g>' for i in range(3))
    assert compact(given).count("stroke") == 1
    assert shapes(compact(given)) == shapes(given.replace(" L", "L"))
    other = f'{given}\n<path d="M 9 9 L 9 8" style="fill: #ffffff"/>'
    assert compact(other).count("style") == 2
    pale = other.replace("#000000", "#000000; opacity: 0.5")  # of a group it would be that of the whole
    assert compact(pale).count("opacity") == 3
