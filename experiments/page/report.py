"""Write the results pages, their overview and the claims of other documents from the stored results.

    python -m experiments report            # docs/results.md, docs/results/<study>.md, figures, README.md
    python -m experiments report --check    # writes nothing: an error if a page is not that of the results
    python -m experiments report --out DIR  # DIR/pages, of the studies that were run into DIR

Words are templates, figures come from the results: `experiments.page.template`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from textwrap import dedent, fill
from types import MappingProxyType
from typing import Any

from bara_pyro.atomic import write_text
from bara_pyro.errors import ConfigError, DataError
from bara_pyro.report import Table, markdown
from experiments.engine.arguments import command_line
from experiments.engine.figures import save
from experiments.engine.provenance import in_words
from experiments.engine.results import RESULTS, STUDIES, Results, Study, load_results, study_names
from experiments.engine.values import gaps
from experiments.page.overview import overview
from experiments.page.parts import Folded, Part, Picture
from experiments.page.spec import StudySpec, find_study, stored_studies
from experiments.page.template import Renderer

ROOT = Path(__file__).parents[2]
CLAIMS = Path(__file__).with_name("claims")
# Documents of which a part is written from results.
CLAIMED = ("README.md", "docs/index.md", "docs/limits.md", "docs/paper.md")
WIDTH = 110
AGAIN = "python -m experiments report"
NOTHING: Mapping[str, str] = MappingProxyType({})
# Of templates; settings stand in code spans, and links, arXiv ids and names of models are no results.
TAG = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}", re.DOTALL)
ALLOWED = re.compile(r"`[^`]*`|\]\([^)]*\)|\barXiv \d{4}\.\d{4,5}|\b[A-Z]\w*[0-9.]+-\d+(\.\d+)?[BM]\b")
BY_HAND = re.compile(r"`git show [0-9a-f]{8,}:experiments/studies/\w+|`python -m experiments\.\w+")
FIGURE = re.compile(r"\(\.\./figures/([\w.-]+\.svg)\)|\(figures/(overview\.svg)\)")
NUMERAL = re.compile(r"[+\-−±]?\d[\d,]*\.\d+|\d[\d,]* ?(%|percent\b|points\b|nats\b)")


def pages(
    render: Renderer,
    studies: Path = STUDIES,
    figures: Path | None = None,
    by_hand: Mapping[str, str] = NOTHING,
) -> dict[str, str]:
    """Return the text of each page: its name (`index` or that of a study) -> Markdown.

    A study has a page if it has an answer; pages written by hand are given. Figures are drawn into a
    folder, if one is named.

    Raises:
        DataError: a file holds something else, a record is missing, or a template names what is not there.
    """
    found = dict(by_hand)
    for name, spec in render.studies.items():
        if (path := studies / name / "answer.md").exists():
            found[name] = page(name, spec, render.load(name), render.text(path), figures)
    return {"index": overview(render, found, figures), **found}


def pages_by_hand(folder: Path) -> dict[str, str]:
    """Return the pages that nothing writes: they name the commit of a retired study or a script."""
    texts = {path.stem: path.read_text() for path in sorted(folder.glob("*.md"))}
    return {name: text for name, text in texts.items() if BY_HAND.search(text)}


def page(study: str, spec: StudySpec, stored: Any, answer: str, figures: Path | None) -> str:
    """Return a page: the answer's lead, figure and tables, its rest, folded tables, how it was measured."""
    if isinstance(stored, Study):
        missing = gaps(stored)
        parts = list(spec.parts(stored)) if stored.finished else []
    else:
        missing, parts = [], list(spec.parts(stored))
    lead, heading, rest = answer.strip().partition("\n## ")
    setup = spec.setup.format(**spec.facts(stored))
    lines = [f"# {spec.title}\n"]
    lines += [f"{lead.strip()}\n"] if lead else []
    lines += [fill(f"Incomplete: {'. '.join(missing)}.", WIDTH) + "\n"] if missing else []
    folded = [part for part in parts if isinstance(part, Folded)]
    first = [part for part in parts if isinstance(part, Picture)]
    tables = [part for part in parts if part not in first and part not in folded]
    lines += [shown(part, figures) for part in (*first, *tables)]
    lines += [f"## {rest.strip()}\n"] if heading else []
    lines += [shown(part, figures) for part in folded]
    setup = fill(setup, WIDTH, break_on_hyphens=False) if isinstance(stored, Study) else setup.rstrip()
    lines += [f"## How it was measured\n\n{setup}\n", again(study), provenance(stored)]
    return "\n".join(lines)


def again(study: str) -> str:
    """Return the commands that repeat a study: the indented lines of its docstring."""
    about = dedent((import_module(f"experiments.studies.{study}.study").__doc__ or "").partition("\n")[2])
    lines = [line for line in about.splitlines() if re.match(r"python -m| {4}", line)]
    return "Run it again:\n\n" + "".join(f"    {line.removeprefix('    ')}\n" for line in lines)


def shown(part: Part, figures: Path | None) -> str:
    """Return a part as Markdown; a figure is drawn if a folder is named."""
    if isinstance(part, str):
        return part
    if isinstance(part, Table):
        return markdown(part)
    if isinstance(part, Folded):
        tables = [markdown(table) for table in part.tables]
        return "\n".join([f"<details><summary>{part.title}</summary>\n", *tables, "</details>\n"])
    if figures is not None:
        save(part.draw(), figures / f"{part.name}.svg", part.caption)
    return f"![{part.caption}](../figures/{part.name}.svg)\n\n*{part.caption}*\n"


