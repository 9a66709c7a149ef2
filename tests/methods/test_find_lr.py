"""`find_lr`: fits on half of the rows at two rates; the rate taken is the run's."""

import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from app_cases import questions, write_rows
from fit_cases import Interrupted, answers, kills, tiny_run
from safetensors.torch import load_file
from scipy.stats import sem

import bara_pyro.runs.train as training
from bara_pyro.atomic import write_json, write_jsonl
from bara_pyro.cli import running
from bara_pyro.data import EncodedSplit
from bara_pyro.diagnostics.context import Options, look
from bara_pyro.diagnostics.inspection import run_facts
from bara_pyro.errors import ConfigError, DataError, TrainingError
from bara_pyro.posthoc.temperature import significantly_lower
from bara_pyro.runs import split_half
from bara_pyro.runs.config import RunConfig, for_rows, load_config
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.system import System, build_system
from bara_pyro.runs.train import train
from bara_pyro.untrusted.files import read_json

STEPS, HALF, LR = 6, 3, 0.01
RATES = [0.03, 0.01, 0.003]  # 3, 1 and 0.3 times LR


def config(folder: Path, **settings: object) -> RunConfig:
    own = {"adapter.calibrated": True, "train.steps": STEPS, "train.find_lr": True}
    return load_config(overrides={**own, **settings}, base=tiny_run(folder, {"name": "bara-gate"}))


@pytest.fixture
def right(monkeypatch: pytest.MonkeyPatch) -> tuple[list[float], list[float]]:
    """The probabilities of the right answer that fits predict, in turn, and the rates that they had."""
    probabilities, rates = [], []

    def draw(system: System, rows: EncodedSplit, samples: int) -> torch.Tensor:
        rates.append(system.config.train.lr)
        probability = torch.full((len(rows),), probabilities[len(rates) - 1], dtype=torch.float64)
        probs = torch.stack([probability, 1 - probability], -1)
        return (
            probs.where((torch.tensor(rows.labels) == 0)[:, None], probs.flip(-1))
            .log()
            .expand(samples, -1, -1)
        )

    monkeypatch.setattr(split_half, "draw", draw)
    monkeypatch.setattr(split_half, "learnt_nll", lambda system: 0.0)  # it draws as well
    monkeypatch.setattr(split_half, "is_unstable", lambda out: False)  # it compares with these predictions
    return probabilities, rates


def test_significantly_lower_is_a_paired_comparison_with_its_standard_error() -> None:
    """The standard error divides by n; 1.645 of them are the 95 % quantile of a normal distribution."""
    torch.manual_seed(0)
    losses, rows = torch.rand(30, dtype=torch.float64), [[row] for row in range(30)]
    noise = torch.randn(30, dtype=torch.float64)
    error = float(sem(noise.numpy(), ddof=0))
    for errors, lower in ((1.6, False), (1.7, True), (-1.7, False)):
        gains = noise - noise.mean() + errors * error
        assert significantly_lower(losses, losses + gains, rows) is lower


def test_rows_of_one_group_count_as_one() -> None:
    """Three copies of each row say no more than the row alone."""
    gains = torch.tensor([1.0, -0.1, 0.9, 0.0, 0.6], dtype=torch.float64)  # 2.4 standard errors above 0
    alone, copied = [[row] for row in range(5)], [[row, row + 5, row + 10] for row in range(5)]
    for shift, lower in ((0.0, True), (-0.2, False)):
        one, three = gains + shift, (gains + shift).repeat(3)
        assert significantly_lower(-one, torch.zeros(5), alone) is lower
        assert significantly_lower(-three, torch.zeros(15), copied) is lower
    # As independent rows the copies would be clear.
    assert significantly_lower(-three, torch.zeros(15), [[row] for row in range(15)])


