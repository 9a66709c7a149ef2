"""`may_shorten`: a quarter of the steps is tried too, and taken if it predicts the other half better.

There are few rows, so the halves are turned around.
"""

import math
from pathlib import Path

import pytest
import torch
from fit_cases import Interrupted, answers, kills, tiny_run
from safetensors.torch import load_file

from bara_pyro.cli import running
from bara_pyro.data import EncodedSplit
from bara_pyro.errors import ConfigError
from bara_pyro.runs import split_half
from bara_pyro.runs.config import RunConfig, for_rows, load_config
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.stored import stored_step
from bara_pyro.runs.system import System, build_system
from bara_pyro.runs.train import train
from bara_pyro.untrusted.files import read_json

STEPS, SHORT, LR = 14, 4, 0.01  # a quarter of 14 is 3.5
HALF, SHORT_HALF = 7, 2


def config(folder: Path, **settings: object) -> RunConfig:
    own = {"adapter.calibrated": True, "train.find_lr": True, "train.may_shorten": True}
    given = {"train.steps": STEPS, "train.lr": LR, **own, **settings}
    return load_config(overrides=given, base=tiny_run(folder, {"name": "bara-gate"}))


@pytest.fixture
def right(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[float, int], float]:
    """Rate and steps of a fit -> the probability that it gives to the right answer; else 0.6."""
    probabilities: dict[tuple[float, int], float] = {}

    def draw(system: System, rows: EncodedSplit, samples: int) -> torch.Tensor:
        train = system.config.train
        known = {(round(lr, 6), steps): p for (lr, steps), p in probabilities.items()}
        p = known.get((round(train.peak_lr, 6), train.total_steps), 0.6)
        probs = torch.full((len(rows), 2), 1 - p, dtype=torch.float64)
        probs.scatter_(1, torch.tensor(rows.labels)[:, None], p)
        return probs.log().expand(samples, -1, -1)

    monkeypatch.setattr(split_half, "draw", draw)
    monkeypatch.setattr(split_half, "is_unstable", lambda out: False)
    return probabilities


@pytest.mark.parametrize(
    ("short", "steps"), [(0.61, SHORT), (0.6, STEPS), (0.5, STEPS)], ids=["better", "equal", "worse"]
)
def test_the_run_is_shorter_only_if_a_short_fit_predicts_better(
    tmp_path: Path, right: dict[tuple[float, int], float], short: float, steps: int
) -> None:
    """Otherwise a second rate is tried, which is no better. Then the halves turn."""
    right |= {(LR, SHORT_HALF): short, (3 * LR, HALF): 0.5}
    system, seen = build_system(config(tmp_path)), list[int]()
    ran: list[int] = []
    train(
        system,
        tmp_path / "run",
        on_split_half=lambda step, _: seen.append(step),
        on_step=lambda step, _: ran.append(step),
    )
    assert seen == [*range(1, HALF + 1), 1, 2, *([1, 2] if steps == SHORT else [*range(1, HALF + 1)] * 2)]
    assert ran == [*range(1, steps + 1)]
    assert stored_step(tmp_path / "run") == steps
    stored = read_json(tmp_path / "run" / "rehearsal.json")
    second = {0.61: [], 0.6: [0.3 * LR], 0.5: [3 * LR]}[short]
    assert [tried["lr"] for tried in stored["tried"]] == pytest.approx([LR, LR, *second])
    assert stored["tried"][1]["loss"] == pytest.approx(-math.log(short))
    assert [tried["taken"] for tried in stored["tried"][1:]] == ([True] if steps == SHORT else [False, False])
    taken = stored["rows"][0]["log_probs"][0][stored["rows"][0]["label"]]
    assert taken == pytest.approx(math.log(max(short, 0.6)))
    assert read_json(tmp_path / "run" / "fitted.json")["calibrated_steps"] == steps
    # The same run as one with that rate and length, but for the temperature, which is 1 here.
    given = {"train.find_lr": False, "train.may_shorten": None, "adapter.calibrated": False}
    same = build_system(config(tmp_path, **given, **{"train.steps": steps}))
    train(same, tmp_path / "given")
    ours, theirs = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("run", "given"))
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())
    assert torch.equal(answers(load_system(tmp_path / "run")), answers(system))


def test_a_lower_rate_may_be_better(tmp_path: Path, right: dict[tuple[float, int], float]) -> None:
    """It is tried if a quarter of the steps is no worse."""
    right[0.3 * LR, HALF] = 0.8
    train(build_system(config(tmp_path)), tmp_path / "run")
    stored = read_json(tmp_path / "run" / "rehearsal.json")
    assert [tried["taken"] for tried in stored["tried"]] == [True, False, True]
    assert read_json(tmp_path / "run" / "fitted.json")["calibrated_lr"] == pytest.approx(0.3 * LR)
    assert stored_step(tmp_path / "run") == STEPS


