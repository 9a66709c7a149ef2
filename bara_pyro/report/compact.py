"""Shrink the SVG that matplotlib writes to a third of its bytes without visible changes."""

import re
from itertools import groupby

TAG = re.compile(r"<[^>]+>")
PART = re.compile(r"([A-Za-z])([^A-Za-z]*)")
SHAPE = re.compile(r'(<(?:path|use) .*?)((?: clip-path="[^"]*")?(?: style="[^"]*")?)/>')
EMPTY = re.compile(r'<path d="M 0 0 z"[^>]*/>|<g ?/>')  # bars of height 0


def compact(markup: str) -> str:
    """Return markup without its invisible parts: extra digits, spaces, empty groups and repeated styles.

    Coordinates keep one decimal, those below ten keep two. Text is unchanged.
    """
    markup = EMPTY.sub("", TAG.sub(lambda tag: _tag(" ".join(tag[0].split())), markup))
    lines = (line.strip() for line in markup.splitlines())
    return "\n".join(_alike_together(_without_bare_groups([line for line in lines if line])))


def _tag(tag: str) -> str:
    tag = re.sub(r"(\d\d\.\d)\d+", r"\1", re.sub(r"(\d\.\d\d)\d+", r"\1", tag))
    tag = re.sub(r"(\d)\.0+(?!\d)", r"\1", tag.replace(": ", ":").replace("; ", ";"))
    tag = re.sub(r' transform="rotate\(-?0 [^"]*"', "", tag)
    return re.sub(r' d="([^"]*)"', lambda path: f' d="{_path(path[1])}"', tag)


def _path(path: str) -> str:
    """Return a path in which successive lines name only the first command."""
    shown, last = list[str](), ""
    for command, match in PART.findall(path):
        numbers = match.strip()
        shown.append(numbers if command == "L" and last in ("M", "L") else f"{command} {numbers}".strip())
        last = command
    return " ".join(shown)


def _without_bare_groups(lines: list[str]) -> list[str]:
    """Return lines (one tag each) without groups that have no attributes."""
    shown, shown_groups = list[str](), list[bool]()
    for line in lines:
        if line == "</g>":
            if not shown_groups.pop():
                continue
        elif line.startswith("<g") and not line.endswith("/>"):
            shown_groups.append(line != "<g>")
            if not shown_groups[-1]:
                continue
        shown.append(line)
    return shown


def _alike_together(lines: list[str]) -> list[str]:
    """Return lines in which successive shapes of the same style are in a group that has this style."""
    shown = list[str]()
    for look, run in groupby(lines, _look):
        alike = list(run)
        if look and len(alike) > 1:
            shown += [f"<g{look}>", *(line.replace(look, "") for line in alike), "</g>"]
        else:
            shown += alike
    return shown


def _look(line: str) -> str:
    """Return the style attributes of a shape; empty if moving them to a group would change its look."""
    match = SHAPE.fullmatch(line)
    return "" if match is None or "opacity" in match[2] else match[2]