@pytest.mark.parametrize(
    ("predicted", "best"),
    [((0.6, 0.9), 0), ((0.8, 0.8), 0), ((0.9, 0.6), 1)],
    ids=["better", "equal", "worse"],
)
def test_the_run_takes_the_higher_rate_unless_it_is_worse(
    tmp_path: Path, right: tuple[list[float], list[float]], predicted: tuple[float, float], best: int
) -> None:
    """Then the halves are turned around."""
    probabilities, rates = right
    probabilities[:] = [*predicted, 0.7]
    system, seen = build_system(config(tmp_path)), list[int]()
    train(system, tmp_path / "run", on_split_half=lambda step, _: seen.append(step))
    assert seen == [1, 2, 3] * 3
    assert rates == pytest.approx([LR, 3 * LR, RATES[best]])
    assert split_half.rates_tried(system, tmp_path / "run") == pytest.approx(RATES[:2])
    stored = read_json(tmp_path / "run" / "rehearsal.json")
    assert [tried["lr"] for tried in stored["tried"]] == pytest.approx([LR, 3 * LR])
    assert [tried["steps"] for tried in stored["tried"]] == [STEPS, STEPS]
    assert [tried["loss"] for tried in stored["tried"]] == pytest.approx([-math.log(p) for p in predicted])
    halves = [{row["id"] for row in stored[name]} for name in ("rows", "turned")]
    assert not halves[0] & halves[1]
    assert halves[0] | halves[1] == {row.id for row in system.task.train}
    assert stored["rows"][0]["log_probs"][0][stored["rows"][0]["label"]] == pytest.approx(
        math.log(max(predicted))
    )
    fitted = read_json(tmp_path / "run" / "fitted.json")
    assert fitted["calibrated_lr"] == pytest.approx(RATES[best])
    assert fitted["calibrated_nll_1"] == pytest.approx(-math.log(max(predicted)) / 2 - math.log(0.7) / 2)
    # The same run as one with that rate, but for the temperature, which is 1 here.
    given = {"train.find_lr": False, "train.lr": LR * split_half.RATES[best], "adapter.calibrated": False}
    same = build_system(config(tmp_path, **given))
    train(same, tmp_path / "given")
    ours, theirs = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("run", "given"))
    assert ours.keys() - theirs.keys() == {"log_temperature"}
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())
    again = load_system(tmp_path / "run")
    assert torch.equal(answers(again), answers(system))
    assert run_facts(look(tmp_path / "run", again, Options(), None)).lr == pytest.approx(RATES[best])


@pytest.mark.slow
def test_a_kill_changes_nothing(tmp_path: Path) -> None:
    whole = build_system(config(tmp_path))
    train(whole, tmp_path / "whole")
    truth, kept = answers(whole), read_json(tmp_path / "whole" / "rehearsal.json")
    fits = {"first fit": 1, "second fit": 2, "turned fit": 3}
    for stage in (*fits, "run"):
        out = tmp_path / stage
        with pytest.raises(Interrupted):
            train(build_system(config(tmp_path)), out, **kills(stage, fits, STEPS - 1))
        again = build_system(config(tmp_path))
        train(again, out, resume=True)
        assert torch.equal(answers(again), truth), stage
        found = read_json(out / "rehearsal.json")
        assert all(found[name] == kept[name] for name in ("tried", "rows", "turned")), stage
        assert not (out / ".rehearsal").exists(), stage


@pytest.mark.parametrize(("right_rows", "taken"), [(0.6, False), (0.8, True)])
def test_a_lower_rate_must_be_significantly_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, right_rows: float, taken: bool
) -> None:
    """The first fit, at the lower rate, is right on a share of the rows and wrong on the others."""
    fits = 0

    def draw(system: System, rows: EncodedSplit, samples: int) -> torch.Tensor:
        nonlocal fits
        fits += 1
        labels = torch.tensor(rows.labels)
        hit = torch.arange(len(rows)) < round(right_rows * len(rows))
        chosen = labels.where(hit, 1 - labels) if fits == 1 else labels
        sure = 0.6 if fits == 1 else 0.5
        probs = torch.full((len(rows), 2), 1 - sure, dtype=torch.float64)
        return probs.scatter(1, chosen[:, None], sure).log().expand(samples, -1, -1)

    monkeypatch.setattr(split_half, "draw", draw)
    monkeypatch.setattr(split_half, "learnt_nll", lambda system: 0.0)  # it draws as well
    monkeypatch.setattr(split_half, "is_unstable", lambda out: False)
    train(build_system(config(tmp_path)), tmp_path / "run")
    stored = read_json(tmp_path / "run" / "rehearsal.json")["tried"]
    assert stored[0]["loss"] < stored[1]["loss"]
    assert [tried["taken"] for tried in stored] == [True, not taken]
    fitted = read_json(tmp_path / "run" / "fitted.json")
    assert fitted["calibrated_lr"] == pytest.approx(RATES[int(taken)])


