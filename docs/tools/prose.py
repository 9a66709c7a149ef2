"""Find sentences that a reader has to read twice: turned idioms, long sentences, three brackets in one.

    python -m docs.tools.prose [FILE ..]     README.md, the pages of docs/ and the docstrings of the packages

To keep a sentence, write `<!-- meant -->` into its paragraph or `# meant` behind its docstring.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Pattern -> what to write instead.
IDIOMS = {
    r"\bone's own\b": "your own, or name the owner",
    r"\b(told|tell|tells|telling) \w*\s?apart\b": "distinguish",
    r"\b(can|could|cannot|is|are|was|were) (not )?(be )?told\b": "distinguish, know or say who says it",
    r"\b(is|are|was|were) asked\b": "say who asks, or use request",
    r"\bas (it|they) stands?\b": "leave it out",
    r"\bwhat there is\b": "name it",
    r"\bwhere there (is|are) (none|one|some)\b": "if there is no NOUN",
    r"\brows? from elsewhere\b": "out-of-distribution rows",
    r"\b[Ww]ho(ever)? (has|have|wants|reads|goes|trains|asks|learns|does|would)\b": "you, users or if you",
    r"\bto be had\b": "available",
    r"\bbut for (what|how|those|its|the)\b": "except",
    r"\bin (its|their|the) stead\b": "instead",
    r"\brehears\w*": "split-half calibration",
    r"\blaws? of\b": "distribution of",
    r"\bsay(s)? otherwise\b": "differ",
    r"\bthat (that|those) of\b": "repeat the noun",
    r", too\b(?=[.;:)]|$)": "also, before the verb",
    r"\bhereupon|thereof|whereof|wherein|thereby\b": "a plain word",
}
LONGEST = 35  # words a sentence
BRACKETS = 3
MEANT = "<!-- meant -->"


def paragraphs(page: str) -> Iterator[tuple[int, str]]:
    """Yield first line and text of each paragraph and list item of a page, without code, tables and HTML."""
    start, fenced, lines = 0, False, list[str]()
    for number, line in enumerate([*page.splitlines(), ""], 1):
        text = line.strip()
        if text.startswith(("```", "~~~")):
            fenced = not fenced
        marked = text.startswith(("```", "~~~", "|", "<", "#", "!!!", "???")) and MEANT not in text
        skipped = fenced or marked
        item = re.match(r"([-*+]|\d+\.) ", text)
        if lines and (not text or skipped or item):
            yield start, " ".join(lines)
            lines = []
        indented = line.startswith("    ") and not lines  # a block of code
        if text and not skipped and not indented:
            start = start if lines else number
            lines.append(text[item.end() :] if item else text)


def plain(text: str) -> str:
    """Return Markdown as words: of links their text, of code and formulas one word."""
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"`[^`]*`", "code", text)
    text = re.sub(r"\[([^\]]*)\](\([^)]*\)|\[[^\]]*\])", r"\1", text)
    return re.sub(r"[*_]{1,3}(?=\S)|(?<=\S)[*_]{1,3}", "", text)


def sentences(text: str) -> list[str]:
    """Return the sentences of words in running text."""
    return re.split(r"(?<=[.!?:])\s+(?=[\"'(\[]?[A-Z0-9])", text)


def idioms(text: str) -> Iterator[str]:
    """Yield a remark for each idiom in a text."""
    for pattern, better in IDIOMS.items():
        for match in re.finditer(pattern, text):
            yield f"'{match[0]}': {better}"


def of_page(path: Path) -> Iterator[str]:
    """Yield `line: remark` for each finding in a Markdown page."""
    for line, text in paragraphs(path.read_text(encoding="utf-8")):
        if MEANT in text:
            continue
        words = plain(text)
        yield from (f"{line}: {remark}" for remark in idioms(words))
        for sentence in sentences(words):
            if (count := len(sentence.split())) > LONGEST:
                yield f"{line}: a sentence of {count} words: '{sentence[:60]}..'"
            if sentence.count("(") + sentence.count("[") >= BRACKETS:
                yield f"{line}: {BRACKETS} brackets in a sentence: '{sentence[:60]}..'"


def of_module(path: Path) -> Iterator[str]:
    """Yield `line: remark` for each idiom in the docstrings of a module."""
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
            continue
        if not isinstance(node.value.value, str) or lines[(node.end_lineno or 1) - 1].endswith("# meant"):
            continue
        text = re.sub(r"(?m)^\s*(>>>|\.\.\.).*$", "", node.value.value)
        yield from (f"{node.lineno}: {remark}" for remark in idioms(re.sub(r"`[^`]*`", "code", text)))


def written() -> list[Path]:
    """Return the pages and modules that are checked where no file is named."""
    kinds = {"docs": ".md", "bara_pyro": ".py", "models": ".py", "guides": ".py"}
    pages = [path for folder, kind in kinds.items() for path in (ROOT / folder).rglob(f"*{kind}")]
    return [ROOT / "README.md", *sorted(pages)]


def main() -> int:
    """Print the findings; return 1 where there are any."""
    found = 0
    for path in [Path(name).resolve() for name in sys.argv[1:]] or written():
        for remark in of_module(path) if path.suffix == ".py" else of_page(path):
            found += 1
            print(f"{path.relative_to(ROOT)}:{remark}")
    print(f"{found} sentences to write anew." if found else "Nothing to write anew.")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
