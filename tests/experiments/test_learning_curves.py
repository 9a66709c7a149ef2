"""What the gate form gains after each number of rows, and that the page says which of it is told."""

from argparse import Namespace
from pathlib import Path

import torch

from experiments.engine.results import Study
from experiments.engine.rows import RunRows, write_rows
from experiments.studies.learning_curves.study import OURS, arms, gains

ROWS, SEEDS = 60, 3


def run(arm: str, seed: int, nll: float) -> RunRows:
    """Return a run whose rows have an NLL (nats) of about so much, each its own, in all arms alike."""
    noise = 0.01 * torch.randn(ROWS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    right = torch.exp(-(nll + noise))
    distribution = torch.stack([right, 1 - right], dim=1).log()
    ids = tuple(str(i) for i in range(ROWS))
    return RunRows(
        arm,
        arm + str(seed),
        "",
        "t",
        seed,
        "t",
        ids,
        ids,
        torch.zeros(ROWS, dtype=torch.long),
        {10: distribution},
    )


def study(found: dict[str, float], results: Path) -> Study:
    """Return a study of arms with such an NLL, which its rows are stored for."""
    runs = [run(arm, seed, nll) for arm, nll in found.items() for seed in range(SEEDS)]
    write_rows("curves", runs, results)
    return Study("curves", {arm: {"t": {}} for arm in found}, {}, [], results)


def test_better_and_worse_are_said_of_what_is_told_alone(tmp_path: Path) -> None:
    """Alike but for its mean is told in either direction; the same rows are not."""
    found = {f"{OURS}, 20 rows": 0.6, "lora, 20 rows": 0.9, "blob, 20 rows": 0.4, "temperature, 20 rows": 0.6}
    (table,) = gains(study(found, tmp_path))
    (row,) = table.rows
    assert row == {
        "rows": 20,
        "lora": "−0.300 [−0.300, −0.300] better",
        "temperature": "0.000 [0.000, 0.000]",
        "blob": "+0.200 [+0.200, +0.200] worse",
    }


def test_there_is_no_table_without_rows_or_without_a_rival(tmp_path: Path) -> None:
    """A run whose rows are not stored has no interval."""
    assert gains(Study("curves", {f"{OURS}, 20 rows": {"t": {}}}, {}, [], tmp_path)) == []
    assert gains(study({f"{OURS}, 20 rows": 0.6}, tmp_path)) == []


def test_curves_say_whether_few_rows_have_a_rehearsal() -> None:
    methods = ["bara-gate", "lora", "temperature"]
    found = arms(Namespace(methods=methods, rows=[20, 1280]))
    few = {name.removesuffix(", 20 rows"): arm for name, arm in found.items() if name.endswith(" 20 rows")}
    many = {
        name.removesuffix(", 1280 rows"): arm for name, arm in found.items() if name.endswith(" 1280 rows")
    }
    assert {name: arm["adapter.calibrated"] for name, arm in few.items()} == {
        "bara-gate": True,
        "BaRA gate without rehearsal": False,
        "lora": None,
        "LoRA with rehearsal": True,
        "temperature": None,
    }
    assert {name: arm["adapter.calibrated"] for name, arm in many.items()} == dict.fromkeys(methods)
    assert {name.split()[0].lower(): arm["method"] for name, arm in few.items()} == {
        **{"bara-gate": "bara-gate", "bara": "bara-gate"},
        **{"lora": "lora", "temperature": "temperature"},
    }