@pytest.mark.parametrize(("diverging", "best"), [(0, 2), (1, 1)])
def test_a_rate_that_diverges_is_not_taken(
    tmp_path: Path,
    right: tuple[list[float], list[float]],
    monkeypatch: pytest.MonkeyPatch,
    diverging: int,
    best: int,
) -> None:
    """Not even if its last predictions were the best. If it is the middle one, the lower is tried."""
    right[0][:] = [*(0.99 if i == diverging else 0.6 for i in range(2)), 0.9]
    fits = 0

    def fit_steps(*args: Any) -> None:
        nonlocal fits
        fits += 1
        if fits == diverging + 1:
            raise TrainingError("The loss is nan.")
        actual(*args)

    actual = training.fit_steps
    monkeypatch.setattr(training, "fit_steps", fit_steps)
    train(build_system(config(tmp_path)), tmp_path / "run")
    stored = read_json(tmp_path / "run" / "rehearsal.json")
    assert [tried["loss"] is None for tried in stored["tried"]] == [i == diverging for i in range(2)]
    fitted = read_json(tmp_path / "run" / "fitted.json")
    assert fitted["calibrated_lr"] == pytest.approx(RATES[best])
    assert fitted["calibrated_nll_1"] == pytest.approx(-math.log(0.6) / 2 - math.log(0.9) / 2)


@pytest.mark.parametrize(("of_half", "limit"), [
    (None, 0.8),  # as other versions stored it
    (0.2, 0.5),
    (0.9, 0.8),  # a fit that learned nothing sets no limit above what it predicted
])  # fmt: skip
def test_a_run_is_unstable_if_it_ends_above_the_middle_of_what_its_halves_reached(
    of_half: float | None, limit: float, tmp_path: Path
) -> None:
    """Two rows, each predicted at exp(-0.8): a temperature above 1 would only raise their NLL."""
    probability = math.exp(-0.8)
    others = math.log((1 - probability) / 2)
    log_probs = [[[-0.8 if i == right else others for i in range(3)]] for right in range(2)]
    rows = [{"id": str(i), "label": i, "log_probs": log_probs[i]} for i in range(2)]
    write_json(tmp_path / "rehearsal.json", {"seconds": 1.0, "steps": 8, "rows": rows, "own_nll": of_half})
    assert split_half.own_nlls(tmp_path) is None  # a copy without its log
    for above in (-0.01, 0.01):  # the last quarter counts
        losses = [9.0] * 6 + [limit + above - 0.1, limit + above + 0.1]
        write_jsonl(
            tmp_path / "train_log.jsonl", [{"step": i, "nll": nll} for i, nll in enumerate(losses, 1)]
        )
        assert split_half.own_nlls(tmp_path) == pytest.approx((limit + above, limit))
        assert split_half.is_unstable(tmp_path) is (above > 0)


@pytest.mark.parametrize(("predicted", "taken"), [((0.6, 0.7), 1), ((0.7, 0.6), 0)])
def test_the_fit_behind_the_predictions_is_the_one_whose_own_rows_count(
    tmp_path: Path,
    right: tuple[list[float], list[float]],
    monkeypatch: pytest.MonkeyPatch,
    predicted: tuple[float, float],
    taken: int,
) -> None:
    right[0][:] = [*predicted, 0.5]
    # Of the fits that are taken, and of the run.
    own, learnt = iter([0.1, 0.2, 0.3]), iter([1.1, *([1.2] if taken else []), 1.0])
    monkeypatch.setattr(training, "last_nll", lambda folder: next(own))
    monkeypatch.setattr(split_half, "learnt_nll", lambda system: next(learnt))
    monkeypatch.setattr(split_half, "is_unstable", lambda out: False)
    train(build_system(config(tmp_path)), tmp_path / "run")
    stored = read_json(tmp_path / "run" / "rehearsal.json")
    assert [tried["taken"] for tried in stored["tried"]] == [True, bool(taken)]
    assert (stored["own_nll"], stored["learnt_nll"]) == ((0.1, 1.1), (0.2, 1.2))[taken]


