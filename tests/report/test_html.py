"""The one-file report."""

import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from bara_pyro.report.figures import training_curves
from bara_pyro.report.html import (
    ColourScale,
    Details,
    Link,
    Paragraph,
    Picture,
    Points,
    Section,
    Shaded,
    Word,
    common_style,
    document,
    write_index,
)
from bara_pyro.report.style import DAY, NIGHT, PALETTE, inlined, new_figure, svg_file
from bara_pyro.report.table import Column, Table

VOID = {"meta"}
NASTY = "<script>alert('x')</script> & \"quoted\" $name"


class Reader(HTMLParser):
    """Collects tags and text, and fails on tags that are not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: dict[str, list[str]] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and data.strip():
            self.text.setdefault(self.open[-1], []).append(data)

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def read(path: Path) -> Reader:
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    reader.close()
    assert reader.open == []
    return reader


@pytest.fixture
def page(tmp_path: Path) -> Reader:
    table = Table(
        [Column("name", NASTY), Column("acc", "Accuracy", "%", ".1f", "max")],
        [{"name": NASTY, "acc": 51.0}, {"name": "BaRA", "acc": 57.0}, {"name": "BLoB"}],
        caption=NASTY,
    )
    figure = training_curves({NASTY: [{"step": t, "nll": 1.0} for t in range(5)]})
    pictures = [Picture(figure, alt=NASTY, caption=NASTY), Picture(figure, alt="plain")]
    path = write_index(tmp_path / "report", NASTY, [NASTY, "", "second", table, *pictures])
    assert path == tmp_path / "report" / "index.html"
    assert [file.name for file in path.parent.iterdir()] == ["index.html"]
    return read(path)


def test_every_text_is_escaped_and_unchanged(page: Reader):
    assert page.attributes("script") == [{}]  # that of the tables
    assert NASTY not in page.text["script"][0]
    assert page.text["title"] == page.text["h1"] == page.text["caption"] == page.text["figcaption"] == [NASTY]
    assert page.text["p"] == [NASTY, "second"]
    assert page.text["th"] == [NASTY, "Accuracy (%)", NASTY, "BaRA", "BLoB"]
    assert page.attributes("svg")[0]["aria-label"] == NASTY
    assert page.attributes("div")[0]["aria-label"] == NASTY


def test_table_has_headers_a_best_value_and_a_dash_for_what_is_missing(page: Reader):
    assert [a["scope"] for a in page.attributes("th")] == ["col", "col", "row", "row", "row"]
    assert page.text["td"] == ["51.0", "–"]
    assert page.text["strong"] == ["57.0"]


def test_the_second_best_value_is_emphasised(tmp_path: Path):
    table = Table([Column("acc", "ACC", best="max", second=True)], [{"acc": v} for v in (1, 3, 2)])
    page = read(write_index(tmp_path, "page", [table]))
    assert (page.text["strong"], page.text["em"]) == (["3.00"], ["2.00"])


def test_figures_are_markup_of_the_page_and_nothing_is_fetched(page: Reader):
    assert [a["role"] for a in page.attributes("svg")] == ["img", "img"]
    assert page.attributes("img") == page.attributes("link") == []
    assert "url(" not in page.text["style"][0]
    assert [a.get("class") for a in page.attributes("div")] == ["scroll", "figures"]  # side by side
    identifiers = [a["id"] for _, a in page.tags if "id" in a]
    assert len(set(identifiers)) == len(identifiers) > 0  # the same figure twice, each with its own
    targets = {a["xlink:href"] for a in page.attributes("use")}
    assert targets <= {f"#{name}" for name in identifiers}


def coloured() -> Figure:
    figure = new_figure(2, 2)
    axes = figure.add_subplot()
    for colour in PALETTE:
        axes.plot([0, 1], [0, 1], color=colour)
    axes.set_title("a < b")
    return figure


def test_a_figure_takes_the_colours_of_the_page():
    markup = inlined(svg_file(coloured(), "what"), "x-")
    assert markup == inlined(svg_file(coloured(), "what"), "x-")
    assert not re.search("|".join((*PALETTE, "#ffffff")), markup, re.IGNORECASE)
    assert all(f"var(--c{i})" in markup for i in range(len(PALETTE) - 1))
    for colour in (*DAY, *NIGHT):
        assert colour in NIGHT
        assert f"--{colour}: {DAY[colour]};" in common_style()
        assert f"--{colour}: {NIGHT[colour]};" in common_style()
    assert "a &lt; b</text>" in markup  # text stays text
    assert "font-family" not in markup
    assert "font: " not in markup


def test_page_declares_language_encoding_width_and_both_themes(page: Reader):
    assert page.attributes("html")[0]["lang"] == "en"
    assert page.attributes("meta")[0]["charset"] == "utf-8"
    assert any(a.get("name") == "viewport" for a in page.attributes("meta"))
    assert "prefers-color-scheme: dark" in page.text["style"][0]


def policy(reader: Reader) -> dict[str, list[str]]:
    (content,) = [a["content"] for a in reader.attributes("meta") if "http-equiv" in a]
    return {name: sources for name, *sources in (part.split() for part in content.split(";"))}


def hashed(script: str) -> str:
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"


def test_a_page_may_run_its_own_scripts_and_no_other(page: Reader):
    none = {"default-src": ["'none'"], "img-src": ["data:"], "style-src": ["'unsafe-inline'"]}
    assert policy(page) == none | {"script-src": [hashed(page.text["script"][0])]}
    reader = Reader()
    reader.feed(document(NASTY, body="<p>body</p>", style="p { color: red; }", script="const a = 1 < 2;"))
    assert policy(reader) == none | {"script-src": [hashed("const a = 1 < 2;")]}
    assert reader.text["script"] == ["const a = 1 < 2;"]
    folded = document("t", [Details("more", [Table([Column("a", "A")], [])])])
    assert "script-src" in folded  # its table sorts, too
    assert "script-src" not in document("t", ["no table"])
    assert reader.text["style"][0].endswith("p { color: red; }")
    assert "p" not in reader.text  # a body that is plain text is escaped
    assert reader.text["title"] == reader.text["h1"] == [NASTY]


def test_long_texts_wrap_and_short_ones_and_numbers_do_not(tmp_path: Path):
    path = "model.layers.0.attention.query_key_value"
    rows = [{"name": "q_proj", "value": 1.0, "note": path}, {"name": path, "value": 1e40, "note": ""}]
    table = Table([Column("name", "n"), Column("value", "v", format=".0f"), Column("note", "m")], rows)
    page = read(write_index(tmp_path, "page", [table]))
    cells = [a.get("class") for a in page.attributes("th")[3:] + page.attributes("td")]
    assert cells == [None, "long", "number", "long", "number", None]


def test_every_kind_of_block(tmp_path: Path):
    blocks = [
        Paragraph(["see ", Link(NASTY, "a.html?x=1&y=2")], "plain"),
        Points(["one", Paragraph("two", "technical")]),
        Shaded("title", [Word(NASTY, "#000000", "#ffffff", NASTY), Word("b", "#ffffff", "#000000")]),
        ColourScale(["#000000", "#ffffff"], "low", "high", "label"),
        Details("more", ["folded"]),
        "97 % of 3 nats",
    ]
    page = read(write_index(tmp_path, "page", blocks))
    assert page.attributes("a") == [{"href": "a.html?x=1&y=2"}]
    assert page.text["a"] == [NASTY]
    assert [a.get("class") for a in page.attributes("p")][:3] == ["plain", None, "technical"]
    assert page.text["h3"] == ["title"]
    words = [a for a in page.attributes("span") if "style" in a]
    assert [a.get("title") for a in words] == [NASTY, None]
    assert [a["aria-label"] for a in page.attributes("div") if a.get("role") == "img"] == ["label"]
    assert page.text["summary"] == ["more"]
    assert "folded" in page.text["p"]
    assert "97\u00a0% of 3\u00a0nats" in page.text["p"]  # no line ends between number and unit


def test_sections_have_a_table_of_contents(tmp_path: Path):
    sections = [Section("First: a & b", ["text"]), Section("Second", [])]
    page = read(write_index(tmp_path, "page", sections=sections))
    assert [tag for tag, _ in page.tags if tag in ("h1", "h2", "h3")] == ["h1", "h2", "h2"]
    assert page.text["a"] == page.text["h2"] == ["First: a & b", "Second"]
    assert [a["href"] for a in page.attributes("a")] == [f"#{a['id']}" for a in page.attributes("h2")]
    assert page.attributes("nav")[0]["aria-label"]
    assert read(write_index(tmp_path, "page", sections=sections[:1])).attributes("nav") == []
