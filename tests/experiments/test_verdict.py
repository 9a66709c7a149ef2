"""The verdict over worlds, on made rows whose differences are known."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import false_discovery_control, ttest_1samp
from study_cases import make_record, predictions

from bara_pyro.errors import DataError
from experiments.engine.record import Record
from experiments.engine.results import changing, read_results, results_path
from experiments.engine.rows import RunRows, write_rows
from experiments.engine.worlds import student_range
from experiments.page.report import page
from experiments.studies.verdict import study

GAINS = {"102": 0.10, "103": 0.30, "104": 0.15, "105": 0.22, "106": 0.28, "107": 0.05}
ROWS = 60


def run(world: str, arm: str, task: str, tested_on: str, right: float) -> RunRows:
    """A run that gives every right answer the log-probability `right`; clusters of three rows."""
    ids = tuple(f"{tested_on}{i}" for i in range(ROWS))
    clusters = tuple(f"c{i // 3} of world {world}" for i in range(ROWS))
    distribution = torch.tensor([[right, float(np.log1p(-np.exp(right)))]], dtype=torch.float64).repeat(
        ROWS, 1
    )
    labels = torch.zeros(ROWS, dtype=torch.long)
    labels[::3] = 1  # some answers are wrong, with the other probability
    return RunRows(
        arm,
        f"{arm} {world}",
        "c",
        task,
        0,
        tested_on,
        ids,
        clusters,
        labels,
        {0: distribution * 2, 10: distribution},
    )


def world(name: str, gain: float) -> list[RunRows]:
    """Both arms on two tasks and the shifts of one; `bara-gate` is the nearer to a coin, by `gain`."""
    out = []
    for arm, right in (("bara-gate", -0.3 - gain), ("temperature", -0.3)):
        out += [run(name, arm, task, task, right) for task in ("micro-obqa", "micro-wgs")]
        out += [run(name, arm, "micro-obqa", shift, right) for shift in ("micro-near", "micro-far")]
    return out


def further(name: str, gain: float) -> dict[str, list[RunRows]]:
    """Rows of the secondary contrasts of a world, as they are stored by themselves."""
    aware = [
        run(name, arm, "micro-obqa", t, right)
        for arm, right in (("bara-gate", -0.3 - gain), ("temperature", -0.35))
        for t in ("micro-obqa", "micro-near", "micro-far")
    ]
    few = [
        run(name, arm, "micro-wgs", "micro-wgs", right)
        for arm, right in (("bara-gate", -0.5 - gain), ("temperature", -0.5))
    ]
    shorter = [run(name, "bara-gate", "micro-wgs", "micro-wgs", -0.45)]
    rehearsed = [
        run(name, arm, "micro-wgs", "micro-wgs", right)
        for arm, right in (("bara-gate", -0.6 - gain), ("temperature", -0.6), ("lora", -0.35))
    ]
    lora = [run(name, "lora", "micro-wgs", "micro-wgs", -0.4)]
    arms = [
        run(name, arm, task, task, right)
        for arm, right in (("bara-gate", -0.7 - gain), ("bara", -0.7), ("lora", -0.9))
        for task in ("micro-obqa", "micro-wgs")
    ]
    found = {"aware": aware, "few": few, "shorter": shorter, "rehearsed": rehearsed, "lora": lora}
    return {**found, "arms": arms}


def nll_of(right: float) -> float:
    """The NLL of such a run: a third of its labels has the other probability."""
    return -(2 * right + float(np.log1p(-np.exp(right)))) / 3


def test_contrasts_are_t_tests_of_the_worlds_averages() -> None:
    found = study.contrasts({name: world(name, gain) for name, gain in GAINS.items()})
    by_hand = [nll_of(-0.3 - gain) - nll_of(-0.3) for gain in GAINS.values()]
    test = ttest_1samp(by_hand, 0.0)
    for name in ("nll", "near", "far"):
        assert found[name]["difference"] == pytest.approx(np.mean(by_hand), abs=1e-5)
        assert found[name]["p"] == pytest.approx(test.pvalue, rel=1e-3)
    low, high = test.confidence_interval(0.95)
    assert (found["nll"]["low"], found["nll"]["high"]) == pytest.approx((low, high), abs=1e-5)
    assert found["nll"]["these_high"] - found["nll"]["these_low"] < high - low
    assert "p_holm" not in found["nll"]  # the primary one stands by itself
    assert found["acc"]["difference"] == 0.0


def test_the_secondary_ones_are_corrected_by_holm() -> None:
    found = study.contrasts({name: world(name, gain) for name, gain in GAINS.items()})
    others = sorted((one["p"], one["p_holm"]) for one in found.values() if "p_holm" in one)
    assert {name for name, one in found.items() if "p_holm" not in one} == {"nll", "near", "far"}
    largest = 0.0
    for place, (p, p_holm) in enumerate(others):
        largest = max(largest, min(1.0, (len(others) - place) * p))
        assert p_holm == pytest.approx(largest)
    # A weaker correction would give less.
    assert others[0][1] >= false_discovery_control([p for p, _ in others]).min()


def test_worlds_that_agree_by_accident_have_the_interval_of_their_rows() -> None:
    """Student's interval of three equal differences has no width: their residents say what chance can do."""
    worlds = {name: world(name, 0.1) for name in ("102", "103", "104")}
    for one in (one for runs in worlds.values() for one in runs):
        right = one.log_probs[10][:, :1] * torch.linspace(0.5, 1.5, ROWS)[:, None]
        one.log_probs[10].copy_(torch.cat([right, (-right.exp()).log1p()], dim=1))
    found = study.contrasts(worlds)
    assert found["nll"]["high"] - found["nll"]["low"] > 0.001
    assert (found["nll"]["low"], found["nll"]["high"]) == (
        found["nll"]["these_low"],
        found["nll"]["these_high"],
    )
    for name in ("near", "far"):
        assert found[name]["high"] - found[name]["low"] > 0.001
        assert found[name]["p"] > 0
    # No average over rows, so that it has Student's interval alone.
    assert found["error_auroc"]["high"] == found["error_auroc"]["low"]


