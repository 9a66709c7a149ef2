"""The study of active learning: which rows are asked and added, the section, the figure."""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from study_cases import page_of, results_of

from bara_pyro.data import Example
from bara_pyro.runs.config import load_config
from bara_pyro.runs.rows import load_data
from experiments.engine.results import read_results, results_path
from experiments.studies.active import study as active
from experiments.studies.active.study import (
    batch_rows,
    difference_rows,
    differences,
    later_batches,
    score_rows,
)

SMALL = {"start": 12, "count": 5, "rounds": 3, "candidates": 20, "steps": 2, "samples": 2}


def arguments(folder: Path, **more: object) -> Namespace:
    given = {"methods": ["ensemble"], "by": ["bald", "random"], "seeds": 1, "runs": folder / "runs"}
    return Namespace(**{**SMALL, **given, "out": folder, **more})


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    def few(config: object) -> object:
        task = load_data(config)  # type: ignore[arg-type]
        return replace(task, test=task.test[:20], train=task.train[:60])

    monkeypatch.setattr(active, "load_data", few)


def test_training_sets_grow_by_what_was_chosen(
    tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, list[str]] = {}
    train = active.trained

    def watched(rows: Sequence[Example], place: str, *more: Any) -> Any:
        seen[place] = [row.id for row in rows]
        return train(rows, place, *more)

    monkeypatch.setattr(active, "trained", watched)
    active.run(arguments(tmp_path))
    entries = read_results("active", tmp_path).entries
    assert set(entries) == {"ensemble bald 0", "ensemble random 0"}
    for by in ("bald", "random"):
        rounds = entries[f"ensemble {by} 0"]["rounds"]
        assert [each["labelled"] for each in rounds] == [12, 17, 22]
        assert [each["batch"] is None for each in rounds] == [False, False, True]
        assert [each["batch"]["rows"] for each in rounds[:2]] == [20, 20]
        assert rounds[0]["batch"]["by"] == by
    start, grown = (entries[f"ensemble {by} 0"]["rounds"] for by in ("bald", "random"))
    assert start[0]["scores"] == grown[0]["scores"]
    assert set(seen) == {"start", "bald-17", "bald-22", "random-17", "random-22"}
    task = active.load_data(load_config(overrides={"task.name": active.TASK}))
    for by in ("bald", "random"):
        labelled: tuple[Example, ...] = active.candidates(task, (), 12, 0)
        assert seen["start"] == [row.id for row in labelled]
        for size in (17, 22):
            ids, asked = seen[f"{by}-{size}"], active.candidates(task, labelled, 20, 0)
            assert ids[: size - 5] == [row.id for row in labelled]
            assert set(ids[size - 5 :]) <= {row.id for row in asked}
            assert len(set(ids)) == size
            known = {row.id: row for row in task.train}
            labelled = tuple(known[row_id] for row_id in ids)


def test_finished_entries_are_not_repeated(
    tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    active.run(arguments(tmp_path, by=["random"], rounds=2))
    before = results_path("active", tmp_path).read_bytes()
    monkeypatch.setattr(active, "trained", None)
    active.run(arguments(tmp_path, by=["random"], rounds=2))
    assert results_path("active", tmp_path).read_bytes() == before


def test_candidates_have_no_label_yet_and_are_the_same_for_all() -> None:
    task = load_data(load_config(overrides={"task.name": active.TASK}))
    start = active.candidates(task, (), 40, 1)
    assert active.candidates(task, (), 40, 1) == start != active.candidates(task, (), 40, 2)
    other = active.candidates(task, start, 300, 1)
    assert len({row.id for row in (*start, *other)}) == 340
    everything = active.candidates(task, start, len(task.train) - 40, 1)
    assert {row.id for row in everything} == {row.id for row in task.train} - {row.id for row in start}


def test_a_pool_that_is_too_small(tmp_path: Path, small: None) -> None:
    with pytest.raises(active.ConfigError, match=r"60 training rows .* 50 candidates"):
        active.run(arguments(tmp_path, candidates=50))


def batch(seed: int) -> dict:
    told = {"joint": 0.5 + seed, "draws": 3, "most": 1.1}
    return {**told, "used_up": 7 if seed else None, "residents": 9}


def stored(seeds: tuple[int, ...] = (0, 1)) -> dict:
    gain = {"random": 0.0, "bald": -0.02, "batch-bald": -0.04}
    entries = {}
    for method in ("bara-gate", "ensemble"):
        for by, better in gain.items():
            for seed in seeds:
                rounds = [
                    {
                        "labelled": 40 + 80 * number,
                        "scores": {
                            "nll": 1.2 - 0.1 * number + better * number * (1 + seed),
                            "acc": 50.0 + 4 * number + seed,
                        },
                        "batch": batch(seed) if number < 2 else None,
                    }
                    for number in range(3)
                ]
                entries[f"{method} {by} {seed}"] = {
                    "method": method, "by": by, "seed": seed, "rounds": rounds
                }  # fmt: skip
    return {"about": {"task": "micro-obqa", **SMALL}, "entries": entries}


def test_section(tmp_path: Path) -> None:
    text = page_of("active", stored(), tmp_path, "Words.")
    assert "2 seeds" in text
    assert "Words." in text
    assert list(tmp_path.glob("active-curves.*"))
    entries = list(stored()["entries"].values())
    # Rounds 2 and 3 differ by -0.02 and -0.04 times 1 and 2: by -0.03 and -0.06 on the mean.
    assert differences(entries, "ensemble", "bald", "nll") == pytest.approx([-0.03, -0.06])
    assert differences(entries, "ensemble", "bald", "nll", last=True) == pytest.approx([-0.04, -0.08])
    rows = difference_rows(entries)
    assert [(row["method"], row["by"]) for row in rows] == [
        *(
            ("BaRA gate", "bald"),
            ("BaRA gate", "batch-bald"),
            ("Ensemble", "bald"),
            ("Ensemble", "batch-bald"),
        )
    ]
    half = 12.706204736 * 0.015  # Student's t of one degree of freedom
    assert rows[0]["nll"] == f"−0.045 [−{0.045 + half:.3f}, +{half - 0.045:.3f}]"
    [first] = [row for row in batch_rows(entries) if row["by"] == "bald" and row["method"] == "Ensemble"]
    assert first["joint"] == (1.0, pytest.approx(0.5**0.5))
    assert first["used_up"] == "not, 7"
    [later] = later_batches(results_of("active", stored()))
    assert later.caption == "batch 2, after 120 rows"
    assert [row["by"] for row in later.rows] == ["random", "bald", "batch-bald"] * 2
    scores = score_rows(entries)
    assert len(scores) == 2 * (1 + 2 * 3)
    assert scores[0]["by"] == "at random (start)"
