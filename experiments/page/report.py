"""Write the results pages, their index and the claims of other documents from the stored results.

    python -m experiments report            # docs/results.md, docs/results/<study>.md, figures, README.md
    python -m experiments report --check    # writes nothing: an error where a page is not that of the results
    python -m experiments report --out DIR  # DIR/pages, of the studies that were run into DIR

Words are templates, figures come from the results: `experiments.page.template`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from textwrap import fill
from typing import Any

from bara_pyro.errors import ConfigError, DataError
from bara_pyro.report import Table, markdown
from bara_pyro.runs.atomic import write_text
from experiments.engine.arguments import command_line
from experiments.engine.provenance import in_words
from experiments.engine.results import RESULTS, STUDIES, Results, Study, study_names
from experiments.page.figures import save
from experiments.page.parts import Folded, Part, Picture
from experiments.page.spec import StudySpec, find_study, stored_studies
from experiments.page.template import Renderer
from experiments.page.values import gaps

ROOT = Path(__file__).parents[2]
CLAIMS = Path(__file__).with_name("claims")
# Documents of which a part is written from results.
CLAIMED = ("README.md", "docs/index.md", "docs/limits.md")
WIDTH = 110
# Of templates; settings stand in code spans, and links, arXiv ids and names of models are no results.
TAG = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}", re.DOTALL)
ALLOWED = re.compile(r"`[^`]*`|\]\([^)]*\)|\barXiv \d{4}\.\d{4,5}|\b[A-Z]\w*[0-9.]+-\d+(\.\d+)?[BM]\b")
FIGURE = re.compile(r"\(\.\./figures/([\w.-]+\.svg)\)")
NUMERAL = re.compile(r"[+\-−±]?\d[\d,]*\.\d+|\d[\d,]* ?(%|percent\b|points\b|nats\b)")

INDEX = """# Results

Written by `python -m experiments report` from the files in `experiments/results/`, which hold every score
with its configuration hash, versions and hardware. Accuracy and ECE (15 bins) in percent, NLL in nats, Brier
from 0 to 2. S = 0 is the posterior mean, S = 10 the average over ten draws. Mean ± standard deviation over
seeds; **best** and _second best_ of each column by the mean, ties included. Where there is one seed, say
nothing about differences of a few points: the standard error of an accuracy of one half on 1,000 rows is
{error:.1f} points. A best arm of a table was picked on the rows of the table. Each page ends with the code
that made its figures, and defaults are the defaults of that code: [a rehearsal](calibrated.md), which few
rows have by default now, is in no study that does not say so. In tables "BaRA" is the additive form, "BaRA
gate" the gate form, "MLE (LoRA)" plain LoRA and "Temperature" LoRA with a temperature fitted on validation
rows; Ψ, where it stands, is the product Φθ.
"""


def pages(render: Renderer, studies: Path = STUDIES, figures: Path | None = None) -> dict[str, str]:
    """Return the text of each page: its name (`index` or that of a study) -> Markdown.

    Figures are drawn into a folder, if there is one.

    Raises:
        DataError: a file holds something else, a record is missing, or a template names what is not there.
    """
    found: dict[str, list[str]] = {}
    lines = []
    for name, (study, spec) in render.studies.items():
        if spec.read_by:
            continue
        more = name.removeprefix(study).removeprefix("_")
        path = studies / study / ("answer.md" if name == study else f"answer_{more}.md")
        answer = render.text(path, name) if path.exists() else ""
        anchor = f"#{slug(more)}" if more else ""
        text = section(spec, render.load(name), answer, figures, first=not more)
        sections = found.setdefault(study, [f"# {spec.title}\n"])
        sections.append(f"## {more}\n\n{text}" if more else text)
        link = f"- [{title_of(name, study, spec)}](results/{study}.md{anchor})"
        lines.append(f"{link}: {headline(answer)}" if answer else link)
    top = INDEX.format(error=100 * (0.25 / 1000) ** 0.5)
    texts = {study: "\n".join(sections) for study, sections in found.items()}
    return {"index": "\n".join([top, *lines, ""]), **texts}


def title_of(name: str, study: str, spec: StudySpec) -> str:
    """Return the title of a set of results; a further one of a study has its name behind it."""
    return spec.title if name == study else f"{spec.title}: {name.removeprefix(f'{study}_')}"


def page(title: str, spec: StudySpec, stored: Any, answer: str, figures: Path | None) -> str:
    """Return the page of one set of results."""
    return f"# {title}\n\n{section(spec, stored, answer, figures)}"


def section(spec: StudySpec, stored: Any, answer: str, figures: Path | None, *, first: bool = True) -> str:
    """Return what was asked, what was learnt, tables and figures, and which code made them.

    Of a further set of results (`first` is False) there is one figure.
    """
    question = spec.question.format(**spec.facts(stored))
    if isinstance(stored, Study):
        lines = [fill(question, WIDTH) + "\n"]
        missing = gaps(stored)
        parts = list(spec.parts(stored)) if stored.finished else []
    else:
        lines = [question.rstrip() + "\n"]
        missing, parts = [], list(spec.parts(stored))
    pictures = [part for part in parts if isinstance(part, Picture)]
    left_out = [] if first else pictures[1:]
    lines += [f"{answer.strip()}\n"] if answer else []
    lines += [fill(f"Incomplete: {'. '.join(missing)}.", WIDTH) + "\n"] if missing else []
    lines += [shown(part, figures) for part in parts if part not in left_out]
    return "\n".join([*lines, provenance(stored)])


def slug(heading: str) -> str:
    """Return the anchor of a heading, as GitHub and mkdocs make it."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip())


