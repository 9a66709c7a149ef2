"""The page of replies: what it says, what it escapes, what it leaves out, what it refuses."""

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from bara_pyro.errors import ConfigError, DataError
from bara_pyro.extras.replies.generation.page import CAP, LEVELS, write_reply_page
from bara_pyro.extras.replies.generation.reply_tokens import mark_tokens
from bara_pyro.runs.answers import reply_page_in
from bara_pyro.types import Json
from bara_pyro.untrusted.files import read_jsonl

NASTY = ["<b>", "</style><script>alert(1)</script>", " \"x\" & 'y'", "{{ 7 * 7 }}", "\n", "\ufffd", "\ud800"]


def line(texts: list[str], epistemic: list[float] | None = None, **other: object) -> Json:
    """A line of a file of replies; the four uncertainties are told apart by their size."""
    own = [0.01 * i for i in range(len(texts))] if epistemic is None else epistemic
    return {
        **{"id": "a", "number": 0, "prompt": "say", "reply": "".join(texts), "ended": True},
        **{"tokens": len(texts), "log_prob": -3.25, "log_prob_mixture": -3.5, "made": "0"},
        **{"token_texts": texts, "epistemic": own, "aleatoric": [1 + value for value in own]},
        **{"total": [1 + 2 * value for value in own], "log_probs": [-3 - value for value in own]},
        **other,
    }


