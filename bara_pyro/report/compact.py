"""The SVG that matplotlib writes in a third of its bytes; what is seen stays the same."""

import re
from itertools import groupby

TAG = re.compile(r"<[^>]+>")
PART = re.compile(r"([A-Za-z])([^A-Za-z]*)")
SHAPE = re.compile(r'(<(?:path|use) .*?)((?: clip-path="[^"]*")?(?: style="[^"]*")?)/>')
EMPTY = re.compile(r'<path d="M 0 0 z"[^>]*/>|<g ?/>')  # a bar without a height


def compact(markup: str) -> str:
    """Return markup without what nobody sees.

    That is digits, spaces, groups that do nothing, and looks that are said again and again. Coordinates have
    tenths, those below ten hundredths. Text stays as it is.
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
    """Return a path whose lines name no more than their first command."""
    shown, last = list[str](), ""
    for command, found in PART.findall(path):
        numbers = found.strip()
        shown.append(numbers if command == "L" and last in ("M", "L") else f"{command} {numbers}".strip())
        last = command
    return " ".join(shown)


def _without_bare_groups(lines: list[str]) -> list[str]:
    """Return lines of a tag each without groups that have no attributes."""
    shown, kept = list[str](), list[bool]()
    for line in lines:
        if line == "</g>":
            if not kept.pop():
                continue
        elif line.startswith("<g") and not line.endswith("/>"):
            kept.append(line != "<g>")
            if not kept[-1]:
                continue
        shown.append(line)
    return shown


def _alike_together(lines: list[str]) -> list[str]:
    """Return lines in which shapes of one look, one after the other, stand in a group, which has the look."""
    shown = list[str]()
    for look, run in groupby(lines, _look):
        alike = list(run)
        if look and len(alike) > 1:
            shown += [f"<g{look}>", *(line.replace(look, "") for line in alike), "</g>"]
        else:
            shown += alike
    return shown


def _look(line: str) -> str:
    """Return the attributes that say how a shape looks; none where a group would look otherwise."""
    found = SHAPE.fullmatch(line)
    return "" if found is None or "opacity" in found[2] else found[2]
