"""The one-file report."""

import base64
from html.parser import HTMLParser
from pathlib import Path

import pytest

from bara_pyro.report import Column, Picture, Table, training_curves, write_index
from bara_pyro.report.html import STYLE, document

VOID = {"meta", "img"}
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
    path = write_index(tmp_path / "report", NASTY, [table], pictures, [NASTY, "", "second"])
    assert path == tmp_path / "report" / "index.html"
    assert [file.name for file in path.parent.iterdir()] == ["index.html"]
    return read(path)


def test_every_text_is_escaped_and_unchanged(page: Reader):
    assert page.attributes("script") == []
    assert page.text["title"] == page.text["h1"] == page.text["caption"] == page.text["figcaption"] == [NASTY]
    assert page.text["p"] == [NASTY, "second"]
    assert page.text["th"] == [NASTY, "Accuracy (%)", NASTY, "BaRA", "BLoB"]
    assert page.attributes("img")[0]["alt"] == NASTY
    assert page.attributes("div")[0]["aria-label"] == NASTY


def test_table_has_headers_a_best_value_and_a_dash_for_what_is_missing(page: Reader):
    assert [a["scope"] for a in page.attributes("th")] == ["col", "col", "row", "row", "row"]
    assert page.text["td"] == ["51.0", "–"]
    assert page.text["strong"] == ["57.0"]


def test_the_second_best_value_is_emphasised(tmp_path: Path):
    table = Table([Column("acc", "ACC", best="max", second=True)], [{"acc": v} for v in (1, 3, 2)])
    page = read(write_index(tmp_path, "page", [table]))
    assert (page.text["strong"], page.text["em"]) == (["3.00"], ["2.00"])


def test_figures_are_embedded_and_nothing_is_fetched(page: Reader):
    for image in page.attributes("img"):
        kind, data = image["src"].split(",")
        assert kind == "data:image/png;base64"
        assert base64.b64decode(data, validate=True).startswith(b"\x89PNG")
        assert image["alt"]
    assert page.attributes("link") == []
    assert "url(" not in page.text["style"][0]


def test_page_declares_language_encoding_width_and_both_themes(page: Reader):
    assert page.attributes("html")[0]["lang"] == "en"
    assert page.attributes("meta")[0]["charset"] == "utf-8"
    assert any(a.get("name") == "viewport" for a in page.attributes("meta"))
    assert "prefers-color-scheme: dark" in page.text["style"][0]


def policy(reader: Reader) -> dict[str, list[str]]:
    (content,) = [a["content"] for a in reader.attributes("meta") if "http-equiv" in a]
    return {name: sources for name, *sources in (part.split() for part in content.split(";"))}


def test_only_a_page_that_has_a_script_may_run_one(page: Reader):
    assert policy(page) == {"default-src": ["'none'"], "img-src": ["data:"], "style-src": ["'unsafe-inline'"]}
    reader = Reader()
    reader.feed(document(NASTY, "<p>body</p>", style="p { color: red; }", script="const a = 1 < 2;"))
    assert policy(reader) == policy(page) | {"script-src": ["'unsafe-inline'"]}
    assert reader.text["script"] == ["const a = 1 < 2;"]
    assert reader.text["style"] == [STYLE + "p { color: red; }"]
    assert reader.text["title"] == reader.text["h1"] == [NASTY]


def test_long_texts_wrap_and_short_ones_and_numbers_do_not(tmp_path: Path):
    path = "model.layers.0.attention.query_key_value"
    rows = [{"name": "q_proj", "value": 1.0, "note": path}, {"name": path, "value": 1e40, "note": ""}]
    table = Table([Column("name", "n"), Column("value", "v", format=".0f"), Column("note", "m")], rows)
    page = read(write_index(tmp_path, "page", [table]))
    cells = [a.get("class") for a in page.attributes("th")[3:] + page.attributes("td")]
    assert cells == [None, "long", "number", "long", "number", None]


def test_a_picture_is_drawn_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    drawn = []
    monkeypatch.setattr("bara_pyro.report.html.png_bytes", lambda figure: drawn.append(figure) or b"png")
    picture = Picture(training_curves({"a": [{"step": t, "nll": 1.0} for t in range(3)]}), "alt")
    assert picture.png == b"png"
    page = read(write_index(tmp_path, "page", figures=[picture]))
    assert page.attributes("img")[0]["src"].endswith(base64.b64encode(b"png").decode())
    assert drawn == [picture.figure]


def test_least_page_and_overwriting(tmp_path: Path):
    write_index(tmp_path, "first", text="one paragraph")
    write_index(str(tmp_path), "second", [Table([Column("a", "A")], [])])
    reader = read(tmp_path / "index.html")
    assert reader.text["h1"] == ["second"]
    assert "p" not in reader.text
    assert reader.text["th"] == ["A"]