def provenance(stored: Study | Results) -> str:
    """Return a sentence on which code made the results of a page."""
    made: Iterable[dict[str, Any]] = stored.records if isinstance(stored, Study) else stored.entries.values()
    counts = Counter(in_words(entry.get("code")) for entry in made)
    said = ", ".join(f"{count} by {words}" for words, count in counts.items())
    return f"Number of results and the code that made them: {said or 'none'}.\n"


def claims(text: str, document: Path, render: Renderer, folder: Path) -> tuple[str, set[str]]:
    """Return a document with its claims written anew, and their names; each has a template of its name.

    A claim stands between `<!-- claims: NAME -->` and `<!-- end -->`.

    Raises:
        DataError: a claim has no template or no end.
    """
    names = re.findall(r"<!-- claims: (\w+) -->\n", text)
    for name in names:
        path = folder / f"{name}.md"
        before, mark, after = text.partition(f"<!-- claims: {name} -->\n")
        _, end, rest = after.partition("<!-- end -->\n")
        if not path.exists() or not end:
            lacks = "no <!-- end --> behind it" if path.exists() else f"no template {path.name}"
            raise DataError(f"The claims {name!r} of {document.name} have {lacks}.")
        text = f"{before}{mark}{render.text(path)}{end}{rest}"
    return text, set(names)


def claimed(root: Path, render: Renderer) -> dict[Path, str]:
    """Return the documents of `CLAIMED` with their claims written anew.

    Raises:
        DataError: a template of claims stands in none of them.
    """
    found, missing = {}, {path.stem for path in CLAIMS.glob("*.md")}
    for path in (root / name for name in CLAIMED):
        found[path], names = claims(path.read_text(), path, render, CLAIMS)
        missing -= names
    if missing:
        raise DataError(
            f"Claims that stand nowhere: {', '.join(sorted(missing))}. Put <!-- claims: NAME --> and "
            f"<!-- end --> into {' or '.join(CLAIMED)}."
        )
    return found


def documents(results: Path = RESULTS, root: Path = ROOT, *, draw: bool) -> dict[Path, str]:
    """Return every file that the report writes, with its text; figures are drawn at once where `draw` is."""
    render = Renderer(results)
    docs = root / "docs"
    found = pages(render, STUDIES, docs / "figures" if draw else None, pages_by_hand(docs / "results"))
    texts = {
        docs / ("results.md" if name == "index" else f"results/{name}.md"): text
        for name, text in found.items()
    }
    return texts | claimed(root, render)


def typed_numerals(text: str, path: Path) -> Iterator[str]:
    """Yield a line for each result that was typed: a number with decimals, a percentage, points or nats.

    >>> [*typed_numerals("Right in 75.0 % at `lr 0.1`, {{ x | f1 }} %.", Path("a.md"))]
    ["a.md:1: '75.0' is typed: take it from the results, or put a setting in backticks"]
    """
    blank = lambda match: re.sub(r"[^\n]", " ", match[0])  # noqa: E731
    bare = ALLOWED.sub(blank, TAG.sub(blank, text))
    for match in NUMERAL.finditer(bare):
        line = bare.count("\n", 0, match.start()) + 1
        yield f"{path}:{line}: {match[0]!r} is typed: take it from the results, or put a setting in backticks"


def problems(root: Path = ROOT) -> list[str]:
    """Return what is wrong with the committed pages: typed numbers, and pages that are not of the results."""
    sources = [*STUDIES.glob("*/answer.md"), *CLAIMS.glob("*.md")]
    lines: list[str] = []
    for path in sorted(sources):
        lines += typed_numerals(path.read_text(), path.relative_to(ROOT))
    for name in study_names():
        setup = re.sub(r"\{[^{}]*\}", "", find_study(name).setup)
        lines += typed_numerals(setup, Path(f"the setup of {name}"))
    texts = documents(draw=False)
    docs = root / "docs"
    drawn = {docs / "figures" / "".join(name) for text in texts.values() for name in FIGURE.findall(text)}
    by_hand = " ".join(path.read_text() for path in docs.glob("*.md"))
    figures = {path for path in (docs / "figures").glob("*.svg") if path.name not in by_hand}
    written = {*(docs / "results").glob("*.md"), *figures}
    for path, text in texts.items():
        if not path.exists() or path.read_text() != text:
            lines.append(f"{path.relative_to(root)} is not that of the stored results: {AGAIN}")
    missing = [path for path in drawn if not path.exists()]
    lines += [f"{path.relative_to(root)} is missing: {AGAIN}" for path in missing]
    alone = written - drawn - set(texts)
    return lines + [f"{path.relative_to(root)} has no results behind it." for path in alone]


def own_pages(results: Path) -> list[Path]:
    """Write the pages of a folder of results into its `pages`, without the words on the committed ones.

    Raises:
        DataError: the folder holds no results of a study.
    """
    written = []
    for name, spec in stored_studies(results).items():
        text = page(name, spec, load_results(name, results), "", results / "figures")
        written.append(results / "pages" / f"{name}.md")
        write_text(written[-1], text)
    if not written:
        raise DataError(f"{results} holds no results of a study: run one with --out {results}.")
    return written


def main() -> None:
    """Write the pages, or check them."""
    parser = command_line(__doc__)
    add = parser.add_argument
    add("--check", action="store_true", help="write nothing; an error where something is wrong")
    add("--out", metavar="DIR", type=Path, help="of the results there; default: the committed ones")
    args = parser.parse_args()
    if args.out is not None:
        if args.check:
            raise ConfigError("--check is of the committed pages: leave out --out.")
        print(f"Written: {', '.join(map(str, own_pages(args.out)))}")
        return
    if args.check:
        if found := problems():
            raise DataError("\n".join(found))
        print("The pages are those of the stored results.")
        return
    for path, text in documents(draw=True).items():
        write_text(path, text)
    print(f"Written: {ROOT / 'docs' / 'results.md'} and what it links to.")
