"""The confirmatory benchmark: its rows, its runs and the intervals of its table."""

import json
from argparse import Namespace
from functools import partial
from pathlib import Path

import pytest
from scipy.stats import ttest_1samp

from bara_pyro.errors import DataError, TrainingError
from bara_pyro.untrusted.files import read_jsonl
from experiments import benchmark, grid
from experiments.benchmark import ARMS, ENSEMBLE, GATE, LATER, MEASURES, TUNED, derived, student_interval


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Rows, runs and scores in a folder of the test."""
    for name in ("ROWS", "RUN", "SCORES"):
        monkeypatch.setattr(benchmark, name, tmp_path / name.lower())
    return tmp_path


def test_rows_have_one_tag_and_none_is_trained_and_tested(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (benchmark, grid):
        monkeypatch.setattr(module, "TEST", 6)
    monkeypatch.setattr(benchmark, "NOISE", 0.5)
    tags = [f"{task}::{tag}" for task, some in benchmark.TAGS.items() for tag in some]
    texts = [f"{tag} {i}" for tag in tags for i in range(5)]
    entries = [f"Package: p\nDescription: {text}\nTag: a::b, {text.split()[0]}\n more" for text in texts]
    entries.append(f"Package: q\nDescription: both\nTag: {tags[0]}, {tags[1]}")
    (place / "packages").write_text("\n\n".join(entries))
    choices = {"text": [*"wxyz"], "label": [*"ABCD"]}
    lines = [{"question": f"{i}", "choices": choices, "answerKey": "A"} for i in range(9)]
    (place / "arc").write_text("\n".join(map(json.dumps, lines)))
    benchmark.write_rows(Namespace(packages=place / "packages", arc_easy=place / "arc"))
    for task in benchmark.TAGS:
        parts = [
            [json.loads(line) for line in (place / "rows" / f"{task}{part}.jsonl").read_text().splitlines()]
            for part in ("", "-test")
        ]
        rows = [row for part in parts for row in part]
        assert len(parts[1]) == 6
        assert sorted(row["text"] for row in rows) == sorted(t for t in texts if t.startswith(task))
        assert all(row["text"].startswith(f"{task}::{row['label']} ") for row in rows)
    assert len((place / "rows" / "arc_easy.jsonl").read_text().splitlines()) == 3
    clean, noisy = (read_jsonl(place / "rows" / f"use{part}.jsonl") for part in ("", "-noise"))
    assert [row["text"] for row in clean] == [row["text"] for row in noisy]
    wrong = [row for row, known in zip(noisy, clean, strict=True) if row != known]
    assert 0 < len(wrong) < len(clean)
    assert {row["label"] for row in wrong} <= {*benchmark.TAGS["use"]}


def test_labels_are_wrong_in_training_and_search_only(place: Path) -> None:
    pairs = benchmark.pair_settings()
    name = {"task.name": str(benchmark.ROWS / "use-noise.jsonl")}
    assert pairs["noise 2, use"] == {**pairs["rows 2, use"], **name}
    assert pairs["noise 2, use"]["task.test_file"] == benchmark.ROWS / "use-test.jsonl"
    assert benchmark.searched("noise 2, use") == "noise 1, use"


def test_an_interval_is_students() -> None:
    values = [0.01, -0.02, 0.03, 0.005, -0.01, 0.0]
    middle, half = student_interval(values)
    low, high = ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert (middle - half, middle + half) == pytest.approx((low, high))


def test_differences_are_averaged_by_world(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """World 401 has two pairs and 402 one: their means count alike."""
    nll = {"401, micro-wgs": 0.1, "401, micro-arcc": 0.3, "402, micro-wgs": 0.0}
    rows = [
        {"pair": pair, "arm": arm, **dict.fromkeys(MEASURES, 0.5 + (gap if arm == GATE else 0.0))}
        for pair, gap in nll.items()
        for arm in ARMS
    ]
    rows.append({"pair": "403, micro-wgs", "arm": GATE, "nll": 9.0})  # begun
    grid.store(benchmark.SCORES, rows)
    benchmark.table(Namespace(pairs=[*benchmark.pair_settings()], figure=place / "shown.svg"))
    middle, half = student_interval([0.2, 0.0])
    printed = capsys.readouterr().out
    assert "Worlds: 3 pairs" in printed
    assert f"minus {TUNED}, nll: +0.100 [{middle - half:+.3f}, {middle + half:+.3f}]" in printed
    assert f"Worlds: minus {TUNED}" in (place / "shown.svg").read_text()


def test_an_arm_that_diverged_counts_as_its_worst(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = {"401, micro-wgs": 0.1, "401, micro-arcc": 0.3, "402, micro-wgs": None}
    rows = []
    for pair, gap in pairs.items():
        rows += [{"pair": pair, "arm": arm, **dict.fromkeys(MEASURES, 0.5)} for arm in ARMS if arm != GATE]
        scores = {"nll": float("inf")} if gap is None else dict.fromkeys(MEASURES, 0.5 + gap)
        rows.append({"pair": pair, "arm": GATE, **scores})
    grid.store(benchmark.SCORES, rows)
    benchmark.table(Namespace(pairs=[*benchmark.pair_settings()], figure=None))
    printed = capsys.readouterr().out
    assert "diverged on 402, micro-wgs" in printed
    for name, gap in {"nll": 0.25, "acc": 0.15}.items():  # means of 0.2 and 0.3, of 0.2 and 0.1
        assert f"minus {TUNED}, {name}: {gap:+.3f} " in printed


@pytest.mark.parametrize("tuned", [True, False])
def test_a_training_that_diverges_is_stored(
    tuned: bool, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverge(*_: object) -> None:
        raise TrainingError("The loss is infinite.")

    monkeypatch.setattr(grid, "train", diverge)
    some = [benchmark.trained(object(), place)]
    assert benchmark.of_test(some, tuned=tuned) == {"nll": float("inf")}


def test_settings_are_searched_once_a_task(place: Path) -> None:
    rows = [
        {"pair": "rows 1, use", "arm": arm, "nll": nll, "validation_nll": known}
        for arm, nll, known in (
            ("0.001, 1", 0.5, 0.4),
            ("0.003, 1", 0.4, 0.5),
            ("0.01, 1", float("inf"), 0.1),
        )
    ]
    grid.store(benchmark.SCORES, rows)
    assert benchmark.best_of_grid(benchmark.searched("rows 3, use")) == "0.001, 1"
    assert benchmark.searched("402, micro-wgs") == "402, micro-wgs"
    with pytest.raises(DataError, match="rows 1, interface"):
        benchmark.best_of_grid(benchmark.searched("rows 2, interface"))


def test_sets_and_risk() -> None:
    """A model that is always right with 0.9 needs sets of one answer; a uniform one, of all."""
    sure = {"log_probs": [[-0.105, -2.303]] * 40, "labels": [0] * 40}
    assert derived(sure) == {"aurc": 0.0, "set size": 1.0}
    unsure = {"log_probs": [[-0.693, -0.693]] * 40, "labels": [0, 1] * 20}
    assert derived(unsure) == {"aurc": pytest.approx(50.0), "set size": 2.0}


@pytest.mark.slow
def test_every_arm_is_run_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RATES": (0.001, 0.003), "TEST": 20}.items():
        monkeypatch.setattr(grid, name, value)
    short = {"VALIDATION": 20, "TEST": 20, "MEMBERS": (1, 2), "grid": partial(grid.grid, lengths=(0.1,))}
    for name, value in short.items():
        monkeypatch.setattr(benchmark, name, value)
    rows = grid.drawn_rows(20, 20, 1)
    tiny = {"401, micro-obqa": {"backbone.name": "microworld", "task.name": "micro-obqa", **rows}}
    monkeypatch.setattr(benchmark, "pair_settings", lambda: tiny)
    args = Namespace(pairs=[*tiny], figure=None)
    benchmark.run(args)
    stored = {row["arm"]: row for row in grid.stored(benchmark.SCORES)}
    assert [*stored] == [
        *benchmark.DEFAULTS,
        *("0.001, 0.1", "0.003, 0.1"),
        *(TUNED, ENSEMBLE),
        *(f"{arm}, distance-aware" for arm in (LATER, TUNED)),
    ]
    best = min(("0.001, 0.1", "0.003, 0.1"), key=lambda arm: stored[arm]["validation_nll"])
    assert stored[TUNED]["nll"] == stored[best]["nll"]  # the same run again
    assert stored[ENSEMBLE]["seconds"] > stored[TUNED]["seconds"]
    assert all(0 <= stored[f"{LATER}, distance-aware"][shift] <= 100 for shift in benchmark.SHIFTS)
    benchmark.run(args)
    assert {row["arm"]: row for row in grid.stored(benchmark.SCORES)} == stored
