"""The comparison of defaults with tuned grids: its rows, its runs and its table."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from bara_pyro.untrusted.files import read_jsonl
from experiments import grid, panel

MORE = "more"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Rows, runs and scores in a folder of the test."""
    for name in ("ROWS", "RUN", "SCORES"):
        monkeypatch.setattr(panel, name, tmp_path / name.lower())
    return tmp_path


def test_tags_have_equally_many_rows_and_none_is_trained_and_tested(place: Path) -> None:
    entries = [
        f"Package: p{i}\nDescription: {tag} program {i}\nTag: x::y, {facet}::{tag}{second if i == 5 else ''}"
        for facet, tags in panel.TAGS.items()
        for tag, second in zip(tags, (f", {facet}::{tags[1]}", *[""] * len(tags)), strict=False)
        for i in range(30 if tag == "games" else 40)
    ]
    (place / "packages").write_text("\n\n".join(entries))
    panel.write_rows(Namespace(packages=place / "packages"))
    for facet, tags in panel.TAGS.items():
        parts = [read_jsonl(place / "rows" / f"{facet}{part}.jsonl") for part in ("", "-test")]
        rows = [row for part in parts for row in part]
        assert len({row["text"] for row in rows}) == len(rows)
        # One description of the first tag has a second one, and is left out.
        least = 30 if "games" in tags else 39
        assert {sum(row["label"] == tag for row in rows) for tag in tags} == {least}
        assert all(row["text"].startswith(row["label"]) for row in rows)


def test_the_setting_of_the_lowest_validation_loss_is_the_tuned_one(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(panel, "RATES", (0.1, 0.2))
    monkeypatch.setattr(panel, "LENGTHS", (1,))
    arms: dict[str, dict[str, Any]] = {
        "default": {"nll": 0.55, "validation_nll": 0.1},
        MORE: {"nll": 0.5, "validation_nll": 0.1},
        "PEFT's": {"nll": 0.4, "validation_nll": 0.1},
        "0.1, 1": {"nll": 0.5, "validation_nll": 0.3},
        "0.2, 1": {"nll": 0.45, "validation_nll": 0.4},
    }
    rows = [{"pair": "p", "method": "lora", "arm": arm, **scores} for arm, scores in arms.items()]
    rows += [{**row, "pair": "q"} for row in rows if row["arm"] != MORE]
    rows.append({"pair": "begun", "method": "lora", "arm": "default", "nll": 9.0, "validation_nll": 9.0})
    grid.store(panel.SCORES, rows)
    monkeypatch.setattr(panel, "MARKS", dict.fromkeys("pq", ("o", "black")))
    panel.table(Namespace(scores=panel.SCORES, figure=place / "regrets.svg"))
    printed = capsys.readouterr().out
    assert "| p | lora | 0.500 | 0.450 | +0.050 | +0.000 | -0.100 |" in printed
    assert "| q | lora | 0.500 | 0.450 | +0.050 | – | -0.100 |" in printed
    assert "MLE (LoRA), default: median +0.050, 9 of 10 below +0.050, worst +0.050" in printed
    assert "begun" not in printed
    assert (place / "regrets.svg").exists()


@pytest.mark.slow
def test_every_arm_is_run_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = (20, {"backbone.name": "microworld", "task.name": "micro-wgs"})
    monkeypatch.setattr(panel, "PAIRS", {"microworld, tiny": tiny})
    monkeypatch.setattr(panel, "GRIDS", ("microworld, tiny",))
    monkeypatch.setattr(panel, "LENGTHS", (0.1,))
    monkeypatch.setattr(panel, "VALIDATION", 20)
    for name, value in {"RATES": (0.001,), "TEST": 20}.items():
        monkeypatch.setattr(grid, name, value)
    args = Namespace(pairs=["microworld, tiny"], methods=["lora"], arm="default")
    panel.run(args)
    stored = grid.stored(panel.SCORES)
    assert [row["arm"] for row in stored] == ["default", "0.001, 0.1"]
    assert all(0 < row["nll"] < 5 and row["seconds"] > 0 for row in stored)
    assert [row["temperature"] == 1 for row in stored] == [True, False]
    panel.run(args)
    assert grid.stored(panel.SCORES) == stored
