"""Tables say what the records say: every number is parsed back and computed anew from the files."""

from pathlib import Path
from statistics import mean, stdev

import pytest
from study_cases import invent, records_of

from bara_pyro.report.table import Table, markdown
from experiments.engine.results import Study, load_study
from experiments.engine.tables import arms_table, compared, task_table
from experiments.engine.values import gaps, largest_draws

DIGITS = {"acc": 1, "ece": 1, "nll": 3, "brier": 3}


def parse(table: Table) -> tuple[list[str], list[list[str]]]:
    """Return the headings and the cells of a table as GitHub would read them."""
    lines = [line for line in markdown(table).splitlines() if line.startswith("| ")]
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return header, rows


def plain(cell: str) -> str:
    return cell.strip("*_")


def shown(values: list[float], digits: int) -> str:
    text = f"{mean(values):.{digits}f}"
    return text if len(values) == 1 else f"{text} ± {stdev(values):.{digits}f}"


def record(
    acc: float = 50.0, nll: float | None = 1.0, *, draws: float = 0.0, trainable: int = 8, **more
) -> dict:
    """Return the least that a table reads; `draws` is what S = 10 adds to the accuracy."""
    scores = {"acc": acc, "nll": nll, "ece": 10.0, "brier": 0.5}
    metrics = {"0": scores, "10": {**scores, "acc": acc + draws}}
    return {"metrics": metrics, "parameters": {"trainable": trainable}, "sparsity": {}, "shifted": {}, **more}


def by_hand(arms: dict[str, dict[str, list[dict]]]) -> Study:
    return Study(
        "hand",
        {a: {t: dict(enumerate(records)) for t, records in tasks.items()} for a, tasks in arms.items()},
        [],
    )


# The main table --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seeds", [1, 3])
def test_every_number_is_that_of_the_records(seeds: int, tmp_path: Path) -> None:
    runs = invent("some", tmp_path, seeds=seeds)
    records = records_of("some", tmp_path)
    files = {(run["arm"], run["task"], run["seed"]): records[run["hash"]] for run in runs}
    names = {"MLE (LoRA)": "lora", "BLoB": "blob", "BaRA": "bara"}
    tasks = ("micro-wgs", "micro-arce")
    study = load_study("some", tmp_path)

    def values(arm: str, metric: str) -> list[list[float]]:
        return [[files[arm, t, s]["metrics"]["10"][metric] for s in range(seeds)] for t in tasks]

    for metric, digits in DIGITS.items():
        header, rows = parse(task_table(study, metric))
        assert header == ["method", *tasks]
        assert [row[0] for row in rows] == [*names]
        for name, *cells in rows:
            expected = [shown(v, digits) for v in values(names[name], metric)]
            assert [plain(cell) for cell in cells] == expected
    header, rows = parse(arms_table(study))
    assert header[:2] == ["method", "params"]
    for name, parameters, *cells in rows:
        arm = names[name]
        for metric, cell in zip(DIGITS, cells, strict=False):
            by_seed = [mean(pair) for pair in zip(*values(arm, metric), strict=True)]
            assert plain(cell) == shown(by_seed, DIGITS[metric])
        assert parameters == f"{files[arm, 'micro-wgs', 0]['parameters']['trainable']:,d}"


def test_best_and_second_best_are_those_of_a_table_made_by_hand() -> None:
    one = {"t": [record(70.0, 0.50)], "u": [record(60.0, 0.40)]}
    two = {"t": [record(75.0, 0.60)], "u": [record(60.04, 0.70)]}
    three = {"t": [record(74.0, 0.55)], "u": [record(50.0, 0.60)]}
    four = {"t": [record(73.0, None)], "u": [record(40.0, 0.60)]}
    study = by_hand({"lora": one, "blob": two, "ivon": three, "bara": four})
    # IVON comes after the paper's methods, BaRA last; 60.0 and 60.04 read the same.
    assert parse(task_table(study, "acc"))[1] == [
        ["MLE (LoRA)", "70.0", "**60.0**"],
        ["BLoB", "**75.0**", "**60.0**"],
        ["IVON", "_74.0_", "_50.0_"],
        ["BaRA", "73.0", "40.0"],
    ]
    assert parse(task_table(study, "nll"))[1] == [
        ["MLE (LoRA)", "**0.500**", "**0.400**"],
        ["BLoB", "0.600", "0.700"],
        ["IVON", "_0.550_", "_0.600_"],
        ["BaRA", "∞", "_0.600_"],
    ]
    assert [row[4] for row in parse(arms_table(study))[1]] == ["**0.450**", "0.650", "_0.575_", "∞"]


def test_a_failed_run_is_shown_and_never_ranked() -> None:
    lost = {"failed": "The loss is not finite."}
    study = by_hand(
        {
            "lora": {"t": [record(70.0), record(72.0)], "u": [record(60.0), record(60.0)]},
            "blob": {"t": [record(99.0), lost], "u": [record(90.0), record(91.0)]},
            "bara": {"t": [lost, lost], "u": [record(50.0)]},
            "ivon": {"u": [record(55.0), record(56.0)]},
        }
    )
    assert parse(task_table(study, "acc"))[1] == [
        ["MLE (LoRA)", "71.0 ± 1.4", "_60.0 ± 0.0_"],
        ["BLoB", "failed 1/2", "**90.5 ± 0.7**"],
        ["IVON", "–", "55.5 ± 0.7"],
        ["BaRA", "failed", "50.0"],
    ]
    assert [row[2] for row in parse(arms_table(study))[1]] == ["65.5 ± 0.7", "failed", "–", "failed"]
    assert gaps(study) == [
        "BLoB on t has 1 of 2 seeds: The loss is not finite",
        "IVON on t has 0 of 2 seeds",
        "BaRA on t has 0 of 2 seeds: The loss is not finite",
        "BaRA on u has 1 of 2 seeds",
    ]


def test_scores_are_those_of_the_largest_number_of_draws() -> None:
    assert largest_draws({"t": {0: record()}, "u": {0: record(draws=0.1)}}) == "10"
    assert largest_draws({"t": {0: {"failed": "x"}}}) == ""
    study = by_hand({"lora": {"t": [record(50.0)]}, "bara": {"t": [record(60.0, draws=2.0)]}})
    assert parse(task_table(study, "acc")) == (
        ["method", "t"],
        [["MLE (LoRA)", "50.0"], ["BaRA", "**62.0**"]],
    )


# Shifts ----------------------------------------------------------------------------------------------------


def test_comparisons_that_are_zero_or_infinite() -> None:
    same = {
        "difference": -0.0001,
        "low": 0.0,
        "high": 0.00012,
        "se_seeds": None,
        "se_rows": 0.0001,
        "verdict": "unclear",
    }
    none = dict.fromkeys(("difference", "low", "high", "se_seeds", "se_rows"))
    entry = {
        "arm": "bara", "reference": "lora", "task": "t", "acc": same,
        "ece": same, "nll": {**none, "verdict": "worse"}, "brier": {**none, "verdict": "unclear"},
    }  # fmt: skip
    cells = {metric: compared([entry], "lora", metric) for metric in DIGITS}
    assert [cells[metric]["bara"] for metric in DIGITS] == ["0.0 [0.0, 0.0]"] * 2 + ["∞, worse", "–"]
