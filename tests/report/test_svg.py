"""A figure as SVG: the same bytes, no ground of its own colour, and points that tell their values."""

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure

from bara_pyro.report.hover import MOST, spots
from bara_pyro.report.style import INK, dress, new_figure
from bara_pyro.report.svg import CLOUD, inlined, svg_file

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


def titles(text: str) -> list[str]:
    return [str(found.text) for found in ElementTree.fromstring(text).iter(f"{SVG}title")]


def test_points_tell_their_name_and_values():
    assert titles(svg_file(drawn(), "alt")) == [
        "BaRA <gate>\nn: 1\nscore (%): 0.025",
        "BaRA <gate>\nn: 2\nscore (%): −0.5",
        "mean\nn: 2.5\nscore (%): 0.75 (0.5 to 0.875)",
    ]


def test_areas_lie_on_their_points():
    figure = drawn()
    (one, two, *_) = ElementTree.fromstring(svg_file(figure, "")).iter(f"{SVG}circle")
    axes = figure.axes[0]
    for area, place in ((one, (1, 0.025)), (two, (2, -0.5))):
        x, y = figure.transFigure.inverted().transform(axes.transData.transform(place))
        assert float(area.get("cx", "")) == pytest.approx(72 * 4 * x, abs=0.06)
        assert float(area.get("cy", "")) == pytest.approx(72 * 3 * (1 - y), abs=0.06)


def test_markers_of_the_file_lie_in_their_areas():
    # What matplotlib wrote, and what was computed from its transforms.
    root = ElementTree.fromstring(svg_file(drawn(), ""))
    marks = [(float(use.get("x", "")), float(use.get("y", ""))) for use in root.iter(f"{SVG}use")]
    for area in root.iter(f"{SVG}circle"):
        centre = float(area.get("cx", "")), float(area.get("cy", ""))
        assert min(np.hypot(x - centre[0], y - centre[1]) for x, y in marks) < 0.2


def test_values_are_read_as_the_ticks_say():
    figure = new_figure(4, 3)
    left, right = figure.subplots(1, 2, sharey=True)
    left.bar([-0.2, 0.8], [3, 4], 0.4, label="LoRA", yerr=[1, 0])
    left.bar([0.2, 1.2], [5, 6], 0.4)  # without a label: part of another bar
    left.set_xticks([0, 1], ["one", "two"])
    dress(left, "", "points")
    right.plot([990.0, 1800.0], [1, 2], "o")
    right.set_xscale("log")
    right.set_xticks([1000.0], ["1,000"])
    right.minorticks_off()
    figure.supxlabel("rows")
    svg_file(figure, "")
    right.set_yticks([0, 2])
    assert [spot.text for spot in spots(figure)] == [
        "LoRA\nrows: one\npoints: 3 (2 to 4)",
        "LoRA\nrows: two\npoints: 4",
        "rows: 1,000\npoints: 1",
        "rows: 1800\npoints: 2",
    ]
    left_end, upper, right_end, lower = spots(figure)[0].box
    assert (right_end - left_end, lower - upper) > (10, 10)


def test_numbers_in_text_keep_their_digits():
    figure = new_figure(3, 3)
    figure.add_subplot().set_title("limit 0.0375, 12.345")
    assert "limit 0.0375, 12.345</text>" in svg_file(figure, "")


def test_a_cloud_is_one_picture_and_its_points_are_silent():
    figure = new_figure(3, 3)
    axes = figure.add_subplot()
    some = np.random.default_rng(0).random((2, CLOUD + 1))
    axes.scatter(*some[:, : MOST + 1])
    assert svg_file(figure, "").count("<use ") > MOST
    axes.scatter(*some)
    markup = svg_file(figure, "")
    assert "<circle" not in markup
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
    assert titles(shown) == titles(file)


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
