"""Tables sort by the header that is clicked on, in a real browser."""

import json
import re
from html import unescape
from pathlib import Path

import pytest
from browser_cases import NEEDED, browse, without_policy

from bara_pyro.report.html import Details, write_index
from bara_pyro.report.table import Column, Table

pytestmark = NEEDED

# Each column in the order in which it has to stand; what has no number comes last, whichever way.
COLUMNS = {
    "plain": (["2", "9.5", "10", "1000"], ["–"]),
    "signed": (["-3", "−2.5", "0", "+1"], ["NaN"]),
    "spread": (["9.9 ± 5.0", "56.4 ± 0.4", "56.5 ± 0.1", "100.0 ± 0.0"], [""]),
    "interval": (["−0.1 [−0.2, +0.0]", "+0.2 [0.1, 0.3] better", "+1.1 [+0.4, +1.7]", "12"], ["unclear"]),
    "large": (["-∞", "999", "1,024", "∞"], ["–"]),
    "small": (["<0.001", "1e-2", ".5", "5 %"], ["–"]),
    "words": (["BLoB", "layer 9", "layer 10", "LoRA"], []),
    "few": (["3 of 8", "7 of 8", "8 of 8", "12 of 20"], ["–"]),
}
GIVEN = [3, 0, 4, 2, 1]  # the rows as they come: the places of the lists above
PROBE = """<pre id="found"></pre><script>
addEventListener("load", () => {
  const found = {}, table = document.querySelector("table");
  const heads = [...table.tHead.rows[0].cells];
  for (const head of heads) {
    const button = head.querySelector("button"), name = head.textContent;
    const read = () => [...table.tBodies[0].rows].map(row => row.cells[head.cellIndex].textContent);
    found[name] = [];
    for (let i = 0; i < 3; i++) {
      button.click();
      found[name].push([head.getAttribute("aria-sort"), read()]);
    }
    found[name].push(heads.filter(other => other.hasAttribute("aria-sort")).length);
    button.focus();
    found[name].push(document.activeElement === button);
  }
  document.getElementById("found").textContent = JSON.stringify(found);
});
</script></body>"""


def page(folder: Path) -> Path:
    texts = {name: [*up, *without] for name, (up, without) in COLUMNS.items()}
    rows = [{name: column[i] if i < len(column) else None for name, column in texts.items()} for i in GIVEN]
    table = Table([Column(name, name) for name in COLUMNS], rows)
    return write_index(folder, "Tables", [table, Details("more", [Table([Column("a", "A")], [{"a": 1}])])])


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder = tmp_path_factory.mktemp("page")
    path = page(folder)
    path.write_text(without_policy(path.read_text()).replace("</body>", PROBE))
    shown, console = browse(path, folder / "profile")
    assert console == []
    return json.loads(unescape(re.search(r'<pre id="found">(.*?)</pre>', shown, re.DOTALL)[1]))


@pytest.mark.parametrize("name", COLUMNS)
def test_up_down_and_as_it_came(name: str, found: dict) -> None:
    up, without = COLUMNS[name]
    last = without or ["–"]  # a row that has nothing in this column
    ascending, descending, given, marked, focused = found[name]
    assert ascending == ["ascending", [*up, *last]]
    assert descending == ["descending", [*up[::-1], *last]]
    assert given == [None, [[*up, *last][i] for i in GIVEN]]
    assert marked == 0
    assert focused  # and what has the focus is clicked by Enter and the space bar


def test_the_policy_of_the_page_lets_the_script_run(tmp_path: Path) -> None:
    shown, console = browse(page(tmp_path), tmp_path / "profile")
    assert console == []
    assert shown.count('<button type="button">') == len(COLUMNS)  # nothing to sort in a table of one row
