"""The microworld's card: its arithmetic and its verdicts, and that a verdict can be negative."""

import pytest

from bara_pyro.microworld import TASKS
from docs.tools.world_card import CardRow, write_card


def row(name: str, zero: float, bayes: float, lora: tuple[float, float]) -> CardRow:
    acc, ece = lora
    scores = tuple({"acc": acc + d, "ece": ece, "nll": 1.0} for d in (-1.0, 0.0, 1.0))
    return CardRow(
        name, {"acc": zero, "ece": 5.0, "nll": 1.0}, {"acc": bayes, "ece": 1.0, "nll": 0.5}, 54.3, scores
    )


def trained() -> list[str]:
    return [name for name, spec in TASKS.items() if spec.sizes[0]]


def test_way_and_spread() -> None:
    name = next(name for name in trained() if len(TASKS[name].labels) == 2)
    one = row(name, zero=60.0, bayes=90.0, lora=(70.0, 9.0))
    assert one.chance == 50
    assert one.way == pytest.approx(25)
    assert one.lora_mean("acc") == pytest.approx(70)


@pytest.mark.parametrize(("gain", "ece", "met"), [(9.0, 9.0, 3), (7.0, 9.0, 2), (9.0, 7.0, 2), (7.0, 7.0, 1)])
def test_verdicts_follow_the_numbers(tmp_path, gain: float, ece: float, met: int) -> None:
    rows = [row(name, 52.0, 95.0, (52.0 + gain, ece)) for name in trained()]
    write_card(tmp_path / "card.md", rows, "Recipe.")
    text = (tmp_path / "card.md").read_text()
    assert text.count("**met**") == met
    assert text.count("**NOT met**") == 3 - met


def test_a_task_without_training_rows_has_no_lora_column(tmp_path) -> None:
    shifted = next(name for name, spec in TASKS.items() if not spec.sizes[0])
    bare = CardRow(
        shifted, {"acc": 30.0, "ece": 5.0, "nll": 1.0}, {"acc": 80.0, "ece": 1.0, "nll": 0.5}, 35.1
    )
    write_card(tmp_path / "card.md", [bare, *(row(n, 52.0, 95.0, (62.0, 9.0)) for n in trained())], "Recipe.")
    lines = (tmp_path / "card.md").read_text().splitlines()
    assert f"| `{shifted}` | 35.1 | 30.0 | 80.0 | – | – | – |" in lines