def test_tasks_are_t_tests_over_worlds_corrected_for_their_number() -> None:
    gains = {"micro-obqa": (0.8, 0.9, 1.1), "micro-wgs": (0.5, 0.7, 0.3)}
    worlds = {
        name: [
            run(name, arm, task, task, -0.3 - (values[i] if arm == "bara-gate" else 0))
            for arm in ("bara-gate", "temperature")
            for task, values in gains.items()
        ]
        for i, name in enumerate(("102", "103", "104"))
    }
    found = study.by_task(worlds, study.PAIRS["nll"])
    ps = {}
    for task, values in gains.items():
        test = ttest_1samp([nll_of(-0.3 - gain) - nll_of(-0.3) for gain in values], 0.0)
        low, high = test.confidence_interval(0.95)
        difference = np.mean([nll_of(-0.3 - gain) - nll_of(-0.3) for gain in values])
        assert found[task]["difference"] == pytest.approx(difference, abs=1e-5)
        assert (found[task]["low"], found[task]["high"]) == pytest.approx((low, high), abs=1e-5)
        ps[task] = test.pvalue
    first, second = sorted(ps, key=ps.__getitem__)
    assert found[first]["p_holm"] == pytest.approx(2 * ps[first], rel=1e-3)
    assert found[second]["p_holm"] == pytest.approx(max(2 * ps[first], ps[second]), rel=1e-3)
    assert 2 * ps[first] < 1


def test_rows_from_elsewhere_are_told_as_the_records_say() -> None:
    worlds = {name: world(name, gain) for name, gain in GAINS.items()}
    expected = {name: 50.0 + 4 * i for i, name in enumerate(GAINS)}
    records = {f"bara-gate {name}": with_auroc(percent) for name, percent in expected.items()}
    found = study.told(worlds, records)
    assert set(found) == {"auroc near bara-gate", "auroc far bara-gate"}  # the others have not run
    low, high = ttest_1samp(list(expected.values()), 0.0).confidence_interval(0.95)
    for entry in found.values():
        assert entry["by_world"] == expected
        assert entry["mean"] == pytest.approx(60.0)
        assert (entry["low"], entry["high"]) == pytest.approx((low, high))


def with_auroc(percent: float) -> Record:
    """Return a record by what it says of rows from elsewhere."""
    auroc = {"0": {"entropy": 1.0}, "10": {"entropy": 2.0, "mutual_information": percent}}
    shifted = {task: {"auroc": auroc} for task in ("micro-near", "micro-far")}
    labels, predicted = predictions("bara", "micro-obqa", 0, 10)
    return make_record("bara", "micro-obqa", 0, labels, predicted, shifted=shifted)


@pytest.mark.parametrize("values", [[1.0, 2.0], [0.1, -0.2, 0.4, 0.3]])
def test_the_range_is_that_of_a_t_test(values: list[float]) -> None:
    found = student_range(values)
    test = ttest_1samp(values, 0.0)
    assert found.p == pytest.approx(test.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(test.confidence_interval(0.95)))


@pytest.mark.parametrize(
    ("worlds", "low", "high", "said"),
    [
        (6, -0.03, -0.001, "met"),
        (6, -0.03, 0.001, "missed"),
        (6, 0.001, 0.03, "missed"),
        (5, -0.03, -0.01, "no verdict yet"),
    ],
)
def test_the_verdict_is_that_of_the_plan(worlds: int, low: float, high: float, said: str) -> None:
    assert study.verdict(worlds, low, high) == said


