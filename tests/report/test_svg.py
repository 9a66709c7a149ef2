"""A figure as SVG: the same bytes, and no ground of its own colour."""

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from matplotlib.figure import Figure

from bara_pyro.report.style import CLOUD, INK, dress, inlined, new_figure, svg_file

SVG = "{http://www.w3.org/2000/svg}"
FIGURES = Path(__file__).parents[2] / "docs" / "figures"


def drawn() -> Figure:
    figure = new_figure(4, 3)
    axes = figure.add_subplot()
    axes.plot([1, 2, 3], [0.025, -0.5, np.nan], "o-", color=INK, label="BaRA <gate>")
    axes.plot([1, 2], [0, 1], color=INK, label="a line")
    axes.errorbar([2.5], [0.75], yerr=[[0.25], [0.125]], fmt="D", color=INK, label="mean")
    dress(axes, "n", "score (%)")
    return figure


def test_numbers_in_text_keep_their_digits():
    figure = new_figure(3, 3)
    figure.add_subplot().set_title("limit 0.0375, 12.345")
    assert "limit 0.0375, 12.345</text>" in svg_file(figure, "")


def test_a_cloud_is_one_picture():
    figure = new_figure(3, 3)
    axes = figure.add_subplot()
    some = np.random.default_rng(0).random((2, CLOUD + 1))
    axes.scatter(*some[:, : CLOUD // 4])
    assert svg_file(figure, "").count("<use ") >= CLOUD // 4
    axes.scatter(*some)
    markup = svg_file(figure, "")
    assert markup.count("<image ") == 1
    assert len(markup) < 200_000


def test_a_file_is_the_same_each_time_and_has_no_ground_of_its_own():
    text = svg_file(drawn(), "a < b")
    assert text == svg_file(drawn(), "a < b")
    root = ElementTree.fromstring(text)
    assert (root.get("width"), root.get("height"), root.get("viewBox")) == ("384", "288", "0 0 288 216")
    assert root.get("aria-label") == "a < b"
    without_style = re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL)
    colours = re.findall(r"(?:fill|stroke)[:=] ?\"?([^;\"]+)", without_style)
    assert {c for c in colours if not c.startswith("var(--") and not re.fullmatch(r"[\d.]+", c)} == {"none"}
    assert re.search(r"prefers-color-scheme: dark\) \{ :root \{ --ink", text)
    assert not re.search(r"20\d\d-|Matplotlib|http(?!://www.w3.org)", text)


def test_part_of_a_page_is_the_file_without_what_the_page_has():
    file = svg_file(drawn(), "alt")
    shown = inlined(file, "x-")
    assert "<style" not in shown
    assert 'var(--page)"/>' not in shown
    assert re.findall(r' id="([^"]+)"', shown) == [
        f"x-{name}" for name in re.findall(r' id="n([^"]+)"', file)
    ]


def test_figures_of_the_project():
    paths = sorted(FIGURES.glob("*.svg"))
    assert len(paths) > 20
    for path in paths:
        text = path.read_text(encoding="utf-8")
        root = ElementTree.fromstring(text)
        assert len(str(root.get("aria-label"))) > 20, path
        body = re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL)
        assert not re.search(r"(fill|stroke)[:=] ?\"?#", body), path  # every colour has one for the dark
        identifiers = re.findall(r' id="([^"]+)"', text)
        assert len(set(identifiers)) == len(identifiers), path
        assert {*re.findall(r'(?:url\(#|href="#)([^")]+)', text)} == {*identifiers}, path
        assert len(text) < 200_000, path
