"""Figures of the site: part of their page, in its colours, whichever scheme is chosen."""

import json
import re
from html import unescape
from pathlib import Path

import pytest
from browser_cases import NEEDED, browse

from bara_pyro.errors import DataError
from bara_pyro.report.style import DAY, NIGHT
from docs.tools import site
from experiments.engine.results import read_results

DOCS = Path(__file__).parents[2] / "docs"
PICTURE = '<p><img alt="what it shows" src="../figures/decide-coverage.svg" /></p>'


def shown(html: str) -> str:
    return site.finished(html, DOCS / "results")


def test_a_figure_becomes_part_of_its_page() -> None:
    text = shown(PICTURE)
    assert "<img" not in text
    assert "<style" not in text  # it would hold for the whole page
    assert text.startswith('<p><span class="figure"><svg style="min-width: 355px" class="drawn"')
    (run,) = (
        run
        for run in read_results("decide").entries.values()
        if (run["method"], run["task"]) == ("bara-gate", "micro-arcc")
    )
    covered = run["sets"]["lac"]["0.1"]["own"]["expected_coverage"]
    assert f"<title>BaRA gate\nCoverage promised (%): 90\nCoverage (%): {covered:.4g}</title>" in text
    twice = re.findall(r' id="([^"]+)"', shown(PICTURE + PICTURE.replace("decide-coverage", "pac_bayes")))
    assert len({*twice}) == len(twice)  # no two figures of a page share an identifier
    page = PICTURE.replace("figures/decide-coverage.svg", "site.css")  # no SVG file
    assert shown(page) == page
    with pytest.raises(DataError, match="no-such"):
        shown(PICTURE.replace("decide", "no-such"))


def test_an_interval_in_a_cell_stays_on_one_line() -> None:
    cell = "<td>−1.5 [−2.7, −0.3] (0.5, 0.3) unclear (see there)</td>"
    assert shown(cell) == cell.replace("2.7, ", "2.7,&nbsp;").replace("0.5, ", "0.5,&nbsp;")
    assert shown("<td>92.7 to 96.9</td>") == "<td>92.7&nbsp;to&nbsp;96.9</td>"
    assert shown("<code>[1, 2]</code>") == "<code>[1, 2]</code>"


PROBE = """<pre id="found"></pre><script>
const found = {}, figure = document.querySelector("svg"), text = figure.querySelector("text");
for (const scheme of ["default", "slate"]) {
  document.body.dataset.mdColorScheme = scheme;
  found[scheme] = [getComputedStyle(document.querySelector("text[style*='--ink']")).fill,
    getComputedStyle(figure).getPropertyValue("--c0").trim()];
}
const last = [...figure.querySelectorAll(".values circle")].at(-1), area = last.getBoundingClientRect();
found.hit = document.elementFromPoint(area.x + area.width / 2, area.y + area.height / 2) === last;
document.getElementById("found").textContent = JSON.stringify(found);
</script>"""


@NEEDED
@pytest.mark.parametrize("system", [[], ["--force-dark-mode"]], ids=["light", "dark"])
def test_the_scheme_that_is_chosen_is_that_of_figures(system: list[str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(
        f'<!doctype html><meta charset="utf-8"><style>{site.look()["report.css"]}</style>'
        f'<body data-md-color-scheme="default">{shown(PICTURE)}{PROBE}'
    )
    text, console = browse(page, tmp_path / "profile", *system)
    assert console == []
    found = json.loads(unescape(re.search(r'<pre id="found">(.*?)</pre>', text, re.DOTALL)[1]))
    for scheme, colours in (("default", DAY), ("slate", NIGHT)):
        rgb = ", ".join(str(int(colours["ink"][i : i + 2], 16)) for i in (1, 3, 5))
        assert found[scheme] == [f"rgb({rgb})", colours["c0"]]
    assert found["hit"]  # what has the values is what the pointer rests on


def test_the_site_has_the_look_and_the_script_of_the_package() -> None:
    found = site.look()
    assert 'th[aria-sort="ascending"]' in found["report.css"]
    assert ".drawn" in found["report.css"]
    assert "aria-sort" in found["sort.js"]
    settings = (DOCS.parent / "mkdocs.yml").read_text()
    assert "extra_css: [report.css, site.css]" in settings
    assert "extra_javascript: [sort.js]" in settings