def test_the_command_reads_the_rows_and_the_page_shows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(study, "stored_worlds", REAL)
    monkeypatch.setattr("sys.argv", ["verdict", "--out", str(tmp_path)])
    with pytest.raises(DataError, match="No world has been run"):
        study.main()
    write_rows("confirmatory_102", world("102", GAINS["102"]), tmp_path)
    with pytest.raises(DataError, match="rows of 1 world"):
        study.main()
    for name in ("102", "103"):
        write_rows(f"confirmatory_{name}", world(name, GAINS[name]), tmp_path)
        with changing(results_path(f"confirmatory_{name}", tmp_path)) as store:
            key = f"bara-gate {name}"
            store.records[key] = with_auroc(60.0) | {"config_hash": key}
    study.main()
    assert "2 of 6 worlds: no verdict yet" in capsys.readouterr().out
    found = read_results("verdict", tmp_path)
    text = page("verdict", study.STUDY, found, "", tmp_path)
    assert "2 of 6 worlds" in text
    assert "Code of the runs that were read: commit c: 4." in text
    mean = np.mean([nll_of(-0.3 - GAINS[n]) - nll_of(-0.3) for n in ("102", "103")])
    assert f"{mean:+.3f}" in text
    assert (tmp_path / "verdict-nll.svg").stat().st_size > 5000


REAL = study.stored_worlds


def test_secondary_contrasts_are_stored_by_themselves_and_count_once_all_worlds_have_them(
    tmp_path: Path,
) -> None:
    gains = {"102": 0.10, "103": 0.30}
    for name, gain in gains.items():
        write_rows(f"confirmatory_{name}", world(name, 0.0), tmp_path)
        for kind, rows in further(name, gain).items():
            if (kind, name) != ("few", "103"):
                write_rows(f"confirmatory_{kind}_{name}", rows, tmp_path)
    found = study.contrasts(study.stored_worlds(tmp_path))
    assert found["nll"]["difference"] == found["far"]["difference"] == 0.0  # theirs do not count there
    assert "few" not in found
    by_hand = np.mean([nll_of(-0.3 - gain) - nll_of(-0.3) for gain in gains.values()])
    for name in ("near_aware", "far_aware"):
        assert found[name]["difference"] == pytest.approx(by_hand, abs=1e-5)
        assert found[name]["p_holm"] >= found[name]["p"]
    for name in ("near_both", "far_both"):
        aware = by_hand + nll_of(-0.3) - nll_of(-0.35)
        assert found[name]["difference"] == pytest.approx(aware, abs=1e-5)
        assert "p_holm" not in found[name]
    write_rows("confirmatory_few_103", further("103", 0.30)["few"], tmp_path)
    found = study.contrasts(study.stored_worlds(tmp_path))
    by_hand = np.mean([nll_of(-0.5 - gain) - nll_of(-0.5) for gain in gains.values()])
    assert found["few"]["difference"] == pytest.approx(by_hand, abs=1e-5)
    by_hand = nll_of(-0.45) - nll_of(-0.5)
    assert found["shorter"]["difference"] == pytest.approx(by_hand, abs=1e-5)
    assert "p_holm" not in found["shorter"]
    by_hand = np.mean([nll_of(-0.6 - gain) for gain in gains.values()])
    for contrast, nll in (
        ("rehearsed", by_hand),
        ("rehearsed_lora", nll_of(-0.35)),
        ("asked_lora", nll_of(-0.4)),
    ):
        assert found[contrast]["difference"] == pytest.approx(nll - nll_of(-0.6), abs=1e-5)
        assert "p_holm" not in found[contrast]
    assert "rehearsed_bara" not in found
    gate = np.mean([nll_of(-0.7 - gain) for gain in gains.values()])
    for contrast, nll in (("bara", nll_of(-0.7)), ("lora", nll_of(-0.9))):
        assert found[contrast]["difference"] == pytest.approx(nll - gate, abs=1e-5)
        assert "p_holm" not in found[contrast]


def test_the_rival_of_a_language_model_made_again_is_that_one(tmp_path: Path) -> None:
    gain = GAINS["102"]
    write_rows("confirmatory_102", world("102", 0.0), tmp_path)
    write_rows("confirmatory_aware_102", further("102", gain)["aware"], tmp_path)
    again = [run("102", "temperature", "micro-obqa", t, -0.4) for t in ("micro-near", "micro-far")]
    write_rows("confirmatory_again_102", again, tmp_path)
    found = study.differences(study.stored_worlds(tmp_path)["102"])
    assert found["far_aware"] == pytest.approx(nll_of(-0.3 - gain) - nll_of(-0.4), abs=1e-5)
    assert found["far"] == 0.0


def test_a_world_without_an_arm_is_refused() -> None:
    rows = [one for one in world("102", 0.1) if one.arm == "bara-gate"]
    with pytest.raises(DataError, match="no run of temperature"):
        study.differences(rows)
