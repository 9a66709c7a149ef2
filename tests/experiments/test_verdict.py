"""The planned contrasts of docs/results/verdict.md, computed again from the stored scores of each world."""

from statistics import mean

import pytest
from scipy.stats import ttest_1samp

from experiments.engine.results import RESULTS, read_results

ENTRIES = read_results("verdict", RESULTS).entries
WORLDS = [entry for key, entry in ENTRIES.items() if key.startswith("world ")]
SECONDARY = {key: ENTRIES[key] for key in ("ece", "acc", "error_auroc", "near_aware", "far_aware", "few")}
PLANNED = {"nll": ENTRIES["nll"], **SECONDARY}


def test_a_worlds_difference_is_the_mean_over_its_tasks() -> None:
    assert len(WORLDS) == 6
    for world in WORLDS:
        gate, tuned = (mean(world["nll"][arm].values()) for arm in ("bara-gate", "temperature"))
        assert world["differences"]["nll"] == pytest.approx(gate - tuned, abs=1e-6)


@pytest.mark.parametrize("key", PLANNED)
def test_intervals_are_students_over_worlds(key: str) -> None:
    stored = PLANNED[key]
    test = ttest_1samp([world["differences"][stored["metric"]] for world in WORLDS], 0.0)
    interval = test.confidence_interval(0.95)
    assert stored["difference"] == pytest.approx((interval.low + interval.high) / 2, abs=1e-6)
    assert (stored["low"], stored["high"]) == pytest.approx((interval.low, interval.high), abs=2e-6)
    assert stored["p"] == pytest.approx(test.pvalue, abs=1e-4)


def test_p_values_are_corrected_by_holm() -> None:
    by_p = sorted(SECONDARY.values(), key=lambda entry: entry["p"])
    corrected = 0.0
    for rank, entry in enumerate(by_p):
        corrected = max(corrected, min(1.0, entry["p"] * (len(by_p) - rank)))
        assert entry["p_holm"] == pytest.approx(corrected, abs=1e-6)
