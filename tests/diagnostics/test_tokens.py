"""Token maps: the share of gates that are nearly off at each token, and the page and picture of them."""

import json
import re
from pathlib import Path

import pytest
import torch
from inspection_cases import fitted, shared
from torch.testing import assert_close

from bara_pyro.core.prediction import record
from bara_pyro.data.types import Batch
from bara_pyro.diagnostics.parts.tokens import TEXTS, TextUse, TokenUse, default_texts, token_maps, token_page
from bara_pyro.errors import ConfigError, DataError
from bara_pyro.report.style import VARIABLES, letters, png_bytes, shade
from bara_pyro.runs.system import System
from docs.tools.inspected import token_figure

TAU = 0.3


@pytest.fixture(scope="module")
def system() -> System:
    return fitted("bara")


def test_by_a_loop_over_draws(system: System) -> None:
    texts = {"one": "in winter", "two": "in summer the guest eats beans ?"}
    maps = token_maps(system, texts, samples=5, tau=TAU, seed=4)
    assert not any(path.endswith("lm_head") for path in maps.modules)
    tokenizer = system.backbone.tokenizer
    paths = [target.path for target in system.model.targets]
    for found in maps.texts:
        ids = tokenizer(texts[found.title], add_special_tokens=False)["input_ids"]
        assert found.tokens == texts[found.title].split()
        percent = torch.tensor(found.percent)
        assert percent.shape == (len(maps.modules), len(ids))
        assert_close(torch.tensor(found.mean), percent.mean(0), rtol=0, atol=0.01)
        mask = torch.ones(1, len(ids), dtype=torch.bool)
        batch = Batch(torch.tensor([ids]), mask, system.answer_ids, ids=(found.title,))
        (drawn,) = record(system.model, system.guide, batch, samples=5, seed=4)
        for m, path in enumerate(maps.modules):
            phi = drawn.values["phi"].reshape(5, len(paths), -1)[:, paths.index(path)]
            for t in range(len(ids)):
                shares = [
                    float((phi[s] * drawn.values[f"theta/{path}"][s, 0, t] < TAU).double().mean())
                    for s in range(5)
                ]
                assert float(percent[m, t]) == pytest.approx(20 * sum(shares), abs=0.0051)


def test_another_text_beside_it_does_not_matter(system: System) -> None:
    alone = token_maps(system, {"b": "in winter"}, samples=3).texts[0]
    beside = token_maps(system, {"a": "in summer the guest", "b": "in winter"}, samples=3).texts[1]
    assert alone.percent == beside.percent


def test_chosen_layers(system: System) -> None:
    everything = token_maps(system, {"a": "in winter"}, samples=2)
    path = everything.modules[1]
    one = token_maps(system, {"a": "in winter"}, samples=2, modules=[path])
    assert one.modules == [path]
    assert one.texts[0].percent == [everything.texts[0].percent[1]]


def test_nine_texts_that_can_be_read(system: System) -> None:
    texts = default_texts(system)
    assert len(texts) == len(TEXTS) == 9
    unknown = system.backbone.tokenizer.unk_token_id
    for text in texts.values():
        ids = system.backbone.tokenizer(text)["input_ids"]
        assert ids.count(unknown) == 0
    assert texts != TEXTS


def test_what_it_refuses(system: System) -> None:
    with pytest.raises(DataError, match="empty"):
        token_maps(system, {"a": " "})
    with pytest.raises(DataError, match="empty"):
        token_maps(system, {})
    with pytest.raises(ConfigError, match="answer head"):
        token_maps(system, {"a": "in"}, modules=["lm_head"])
    with pytest.raises(ConfigError, match="lora has no gates"):
        token_maps(shared(), {"a": "in"})


FOUND = TokenUse(
    tau=TAU,
    draws=2,
    modules=["m.0", "m</script>"],
    texts=[
        TextUse(title="<one>", tokens=["in", "a<b"], mean=[20.0, 40.0], percent=[[10.0, 20.0], [30.0, 60.0]]),
        TextUse(title="two", tokens=["x"], mean=[2.52], percent=[[5.04], [0.0]]),
    ],
)
NONE = FOUND.model_copy(update={"texts": []})


def test_page(tmp_path: Path) -> None:
    text = token_page(FOUND, tmp_path / "tokens.html", "A & B").read_text()
    data = json.loads(re.search(r"const data = (.*);\n", text)[1])
    assert data["modules"] == ["m.0", "m</script>"]
    # The mean first, then each module.
    assert data["texts"] == [[[20.0, 40.0], [10.0, 20.0], [30.0, 60.0]], [[2.5], [5.0], [0.0]]]
    assert "<title>A &amp; B</title>" in text
    assert "&lt;one&gt;" in text
    assert "a&lt;b" in text
    assert text.count("</script>") == 1
    assert "http" not in text.replace("http-equiv", "")
    with pytest.raises(DataError, match="no token maps"):
        token_page(NONE, tmp_path / "none.html", "")


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_letters_can_be_read_on_every_shade() -> None:
    lights = [luminance(shade(i / 200)) for i in range(201)]
    assert lights == sorted(lights)  # light is sparse
    for i, ground in enumerate(lights):
        ends = sorted((ground, luminance(letters(shade(i / 200)))))
        assert (ends[1] + 0.05) / (ends[0] + 0.05) >= 4.5  # WCAG 2.2, AA


def test_words_on_shades_keep_their_colour_in_the_dark() -> None:
    words = [word for axes in token_figure(FOUND).axes for word in axes.texts]
    assert words
    assert not {str(word.get_color()).lower() for word in words} & {*VARIABLES}


def test_figure_light_is_sparse() -> None:
    figure = token_figure(FOUND)
    bars = [bar for axes in figure.axes[:2] for bar in axes.patches]
    light = [sum(bar.get_facecolor()[:3]) for bar in bars]  # of 20, 40 and 2.5 %
    assert light[1] > light[0] > light[2]
    assert png_bytes(figure)[:4] == b"\x89PNG"