@pytest.mark.parametrize(("taken", "lowered"), [(0, True), (1, True), (2, False)])
def test_an_unstable_run_is_trained_once_more_at_the_next_lower_rate(
    tmp_path: Path,
    right: tuple[list[float], list[float]],
    monkeypatch: pytest.MonkeyPatch,
    taken: int,
    lowered: bool,
) -> None:
    """From its initial values: the run is the same as one that was given the lower rate."""
    # The lowest rate is tried only after a quarter of the steps.
    right[0][:] = [[0.6, 0.9, 0.5], [0.9, 0.6, 0.5], [0.6, 0.6, 0.9, 0.5]][taken]
    settings = {"train.may_shorten": True} if taken == 2 else {}
    monkeypatch.setattr(split_half, "is_unstable", lambda out: True)
    monkeypatch.setattr(training, "train_seconds", lambda folder: 5.0)  # of a fit
    monkeypatch.setattr(split_half, "train_seconds", lambda out: 100.0)  # of the calibration and the run
    system, seen = build_system(config(tmp_path, **settings)), list[int]()
    train(system, tmp_path / "run", on_step=lambda step, _: seen.append(step))
    assert seen == [*range(1, STEPS + 1)] * (1 + lowered)
    rate = RATES[taken + lowered]
    assert read_json(tmp_path / "run" / "fitted.json")["calibrated_lr"] == pytest.approx(rate)
    stored = read_json(tmp_path / "run" / "rehearsal.json")
    assert stored.get("lowered", False) is lowered
    assert stored["seconds"] == (100 if lowered else 5 * (len(stored["tried"]) + 1))
    given = {"train.find_lr": False, "train.lr": LR * split_half.RATES[taken + lowered]}
    same = build_system(config(tmp_path, **given, **{"adapter.calibrated": False}))
    train(same, tmp_path / "given")
    ours, theirs = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("run", "given"))
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())
    assert torch.equal(answers(load_system(tmp_path / "run")), answers(system))


@pytest.mark.parametrize(
    ("unstable", "rate", "named"), [(False, "0.03", "0.03, 0.01"), (True, "0.01", "0.03")]
)
def test_a_note_names_the_rate_of_the_run_and_the_others(
    tmp_path: Path,
    right: tuple[list[float], list[float]],
    monkeypatch: pytest.MonkeyPatch,
    unstable: bool,
    rate: str,
    named: str,
) -> None:
    right[0][:] = [0.6, 0.7, 0.5]
    monkeypatch.setattr(split_half, "is_unstable", lambda out: unstable)
    said: list[str] = []
    monkeypatch.setattr(running, "say", said.append)
    running.run(config(tmp_path), tmp_path / "run")
    (note,) = (line for line in said if "Note: trained" in line)
    assert rate in note.split(",")[0]
    assert named in note.split(",", 1)[1]
    assert ("unstable" in note) is unstable


