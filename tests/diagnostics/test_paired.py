"""Comparisons of runs by their stored predictions, against scipy and loops; the example of the docs."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from bara_pyro.atomic import write_json, write_jsonl
from bara_pyro.diagnostics.paired.compare import PairedComparison, PairedDifference, compare_runs
from bara_pyro.diagnostics.paired.page import comparison_sentences, figure, table, write_comparison
from bara_pyro.errors import CheckpointError, DataError
from bara_pyro.metrics.base import METRICS, compared
from bara_pyro.report.table import cells
from bara_pyro.runs.answers import comparison_page_in, reply_page_in
from bara_pyro.runs.config import load_config
from bara_pyro.runs.evaluate import evaluate_system
from bara_pyro.runs.manifest import METRICS as SCORES
from bara_pyro.runs.manifest import PREDICTIONS, record_files
from bara_pyro.runs.system import build_system

ROWS, CLASSES = 400, 3
LABELS = np.arange(ROWS) % CLASSES


def predictions(seed: int, skill: float) -> np.ndarray:
    """Probabilities of rows, some of which are harder than others for whoever answers."""
    rng = np.random.default_rng(seed)
    hard = np.random.default_rng(0).normal(size=ROWS)
    logits = rng.normal(size=(ROWS, CLASSES))
    logits[np.arange(ROWS), LABELS] += skill + hard
    return np.exp(logits) / np.exp(logits).sum(1, keepdims=True)


def write(folder: Path, probs: dict[int, np.ndarray], **changes: object) -> Path:
    """Write an evaluation as `bara evaluate` does; `cluster` is the rows', the others are of metrics.json."""
    folder.mkdir(parents=True)
    cluster = changes.pop("cluster", None)
    names = changes.pop("ids", [f"row-{i}" for i in range(ROWS)])
    labels = changes.pop("labels", LABELS)
    report = {
        "method": "bara",
        "task": "mine",
        "split": "test",
        "seed": 0,
        "rows": "0123",
        "classes": ["a"] * 3,
    }
    lines = [
        {
            "id": row_id,
            "label": int(labels[i]),
            **({} if cluster is None else {"cluster": cluster[i]}),
            "probs": {str(s): p[i].tolist() for s, p in probs.items()},
        }
        for i, row_id in enumerate(names)
    ]
    write_json(folder / SCORES, report | changes)
    write_jsonl(folder / PREDICTIONS, lines)
    record_files(folder, SCORES, PREDICTIONS)
    return folder


def one(found: PairedComparison, metric: str) -> PairedDifference:
    return next(line for line in found.metrics if line.metric == metric)


def per_row(metric: str, probs: np.ndarray) -> np.ndarray:
    if metric == "acc":
        return 100.0 * (probs.argmax(1) == LABELS)
    if metric == "nll":
        return -np.log(probs[np.arange(ROWS), LABELS])
    return ((probs - np.eye(CLASSES)[LABELS]) ** 2).sum(1)


def ece(probs: np.ndarray, labels: np.ndarray) -> float:
    """Return the ECE in percent, over 15 bins, in a plain loop."""
    gaps = [0.0] * 15
    for row, label in zip(probs, labels, strict=True):
        gaps[min(14, int(row.max() * 15))] += float(row.argmax() == label) - row.max()
    return 100 * sum(map(abs, gaps)) / len(labels)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("two")
    a = write(folder / "a", {0: predictions(9, 0.0), 10: predictions(1, 1.2)})
    return a, write(folder / "b", {10: predictions(2, 0.9)}, method="lora")