def test_a_length_that_must_stay_is_tried_with_many_rows(
    tmp_path: Path, right: dict[tuple[float, int], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says only that the rate should be lower."""
    monkeypatch.setattr(split_half, "turns", lambda system: False)
    right |= {(LR, SHORT_HALF): 0.9, (0.3 * LR, HALF): 0.8}
    train(build_system(config(tmp_path, **{"train.may_shorten": False})), tmp_path / "run")
    stored = read_json(tmp_path / "run" / "rehearsal.json")
    assert [tried["taken"] for tried in stored["tried"]] == [True, False, True]
    assert "turned" not in stored
    assert stored_step(tmp_path / "run") == STEPS


@pytest.mark.slow
def test_a_kill_changes_nothing(tmp_path: Path, right: dict[tuple[float, int], float]) -> None:
    right |= {(LR, SHORT_HALF): 0.9, (3 * LR, 2 * STEPS): 0.5}
    whole = build_system(config(tmp_path, **{"train.steps": 4 * STEPS}))
    train(whole, tmp_path / "whole")
    assert stored_step(tmp_path / "whole") == 4 * STEPS  # a fit of another length is not the short one
    right[LR, HALF] = 0.9  # now a quarter of these steps is
    whole = build_system(config(tmp_path, **{"train.steps": 4 * STEPS}))
    train(whole, tmp_path / "again")
    assert stored_step(tmp_path / "again") == STEPS
    fits = {"first fit": 1, "short fit": 2, "turned fit": 3}
    for stage in (*fits, "run"):
        out = tmp_path / stage
        one = config(tmp_path, **{"train.steps": 4 * STEPS})
        with pytest.raises(Interrupted):
            train(build_system(one), out, **kills(stage, fits, STEPS - 1))
        resumed = build_system(one)
        train(resumed, out, resume=True)
        assert torch.equal(answers(resumed), answers(whole)), stage


@pytest.mark.parametrize(
    ("settings", "shortens"),
    [
        ({}, True),
        ({"train.may_shorten": False}, False),
        ({"train.find_lr": True}, True),
        ({"train.find_lr": True, "train.steps": 400}, None),
        ({"train.find_lr": True, "train.epochs": 3}, None),
        ({"train.find_lr": True, "train.steps": 400, "train.may_shorten": True}, True),
        ({"train.lr": 1e-3}, None),
        ({"adapter.calibrated": False}, None),
        ({"method": "temperature"}, None),
    ],
)
def test_a_length_that_nobody_gives_may_be_shortened(
    settings: dict[str, object], shortens: bool | None
) -> None:
    config = load_config(overrides={"method": "bara-gate", "task.name": "micro-wgs", **settings})
    assert for_rows(config, 640).train.may_shorten is shortens
    given = settings.get("train.may_shorten")
    assert for_rows(config, 639).train.may_shorten is given  # with few rows the halves are turned instead


@pytest.mark.parametrize("settings", [{"train.lr": 1e-3}, {"adapter.calibrated": False}])
def test_shortening_without_a_search_is_refused(settings: dict[str, object]) -> None:
    given = {"task.name": "micro-wgs", "train.may_shorten": True, **settings}
    with pytest.raises(ConfigError, match=r"train\.may_shorten=true"):
        for_rows(load_config(overrides=given), 160)


def test_the_command_says_so(
    tmp_path: Path, right: dict[tuple[float, int], float], capsys: pytest.CaptureFixture[str]
) -> None:
    right[LR, SHORT_HALF] = 0.9
    running.run(config(tmp_path), tmp_path / "run")
    said = " ".join(capsys.readouterr().out.split())
    assert f"trained for {SHORT} steps, not {STEPS}" in said
    assert "--no-may-shorten" in said


def test_the_bar_ends_with_the_shorter_run() -> None:
    shown: list[tuple[int, int]] = []
    stages = running.Stages(
        HALF, STEPS, lambda **how: shown.append((how["completed"], how["total"])), lambda: SHORT, fits=4
    )
    for length in (HALF, SHORT_HALF, SHORT_HALF):
        for step in range(1, length + 1):
            stages.split_half(step, {"nll": 0.5})
    for step in range(1, SHORT + 1):
        stages.run(step, {"nll": 0.5})
    whole = HALF + 2 * SHORT_HALF + SHORT
    assert [done for done, _ in shown] == [*range(1, whole + 1)]
    assert shown[-1] == (whole, whole)