def test_a_kill_while_an_unstable_run_is_trained_again_changes_nothing(
    tmp_path: Path, right: tuple[list[float], list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    right[0][:] = [0.6, 0.7, 0.5] * 2
    monkeypatch.setattr(split_half, "is_unstable", lambda out: True)
    whole = build_system(config(tmp_path))
    train(whole, tmp_path / "whole")
    steps = 0

    def kill(step: int, _: dict[str, float]) -> None:
        nonlocal steps
        steps += 1
        if steps == STEPS + 3:
            raise Interrupted

    with pytest.raises(Interrupted):
        train(build_system(config(tmp_path)), tmp_path / "cut", on_step=kill)
    again = build_system(config(tmp_path))
    train(again, tmp_path / "cut", resume=True)
    assert torch.equal(answers(again), answers(whole))


@pytest.mark.parametrize("again", [False, True])
def test_a_run_that_diverges_is_trained_once_more_at_the_next_lower_rate(
    tmp_path: Path, right: tuple[list[float], list[float]], monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    right[0][:] = [0.6, 0.7, 0.5]
    calls = 0

    def fit_steps(*args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 4 or (calls == 5 and again):  # after three fits of the calibration
            raise TrainingError("The loss is nan.")
        actual(*args)

    actual = training.fit_steps
    monkeypatch.setattr(training, "fit_steps", fit_steps)
    with pytest.raises(TrainingError, match="nan") if again else nullcontext():
        train(build_system(config(tmp_path)), tmp_path / "run")
    if not again:
        fitted = read_json(tmp_path / "run" / "fitted.json")
        assert fitted["calibrated_lr"] == pytest.approx(RATES[1])


def test_rates_of_another_version_and_rows_that_changed_are_tried_anew(
    tmp_path: Path, right: tuple[list[float], list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    right[0][:] = [0.9, 0.6, 0.7]

    def stop(step: int, _: dict[str, float]) -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        train(build_system(config(tmp_path)), tmp_path / "run", on_step=stop)
    system = build_system(config(tmp_path))
    assert split_half.next_fit(system, tmp_path / "run") is None
    with monkeypatch.context() as patch:
        patch.setattr(split_half, "RATES", (5.0, 1.6, 0.5))
        assert split_half.next_fit(system, tmp_path / "run") == (STEPS, 1, 0)
    write_rows(tmp_path / "rows.jsonl", [row | {"id": f"new {row['id']}"} for row in questions()])
    system = build_system(config(tmp_path))
    assert split_half.rates_tried(system, tmp_path / "run") == []
    assert split_half.next_fit(system, tmp_path / "run") == (STEPS, 1, 0)


@pytest.mark.parametrize(
    ("settings", "rows", "calibrated"),
    [
        ({"method": "blob"}, 5001, None),
        ({"method": "blob", "train.find_lr": True}, 5001, True),
        ({"method": "bara-gate", "train.find_lr": True}, 80, True),
    ],
)
def test_finding_the_rate_calibrates_any_method(
    settings: dict[str, object], rows: int, calibrated: bool | None
) -> None:
    found = for_rows(load_config(overrides={"task.name": "micro-wgs", **settings}), rows)
    assert found.adapter.calibrated is calibrated
    assert not (found.train.find_lr and found.train.may_double)


@pytest.mark.parametrize("settings", [{"adapter.calibrated": False}, {"train.may_double": True}])
def test_what_excludes_finding_the_rate_is_refused(settings: dict[str, object]) -> None:
    given = {"task.name": "micro-wgs", "train.find_lr": True, **settings}
    with pytest.raises(ConfigError, match=r"train\.find_lr=true"):
        for_rows(load_config(overrides=given), 80)


def test_a_search_on_too_few_rows_is_refused(tmp_path: Path) -> None:
    system = build_system(config(tmp_path, **{"adapter.calibrated": None, "task.limit": 19}))
    with pytest.raises(DataError, match=r"19 training rows .*train\.find_lr"):
        train(system, tmp_path / "run")


def test_the_bar_knows_of_all_fits() -> None:
    shown: list[tuple[int, int]] = []
    stages = running.Stages(
        HALF, STEPS, lambda **how: shown.append((how["completed"], how["total"])), lambda: STEPS, fits=3
    )
    for _ in range(3):
        for step in range(1, HALF + 1):
            stages.split_half(step, {"nll": 0.5})
    for step in range(1, STEPS + 1):
        stages.run(step, {"nll": 0.5})
    planned = 3 * HALF + STEPS
    assert shown == [(done, planned) for done in range(1, planned + 1)]
    for step in range(1, STEPS + 1):  # again at a lower rate
        stages.run(step, {"nll": 0.5})
    assert shown[planned:] == [(planned + step, planned + STEPS) for step in range(1, STEPS + 1)]
