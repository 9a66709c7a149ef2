"""The tables of the demonstration's page, on predictions whose scores can be counted."""

from pathlib import Path

import pytest
import torch

from bara_pyro.cli import demo
from bara_pyro.cli.demo import abstention_table, trust_table

# Four answers: confident and right, confident and wrong, two unsure ones of which one is right.
PROBS = torch.tensor([[0.95, 0.05], [0.05, 0.95], [0.6, 0.4], [0.3, 0.7]], dtype=torch.float64)
LABELS = torch.tensor([0, 0, 0, 0])


def test_trust_counts_correct_and_confident_answers() -> None:
    [row] = trust_table({"mine": (PROBS.log(), LABELS)}).rows
    assert row["method"] == "mine"
    assert (row["correct"], row["sure"], row["sure_correct"]) == (50, 50, 50)
    assert abs(row["says"] - 80) < 1e-9


def test_no_confident_answer_leaves_the_cell_empty() -> None:
    [row] = trust_table({"mine": (PROBS[2:].log(), LABELS[2:])}).rows
    assert row["sure"] == 0
    assert row["sure_correct"] is None


def test_abstention_answers_the_most_confident_questions_first() -> None:
    [row] = abstention_table({"mine": (PROBS.log(), LABELS)}).rows
    # In order of confidence: right, wrong, wrong (0.7), right (0.6).
    errors = [float(row[str(share)]) for share in (25, 50, 75, 100)]
    assert abs(errors[2] - 200 / 3) < 1e-9
    assert (errors[0], errors[1], errors[3]) == (0, 50, 50)


@pytest.mark.parametrize(
    ("model", "typed", "threads"), [(None, None, [1]), (None, "2", []), ("mine", None, [])]
)
def test_the_bundled_model_takes_one_thread_unless_told_otherwise(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    model: str | None,
    typed: str | None,
    threads: list[int],
) -> None:
    class Begun(Exception):
        pass

    def begin(*_: object) -> None:
        raise Begun

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if typed is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", typed)
    found: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", found.append)
    monkeypatch.setattr(demo, "_train_all", begin)
    with pytest.raises(Begun):
        demo.demo(tmp_path / "out", {"backbone.name": model}, overwrite=False, quick=True)
    assert found == threads