@pytest.mark.parametrize("metric", ["acc", "nll", "brier"])
def test_one_run_a_side_is_the_paired_t_test(metric: str, two: tuple[Path, Path]) -> None:
    found = one(compare_runs(*two), metric)
    a, b = per_row(metric, predictions(1, 1.2)), per_row(metric, predictions(2, 0.9))
    expected = stats.ttest_rel(a, b)
    low, high = expected.confidence_interval(0.95)
    assert (found.a, found.b) == pytest.approx((a.mean(), b.mean()))
    assert found.difference == pytest.approx((a - b).mean())
    # 2,000 draws know a standard error to 1.6 %.
    assert found.se_rows == pytest.approx(stats.sem(a - b), rel=0.06)
    width = high - low
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.06 * width)
    assert stats.norm.isf(found.p / 2) == pytest.approx(stats.norm.isf(expected.pvalue / 2), rel=0.07)
    assert math.isnan(found.se_seeds)


def test_the_ece_is_that_of_a_plain_bootstrap(two: tuple[Path, Path]) -> None:
    found = one(compare_runs(*two), "ece")
    a, b = predictions(1, 1.2), predictions(2, 0.9)
    assert (found.a, found.b) == pytest.approx((ece(a, LABELS), ece(b, LABELS)))
    rng, differences = np.random.default_rng(3), []
    for _ in range(400):
        rows = rng.integers(0, ROWS, ROWS)
        differences.append(ece(a[rows], LABELS[rows]) - ece(b[rows], LABELS[rows]))
    # 400 draws know a standard error to 3.5 %, 2,000 to 1.6 %.
    assert found.se_rows == pytest.approx(np.std(differences, ddof=1), rel=0.12)


