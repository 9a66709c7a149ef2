"""The load script in small: every server starts, every answer is its own row's, a wrong one is seen."""

import json
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed: pip install 'bara-pyro[serve]'")
pytest.importorskip("peft", reason="the bare server is PEFT's")

from benchmarks.serving import CONTESTANTS, largest_error, main


@pytest.mark.slow
def test_no_answer_is_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "found.json"
    main(["--requests", "40", "--few", "4", "--rounds", "1", "--samples", "3", "--out", str(out)])
    found = json.loads(out.read_text())
    assert {(line["server"], line["at_once"]) for line in found["runs"]} == {
        (name, at_once) for name in CONTESTANTS for at_once in (40, 4)
    }
    assert all(line["lost"] == 0 and 0 < line["p50"] <= line["p99"] for line in found["runs"])
    assert found["largest_error"] < 1e-5
    assert "bara / peft, batched" in capsys.readouterr().out


def test_a_wrong_answer_is_seen() -> None:
    expected = {"a": {"probs": {"x": 0.25, "y": 0.75}}, "b": {"probs": {"x": 0.5, "y": 0.5}}}
    served = [{"id": "b", "probs": {"x": 0.5, "y": 0.5}}, {"id": "a", "probs": {"x": 0.3, "y": 0.7}}]
    assert largest_error(served, expected) == pytest.approx(0.05)