def shown(part: Part, figures: Path | None) -> str:
    """Return a part as Markdown; a figure is drawn where there is a folder for it."""
    if isinstance(part, str):
        return part
    if isinstance(part, Table):
        return markdown(part)
    if isinstance(part, Folded):
        tables = [markdown(table) for table in part.tables]
        return "\n".join([f"<details><summary>{part.title}</summary>\n", *tables, "</details>\n"])
    text = f"{part.caption} {part.numbers}".strip()
    if figures is not None:
        save(part.draw(), figures / f"{part.name}.svg", text)
    return f"![{text}](../figures/{part.name}.svg)\n\n*{part.caption}*\n"


def provenance(stored: Study | Results) -> str:
    """Return a sentence on which code made the results of a page."""
    made: Iterable[dict[str, Any]] = stored.records if isinstance(stored, Study) else stored.entries.values()
    counts = Counter(in_words(entry.get("code")) for entry in made)
    said = "; ".join(f"{words} ({count})" for words, count in counts.items())
    return f"Code behind the results: {said or 'none'}.\n"


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
    found = pages(render, STUDIES, root / "docs" / "figures" if draw else None)
    texts = {
        root / "docs" / ("results.md" if name == "index" else f"results/{name}.md"): text
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


def headline(answer: str) -> str:
    r"""Return the first sentence of an answer, on one line, without emphasis and the parts of its errors.

    >>> headline("**It does: by 1.2 [0.9, 1.5] (SE 0.1 by seeds, 0.1 by rows) points.** More\nwords.")
    'It does: by 1.2 [0.9, 1.5] points.'
    """
    text = " ".join(answer.split("\n\n", maxsplit=1)[0].split()).replace("**", "")
    text = re.sub(r" \(SE [^()]* by seeds, [^()]* by rows\)", "", text)
    return re.split(r"(?<=[.?!])\s+(?=[A-ZΦθ])", text)[0]


def problems(root: Path = ROOT) -> list[str]:
    """Return what is wrong with the committed pages: typed numbers, and pages that are not of the results."""
    sources = [*STUDIES.glob("*/answer*.md"), *CLAIMS.glob("*.md")]
    lines: list[str] = []
    for path in sorted(sources):
        lines += typed_numerals(path.read_text(), path.relative_to(ROOT))
    for name in study_names():
        asked = re.sub(r"\{[^{}]*\}", "", find_study(name).question)
        lines += typed_numerals(asked, Path(f"the question of {name}"))
    texts = documents(draw=False)
    drawn = {root / "docs" / "figures" / name for text in texts.values() for name in FIGURE.findall(text)}
    written = {*(root / "docs" / "results").glob("*.md"), *(root / "docs" / "figures").glob("*.svg")}
    for path, text in texts.items():
        if not path.exists() or path.read_text() != text:
            lines.append(f"{path.relative_to(root)} is not that of the stored results: "
                         "python -m experiments report")  # fmt: skip
    lines += [
        f"{path.relative_to(root)} is missing: python -m experiments report" for path in drawn - written
    ]
    return lines + [
        f"{path.relative_to(root)} has no results behind it." for path in written - drawn - set(texts)
    ]


def own_pages(results: Path) -> list[Path]:
    """Write the pages of a folder of results into its `pages`, without the words on the committed ones.

    Raises:
        DataError: the folder holds no results of a study.
    """
    written = []
    for name, (study, spec) in stored_studies(results).items():
        text = page(title_of(name, study, spec), spec, spec.load(name, results), "", results / "figures")
        written.append(results / "pages" / f"{name}.md")
        write_text(written[-1], text)
    if not written:
        raise DataError(f"{results} holds no results of a study: run one with --out {results}.")
    return written


def main() -> None:
    """Write the pages, or check them."""
    parser = command_line(__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; an error where something is wrong"
    )
    parser.add_argument(
        "--out", metavar="DIR", type=Path, help="of the results there; default: the committed ones"
    )
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
