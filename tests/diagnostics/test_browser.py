"""The pages in a real browser: on a phone and on a screen, by day and by night; skipped where there is "
"none."""

import json
import re
from html import unescape
from pathlib import Path

import pytest
from browser_cases import NEEDED, browse, without_policy
from inspection_cases import OPTIONS, fitted

from bara_pyro.diagnostics.inspection import inspect_run
from bara_pyro.extras.replies.generation.page import write_reply_page

pytestmark = NEEDED

PROBE = """
<script>
addEventListener("load", () => {
  const parts = text => text.match(/[\\d.]+/g).map(Number);
  const light = colour => {
    const linear = parts(colour).slice(0, 3).map(c => c / 255)
      .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const ground = element => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if ((parts(colour)[3] ?? 1) > 0) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const faint = [], small = [], wide = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
    if (element.closest("script, style, option") || !element.getClientRects().length) continue;
    const style = getComputedStyle(element), inside = element.closest("svg");
    if (own) {
      const [a, b] = [light(inside ? style.fill : style.color), light(ground(element))].sort((a, b) => b - a);
      if ((a + 0.05) / (b + 0.05) < 4.5) faint.push(element.textContent.trim().slice(0, 40));
      const scale = inside ? inside.getBoundingClientRect().width / inside.viewBox.baseVal.width : 1;
      if (parseFloat(style.fontSize) * scale < 9) small.push(element.textContent.trim().slice(0, 40));
    }
    if (!element.closest(".scroll") && element.getBoundingClientRect().right > innerWidth + 1)
      wide.push(element.tagName + " " + element.textContent.trim().slice(0, 40));
  }
  const lost = [...document.querySelectorAll('a[href^="#"]')].map(a => a.getAttribute("href").slice(1))
    .filter(name => !document.getElementById(name));
  parent.postMessage({width: innerWidth, overflow: document.documentElement.scrollWidth - innerWidth,
    dark: matchMedia("(prefers-color-scheme: dark)").matches, faint, small, wide, lost}, "*");
});
</script>
"""
FRAME = """<!doctype html><body style="margin: 0"><pre id="found"></pre>
<iframe src="{page}" style="border: 0; width: {width}px; height: 800px"></iframe>
<script>addEventListener("message", event =>
  document.getElementById("found").textContent = JSON.stringify(event.data));</script>"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        texts = {"one": "in winter", "two": "in summer the guest eats beans ?"}
        patch.setattr("bara_pyro.diagnostics.parts.tokens.default_texts", lambda system: texts)
        return inspect_run(tmp_path_factory.mktemp("run"), fitted("bara-gate"), OPTIONS)[0].parent


def look(page: Path, folder: Path, width: int, dark: bool) -> dict:
    """Return what a script finds on the page at a width; in a frame, because no window is narrower than "
    "500."""
    text = without_policy(page.read_text())
    (folder / "page.html").write_text(text.replace("</body>", f"{PROBE}</body>"))
    (folder / "frame.html").write_text(FRAME.format(page="page.html", width=width))
    flags = [f"--window-size={max(width, 500)},900", *(["--force-dark-mode"] if dark else [])]
    shown, _ = browse(folder / "frame.html", folder / "profile", *flags)
    return json.loads(unescape(re.search(r'<pre id="found">(.*?)</pre>', shown, re.DOTALL)[1]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "width", "dark"),
    [
        ("index.html", 390, True),
        ("index.html", 1280, False),
        ("tokens.html", 390, False),
        ("tokens.html", 1280, True),
    ],
)
def test_it_can_be_read(name: str, width: int, dark: bool, report: Path, tmp_path: Path) -> None:
    found = look(report / name, tmp_path, width, dark)
    assert (found["width"], found["dark"]) == (width, dark)
    assert found["overflow"] <= 0
    assert found["wide"] == []  # nothing is cut off; tables scroll in themselves
    assert found["faint"] == []  # contrast of 4.5, WCAG 2.2 AA
    assert found["small"] == []  # letters of 9 pixels, in figures too
    assert found["lost"] == []


