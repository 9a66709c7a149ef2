"""Every method has the same number of trials, the best one wins, and nothing runs on a wrong space."""

import math
from pathlib import Path
from typing import Any

import pytest
from study_cases import load_records

from bara_pyro.errors import ConfigError, DataError, TrainingError
from bara_pyro.runs.config import load_config
from bara_pyro.untrusted.files import read_json
from experiments.engine.methods import (
    BUDGET,
    RATES,
    STUDIED,
    SearchSpace,
    Studied,
    check_spaces,
    first_trials,
    further_trials,
    halfway,
    searched,
    space,
)
from experiments.engine.search import Trial, best, chosen, entry, main, search, table


@pytest.mark.parametrize("method", searched())
def test_every_method_has_the_same_number_of_different_trials(method: str) -> None:
    for rate in space(method).lr:
        trials = [*first_trials(method), *further_trials(method, rate)]
        assert len(trials) == len({str(trial) for trial in trials}) == BUDGET


@pytest.mark.parametrize("method", searched())
def test_every_space_fits_its_method_and_tries_no_default_twice(method: str) -> None:
    check_spaces([method])
    default, key = load_config(overrides={"method": method}), space(method).regulariser
    if key is not None:
        section, name = key.split(".")
        assert getattr(getattr(default, section), name) not in space(method).values


def test_rates_half_a_step_away() -> None:
    assert halfway((3e-4, 1e-3, 3e-3, 1e-2), 1e-3) == (5.48e-4, 1.73e-3)
    assert halfway((3e-4, 1e-3, 3e-3, 1e-2), 1e-2) == (5.48e-3, 1.83e-2)


def stub(trials: list[Trial]) -> list[float]:
    """Score best at the third rate and, at that rate, with init_kappa 0.8; fail at the fourth."""
    _, _, good, failing = RATES
    return [
        math.inf
        if trial.settings["train.lr"] == failing
        else abs(math.log(trial.settings["train.lr"] / good)) - trial.settings.get("method.init_kappa", 0.5)
        for trial in trials
    ]


def test_the_known_best_is_found() -> None:
    results = search(["lora", "bara"], stub)
    assert best(results["bara"]).settings == {"train.lr": RATES[2], "method.init_kappa": 0.8}
    assert best(results["lora"]).settings == {"train.lr": RATES[2]}
    assert {method: len(scored) for method, scored in results.items()} == {"bara": BUDGET, "lora": BUDGET}
    assert [row["chosen"] for row in table(results).rows].count("chosen") == 2


def test_the_best_trial_is_tried_after_other_lengths() -> None:
    def short(trials: list[Trial]) -> list[float]:
        return [
            value - (trial.settings.get("train.steps") == 50)
            for trial, value in zip(trials, stub(trials), strict=True)
        ]

    results = search(["lora", "bara"], short, lengths=(50, 70))
    known = {"train.lr": RATES[2], "method.init_kappa": 0.8}
    assert [trial.settings for trial, _ in results["bara"][BUDGET:]] == [
        {**known, "train.steps": 50},
        {**known, "train.steps": 70},
    ]
    assert best(results["bara"]).settings == {**known, "train.steps": 50}
    assert best(results["lora"]).settings == {"train.lr": RATES[2], "train.steps": 50}
    assert len(results["lora"]) == BUDGET + 2


def test_where_lengths_were_tried_the_chosen_one_is_written_down() -> None:
    """The study that reads it may have another length by default, as the confirmatory one does."""
    about = {"steps": 40, "lengths": [50, 70]}
    trials = [Trial("lora", {"train.lr": 1e-3}), Trial("lora", {"train.lr": 1e-3, "train.steps": 50})]
    first, longer = (list(zip(trials, values, strict=True)) for values in ([0.4, 0.5], [0.5, 0.4]))
    assert entry("lora", first, about)["chosen"] == {"train.lr": 1e-3, "train.steps": 40}
    assert entry("lora", longer, about)["chosen"] == {"train.lr": 1e-3, "train.steps": 50}
    assert entry("lora", first, {"steps": 40})["chosen"] == {"train.lr": 1e-3}
    assert entry("lora", first, {"steps": None, "lengths": [50]})["chosen"] == {"train.lr": 1e-3}


@pytest.mark.parametrize(
    ("space", "said"),
    [
        (SearchSpace(regulariser="method.nonsense", values=(1, 2)), "method.nonsense"),
        (SearchSpace(regulariser="train.weight_decay", values=(1, -1)), "train.weight_decay"),
        (SearchSpace(regulariser="train.weight_decay", values=(1,)), "5 trials"),
    ],
)
def test_a_wrong_space_breaks_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, space: SearchSpace, said: str
) -> None:
    def score(trials: list[Trial]) -> list[float]:
        pytest.fail("it ran")

    monkeypatch.setitem(STUDIED, "lora", Studied("LoRA", space))
    with pytest.raises(ConfigError, match=said) as raised:
        search(["bara", "lora"], score)
    assert "'lora'" in str(raised.value)
    with pytest.raises(ConfigError, match="no-such-method"):
        search(["no-such-method"], score)


def arguments(base: dict[str, Any], tmp_path: Path, *more: str) -> list[str]:
    shared = ["--model", base["backbone.name"], "--tasks", base["task.name"], "--steps", "2", "--seeds", "1"]
    folders = ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "chosen.json")]
    return [*shared, *folders, "--launcher", "serial", "--methods", "lora", *more]


def test_the_program_chooses_on_validation_rows_and_keeps_every_trial(
    base: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(arguments(base, tmp_path, "--validation-rows", "8"))
    kept = read_json(tmp_path / "chosen.json")["methods"]["lora"]
    assert len(kept["trials"]) == BUDGET
    assert kept["chosen"] == min(kept["trials"], key=lambda trial: trial["nll"])["settings"]
    assert chosen("lora", tmp_path / "chosen.json") == kept["chosen"]
    assert str(tmp_path) not in str(kept)
    records = load_records(tmp_path / "runs" / "records")
    assert {(r["split"], r["metrics"]["10"]["n"]) for r in records} == {("validation", 8)}
    assert {r["metrics"]["10"]["nll"] for r in records} == {trial["nll"] for trial in kept["trials"]}
    assert "chosen" in capsys.readouterr().out


def test_a_task_without_validation_rows_is_refused(base: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--validation-rows"):
        main(arguments(base, tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_method_of_which_every_trial_failed_has_no_choice(
    base: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = SearchSpace(lr=(1e30, 1e31, 1e32, 1e33))
    monkeypatch.setitem(STUDIED, "lora", Studied("LoRA", far))
    with pytest.raises(TrainingError, match="Every trial failed of lora"):
        main(arguments(base, tmp_path, "--validation-rows", "8"))
    with pytest.raises(ConfigError, match=r"No settings .* 'lora'"):
        chosen("lora", tmp_path / "chosen.json")


def test_choices_come_from_a_file_of_ours(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="experiments search"):
        chosen("lora", tmp_path / "missing.json")
    (tmp_path / "foreign.json").write_text("{}")
    with pytest.raises(DataError, match=r"foreign\.json"):
        chosen("lora", tmp_path / "foreign.json")