class Tokens(HTMLParser):
    """Collects tags, and of each token its classes, note and text."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.tokens: list[list[str]] = []
        self.inside = False
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        told = dict(attrs)
        self.inside = "data-note" in told
        if self.inside:
            self.tokens.append([str(told["class"]), str(told["data-note"]), ""])

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.tokens[-1][2] += data


def test_what_a_page_says(tmp_path: Path) -> None:
    asked = [{"role": "user", "content": "why ?"}]
    rows = [
        line(["so", " it", "<end>"], [0.5, 0.0, 0.0004], reply="so it", prompt=asked),
        line(["no"], number=1, ended=False, prompt=asked, log_probs=[0.0]),
    ]
    page = write_reply_page(rows, tmp_path / "page.html", "Of <mine>", draws=8)
    found, text = Tokens(page), " ".join(page.read_text().split())
    assert [token[2] for token in found.tokens] == ["so", " it", "<end>", "no"]
    assert found.tokens[0][1] == "epistemic 0.500, aleatoric 1.500, total 2.000, −log p 3.500"
    assert found.tokens[2][1].startswith("epistemic <0.001, ")
    assert found.tokens[3][1].endswith(", −log p 0.000")
    assert "<h1>Of &lt;mine&gt;</h1>" in text
    assert "<b>user</b> why ?" in text
    assert f"8 draws, of at most log&nbsp;8&nbsp;=&nbsp;{math.log(8):.2f}&nbsp;nats" in text
    assert "3 tokens, ended · log p −3.25 under its draw, −3.50 under the mixture · epistemic 0.500" in text
    assert "1 token, <strong>cut</strong> before its end" in text
    assert "the strongest begins at 0.47 nats" in text
    assert "Shown are" not in text
    assert "script" not in found.tags
    assert "script-src" not in text


def test_a_page_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "replies.jsonl"
    file.write_text(json.dumps(line(["a"], log_probs=[-math.inf], log_prob=math.nan)) + "\n")
    page = write_reply_page(read_jsonl(file), str(tmp_path / "new" / "page.html"), "Replies")
    assert reply_page_in(page)
    assert "log p unknown under its draw" in page.read_text()
    assert "−log p unknown" in page.read_text()
    assert " px" in Tokens(page).tokens[0][0]  # no colour rather than a wrong one


def test_nothing_that_a_model_writes_is_markup(tmp_path: Path) -> None:
    rows = [line(NASTY, id=nasty, prompt=nasty) for nasty in NASTY]
    page = write_reply_page(rows, tmp_path / "page.html", NASTY[1])
    found = Tokens(page)
    assert "script" not in found.tags
    assert "49" not in page.read_text()
    read = [token[2] for token in found.tokens[: len(NASTY)]]
    assert read == [*NASTY[:4], "⏎\n", "\ufffd", "\\ud800"]
    plain = write_reply_page([line(["a"])], tmp_path / "plain.html", "Replies")
    assert {*found.tags} == {*Tokens(plain).tags}


def test_one_scale_for_the_page_that_an_outlier_leaves_alone(tmp_path: Path) -> None:
    values = [0.001 * i for i in range(199)] + [50.0]
    rows = [line(["a"] * 100, values[:100]), line(["a"] * 100, values[100:], id="b")]
    page = write_reply_page(rows, tmp_path / "page.html", "Replies")
    cap = float(np.quantile(values, CAP))
    assert cap < 0.2
    levels = [int(token[0].split()[0][1:]) for token in Tokens(page).tokens]
    assert levels == [min(LEVELS - 1, math.floor((LEVELS - 1) * value / cap)) for value in values]
    assert f"<span>{cap:.2g} or more</span>" in page.read_text()
    rare = write_reply_page([line(["a"] * 200, [0.0] * 199 + [0.5])], tmp_path / "rare.html", "Replies")
    assert [token[0].split()[0] for token in Tokens(rare).tokens] == ["e0"] * 199 + [f"e{LEVELS - 1}"]
    one = write_reply_page([line(["a", "b"], [0.0, 0.0])], tmp_path / "one.html", "Replies", draws=1)
    assert [token[0].split()[0] for token in Tokens(one).tokens] == ["e0", "e0"]
    assert "all are 0" in one.read_text()


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    rows = [line(["a"] * 3, id=str(i), number=n) for i in range(4) for n in (2, 1, 0)]
    rows += [line(["a"] * 3, id="0", number=n) for n in (3, 4)]
    page = write_reply_page(rows, tmp_path / "page.html", "Replies", prompts=2, replies=2)
    assert (
        "Shown are the first 2 of 4 prompts, the first 2 of up to 5 replies to a prompt." in page.read_text()
    )
    assert re.findall(r"<h3>Reply (\d)</h3>", page.read_text()) == ["0", "1"] * 2
    long = write_reply_page([line(["a"] * 620)], tmp_path / "long.html", "Replies")
    assert len(Tokens(long).tokens) == 500
    assert "the first 500 tokens of longer replies" in long.read_text()
    assert "… 120 more tokens" in long.read_text()


@pytest.mark.parametrize(
    ("texts", "reply", "read"),
    [
        (["he", "llo", " you"], "hello you", "[he][llo][ you]"),
        (["is", "a", "fox", "."], "is a fox.", "[is] [a] [fox][.]"),  # decoded without their spaces
        (["ca", "\ufffd", "\ufffd", " au"], "café au", "[ca][\ufffd][\ufffd][ au]"),
        (["ca", "\ufffd", "\ufffd", "au", "</s>"], "café au", "[ca][\ufffd][\ufffd] [au] [</s>]"),
        (["a", "\n\n", "  ", "b\t"], "a\n\n  b\t", "[a][⏎\n⏎\n][␣␣][b⇥]"),
        (["", "\r", "\x00", "\u202ex"], "\r\x00\u202ex", "[∅][␍][␀][⟨U+202E⟩x]"),
        (["</s>"], "", "[</s>]"),
        ([], "", ""),
    ],
)
def test_tokens_as_they_are_read(texts: list[str], reply: str, read: str) -> None:
    marked = mark_tokens(texts, reply)
    assert "".join(f"{' ' if token.gap else ''}[{token.text}]" for token in marked) == read


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "There are no replies to show"),
        ([{"id": "a", "number": 3, "reply": "x"}], "Reply 3 to 'a' has no .*epistemic.*--uncertainty"),
        ([line(["a", "b"], total=[1.0])], "2 token_texts, 2 epistemic, 2 aleatoric, 1 total"),
    ],
)
def test_rows_that_no_page_is_made_of(rows: list[Json], said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=said):
        write_reply_page(rows, tmp_path / "page.html", "Replies")
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("name", ["draws", "prompts", "replies"])
def test_numbers_that_are_no_limits(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{name} is 0: give 1 or more"):
        write_reply_page([line(["a"])], tmp_path / "page.html", "Replies", **{name: 0})