def test_rows_of_a_cluster_count_together(tmp_path: Path, two: tuple[Path, Path]) -> None:
    rng = np.random.default_rng(5)
    names = [f"author {i // 8}" for i in range(ROWS)]
    a, b = (predictions(seed, 1.0) for seed in (1, 2))
    lifted = np.repeat(rng.normal(scale=1.0, size=ROWS // 8), 8)  # what an author does to the first system
    logits = np.log(a)
    logits[np.arange(ROWS), LABELS] += lifted
    a = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    stored = [write(tmp_path / name, {10: p}, cluster=names) for name, p in (("a", a), ("b", b))]
    plain = [write(tmp_path / f"plain-{name}", {10: p}) for name, p in (("a", a), ("b", b))]
    found = compare_runs(*stored)
    means = (per_row("nll", a) - per_row("nll", b)).reshape(-1, 8).mean(1)
    assert (found.rows, found.clusters) == (ROWS, ROWS // 8)
    assert one(found, "nll").se_rows == pytest.approx(stats.sem(means), rel=0.06)
    assert one(found, "nll").se_rows > 1.5 * one(compare_runs(*plain), "nll").se_rows
    given = {f"row-{i}": name for i, name in enumerate(names)}
    assert compare_runs(*plain, clusters=given).metrics == found.metrics
    with pytest.raises(DataError, match="'row-399' has no cluster"):
        compare_runs(*plain, clusters={key: name for key, name in given.items() if key != "row-399"})


def group(folder: Path, gains: dict[int, float], method: str) -> Path:
    """Runs that give each right answer exp(gain) / 2: they differ by seed, and by row in nothing."""
    for seed, gain in gains.items():
        right = math.exp(gain) / 2
        probs = np.full((ROWS, 2), 1 - right)
        probs[np.arange(ROWS), LABELS % 2] = right
        write(folder / f"s{seed}", {4: probs}, labels=LABELS % 2, seed=seed, method=method)
    return folder


def test_several_seeds_are_paired_and_a_t_test_over_them(tmp_path: Path) -> None:
    gains = {0: 0.30, 1: 0.10, 2: 0.25, 5: 0.18}
    a = group(tmp_path / "a", gains, "bara")
    b = group(tmp_path / "b", {5: -0.05, 2: 0.05, 1: 0.0, 0: 0.15, 7: 0.6}, "lora")
    found = compare_runs(a, b)
    by_seed = [-(x - y) for x, y in zip((0.30, 0.10, 0.25, 0.18), (0.15, 0.0, 0.05, -0.05), strict=True)]
    low, high = stats.ttest_1samp(by_seed, 0).confidence_interval(0.95)
    line = one(found, "nll")
    assert line.difference == pytest.approx(np.mean(by_seed))
    assert (line.low, line.high, line.df) == pytest.approx((low, high, 3), abs=1e-9)
    assert found.a.seeds == found.b.seeds == [0, 1, 2, 5]
    assert found.notes == ["seeds that only one side has were left out: 7"]
    with pytest.raises(DataError, match=r"0, 1, 2, 5 and 8"):
        compare_runs(a, group(tmp_path / "c", {8: 0.1}, "lora"))


def test_what_a_side_is_by_holm(two: tuple[Path, Path]) -> None:
    found = compare_runs(*two)
    ps = sorted(line.p for line in found.metrics)
    for line in found.metrics:
        rank = ps.index(line.p)
        assert line.p_holm == pytest.approx(max(min(1, (len(ps) - i) * ps[i]) for i in range(rank + 1)))
        certain = line.p_holm < 0.05
        a_is_better = (line.a > line.b) == (METRICS[line.metric].best == "max")
        assert line.better == ("unclear" if not certain else "a" if a_is_better else "b")
    assert one(found, "nll").better == "a"
    turned = compare_runs(*two[::-1])
    assert one(turned, "nll").better == "b"
    right = [predictions(*of).argmax(1) == LABELS for of in ((1, 1.2), (2, 0.9))]
    agreed = found.agreement
    assert agreed.only_a == pytest.approx(100 * (right[0] & ~right[1]).mean())
    assert agreed.both + agreed.only_a == pytest.approx(one(found, "acc").a)
    assert agreed.both + agreed.only_a + agreed.only_b + agreed.neither == pytest.approx(100)


def test_a_run_against_itself_differs_in_nothing(two: tuple[Path, Path]) -> None:
    found = compare_runs(two[0], two[0])
    for line in found.metrics:
        assert (line.difference, line.low, line.high, line.p) == pytest.approx((0, 0, 0, 1), abs=1e-9)
        assert line.better == "unclear"


def test_an_impossible_answer_leaves_the_nll_without_an_interval(
    tmp_path: Path, two: tuple[Path, Path]
) -> None:
    probs = predictions(1, 1.2)
    probs[3] = np.eye(CLASSES)[(LABELS[3] + 1) % CLASSES]
    found = compare_runs(write(tmp_path / "a", {10: probs}), two[1])
    line = one(found, "nll")
    assert line.a == math.inf
    assert all(math.isnan(value) for value in (line.low, line.p, line.p_holm))
    assert line.better == "unclear"
    assert math.isfinite(one(found, "brier").low)
    assert any("probability 0" in sentence for sentence in comparison_sentences(found))
    write_comparison(found, tmp_path / "page.html")
    assert json.loads(found.model_dump_json())["metrics"][2]["a"] is None


def test_rows_and_draws_have_to_be_the_same(tmp_path: Path, two: tuple[Path, Path]) -> None:
    a, probs = two[0], {10: predictions(2, 0.9)}

    def refused(name: str, message: str, given: dict[int, np.ndarray] = probs, **changes: object) -> None:
        with pytest.raises(DataError, match=message):
            compare_runs(a, write(tmp_path / name, given, **changes))

    refused("task", "test rows of 'mine'.*test rows of 'other'", task="other")
    refused("split", "validation rows", split="validation")
    refused("ids", "'row-0'", ids=[f"row-{i + 1}" for i in range(ROWS)])
    refused("order", "order differs", ids=[f"row-{ROWS - 1 - i}" for i in range(ROWS)])
    refused("labels", "different classes or answers", labels=(LABELS + 1) % 3)
    refused("classes", "different classes or answers", classes=["b"] * 3)
    refused("draws", "S = 10.*S = 20", {20: probs[10]})
    with pytest.raises(DataError, match="S = 10 and not 0"):
        compare_runs(*two, samples=0)
    read = write(tmp_path / "read", probs, rows="4567")
    assert "tokenizers or prompts differ" in compare_runs(a, read).notes[0]


def test_only_repetitions_make_a_group(tmp_path: Path, two: tuple[Path, Path]) -> None:
    for name, message, change in (
        ("method", "differ in more than their seed", {"seed": 1, "method": "lora"}),
        ("twice", "2 runs with seed 0", {}),
    ):
        for i, changes in enumerate(({}, change)):
            write(tmp_path / name / f"s{i}", {10: predictions(i, 1)}, **changes)
        with pytest.raises(DataError, match=message):
            compare_runs(tmp_path / name, two[0])


def test_what_is_no_evaluated_run(tmp_path: Path, two: tuple[Path, Path]) -> None:
    (tmp_path / "empty").mkdir()
    for name, message in (("none", "There is no folder"), ("empty", "There is no evaluated run")):
        with pytest.raises(CheckpointError, match=message):
            compare_runs(tmp_path / name, two[1])
    with pytest.raises(CheckpointError, match=r"no evaluation 'later' \(it has none\)"):
        compare_runs(*two, on="later")
    damaged = write(tmp_path / "damaged", {10: predictions(1, 1)})
    (damaged / PREDICTIONS).write_text("{}\n")
    with pytest.raises(CheckpointError, match="damaged, edited"):
        compare_runs(damaged, two[1])
    replies = tmp_path / "replies"
    replies.mkdir()
    about = {"method": "bara", "task": "t", "split": "test", "seed": 0, "rows": ""}
    write_json(replies / SCORES, about)
    write_jsonl(replies / PREDICTIONS, [{"id": "x", "log_prob": {"0": -1.0}}])
    record_files(replies, SCORES, PREDICTIONS)
    with pytest.raises(DataError, match="replies"):
        compare_runs(replies, two[1])


def test_the_page_says_what_was_found(tmp_path: Path, two: tuple[Path, Path]) -> None:
    found = compare_runs(*two)
    page = write_comparison(found, tmp_path / "page.html")
    text = page.read_text(encoding="utf-8")
    text = text.replace("\N{NO-BREAK SPACE}", " ")
    assert all(sentence in text for sentence in comparison_sentences(found))
    assert all(cell.text.replace("<", "&lt;") in text for row in cells(table(found)) for cell in row)
    assert comparison_page_in(page)
    assert not reply_page_in(page)
    panels = figure(found).axes
    # To the right is better for the first: larger for accuracy, smaller for NLL.
    smaller = [METRICS[line.metric].best == "min" for line in found.metrics]
    assert [panel.xaxis_inverted() for panel in panels] == smaller


def test_predictions_know_the_clusters_of_their_rows(tmp_path: Path) -> None:
    settings = {"task.limit": 40, "predict.samples": [0], "method": "lora"}
    system = build_system(load_config(overrides=settings))
    evaluate_system(system, tmp_path)
    lines = [json.loads(line) for line in (tmp_path / PREDICTIONS).read_text().splitlines()]
    assert [line["cluster"] for line in lines] == [row.cluster for row in system.task.test]
    found = compare_runs(tmp_path, tmp_path)
    assert found.clusters == len({row.cluster for row in system.task.test}) < 40
    assert torch.tensor([m.difference for m in found.metrics]).eq(0).all()


PAGE = Path(__file__).parents[2] / "docs" / "which_method.md"


def test_the_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [block] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    for name, skill in zip(re.findall(r'"(runs/[^"]*)"', block), (1.2, 0.9), strict=True):
        write(tmp_path / name, {10: predictions(3, skill)})
    monkeypatch.chdir(tmp_path)
    exec(compile(block, str(PAGE), "exec"), {})
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [*compared()]