@pytest.mark.parametrize("name", ["index.html", "tokens.html"])
@pytest.mark.slow
def test_nothing_goes_wrong_on_loading(name: str, report: Path, tmp_path: Path) -> None:
    shown, console = browse(report / name, tmp_path / "profile")
    assert console == []
    for href in re.findall(r'<a href="([^"#]+)"', shown):
        assert (report / href).is_file()
    if name == "tokens.html":  # its script has run
        assert "% of gates nearly off" in shown


@pytest.fixture(scope="module")
def replies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of replies with a token of every colour, and of what is hard to show."""
    texts = [f" w{i}" for i in range(40)] + [
        "<b>",
        "\n",
        "    ",
        "\ufffd",
        "x" * 90,
        " مرحبا",
        "\u202eabc",
        "",
    ]
    ramp = [i / len(texts) for i in range(len(texts))]
    row = {
        **{"id": "a" * 60, "prompt": "say\n" * 30 + "x" * 200, "reply": "".join(texts), "ended": False},
        **{"number": 0, "log_prob": -9.0, "log_prob_mixture": -9.5, "token_texts": texts},
        **{
            "epistemic": ramp,
            "aleatoric": ramp[::-1],
            "total": ramp,
            "log_probs": [-value for value in ramp],
        },
    }
    return write_reply_page([row], tmp_path_factory.mktemp("replies") / "replies.html", "Replies", draws=4)


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1280, False)])
@pytest.mark.slow
def test_replies_can_be_read(width: int, dark: bool, replies: Path, tmp_path: Path) -> None:
    page = tmp_path / "open.html"
    page.write_text(replies.read_text().replace("<details>", "<details open>"))
    found = look(page, tmp_path, width, dark)
    assert (found["width"], found["dark"]) == (width, dark)
    assert found["overflow"] <= 0
    assert found["wide"] == found["faint"] == found["small"] == []
    assert browse(replies, tmp_path / "profile")[1] == []


COLOURS = """
<script>
addEventListener("load", () => {
  const tokens = [...document.querySelectorAll(".reply span")], found = {};
  for (const view of "eatp") {
    document.getElementById("view-" + view).click();
    const keys = [...document.querySelectorAll(".key")].filter(key => key.getClientRects().length);
    found[view] = {grounds: tokens.map(token => getComputedStyle(token).backgroundColor),
      keys: keys.map(key => key.className)};
  }
  tokens[0].focus();
  const foot = getComputedStyle(tokens[0], "::after");
  found.foot = [foot.content, foot.position];
  parent.postMessage(found, "*");
});
</script>
"""


def test_colours_of_replies_are_chosen(
    replies: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "PROBE", COLOURS)
    found = look(replies, tmp_path, 390, False)
    assert len({*found["e"]["grounds"]}) == 9
    assert found["e"]["grounds"] == found["t"]["grounds"] == found["p"]["grounds"]
    assert found["a"]["grounds"] == found["e"]["grounds"][::-1]
    for view in "eatp":  # one key, its own
        assert found[view]["keys"] == [f"key key-{view}"]
    assert found["foot"] == ['"epistemic 0.000, aleatoric 0.979, total 0.000, −log p 0.000"', "fixed"]


def test_the_probe_sees_what_is_wrong(tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text(
        '<!doctype html><html><body><p style="color: #999; background: #fff">faint</p>'
        '<p style="font-size: 6px">small</p><div style="width: 900px">wide</div>'
        '<a href="#no">lost</a></body></html>'
    )
    found = look(page, tmp_path, 390, False)
    assert found["overflow"] > 0
    assert found["lost"] == ["no"]
    assert "faint" in found["faint"]
    assert "small" in found["small"]
    assert any("wide" in line for line in found["wide"])
