"""Split-half calibration doubles the steps of an underconfident run: once, and as if they were given."""

import math
from pathlib import Path

import pytest
import torch
from app_cases import questions, write_rows
from fit_cases import Interrupted, answers, kills, tiny_run
from safetensors.torch import load_file
from torch.testing import assert_close

from bara_pyro.cli import running
from bara_pyro.data import EncodedSplit
from bara_pyro.diagnostics.context import Options, look
from bara_pyro.diagnostics.inspection import run_facts
from bara_pyro.errors import DataError
from bara_pyro.posthoc.temperature import score_of_log_temperature, too_unsure
from bara_pyro.runs import split_half
from bara_pyro.runs.config import RunConfig, load_config
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.stored import resumed, stored_step
from bara_pyro.runs.system import System, build_system
from bara_pyro.runs.train import train
from bara_pyro.untrusted.files import read_json, read_jsonl

STEPS, HALF = 6, 3


def config(folder: Path, **settings: object) -> RunConfig:
    own = {"adapter.calibrated": True, "train.steps": STEPS, "train.may_double": True}
    return load_config(overrides={**own, **settings}, base=tiny_run(folder, {"name": "bara-gate"}))


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The probabilities of the right answer that fits say, in turn; the last is said ever after."""
    told = [0.7]

    def draw(system: System, rows: EncodedSplit, samples: int) -> torch.Tensor:
        probability = told.pop(0) if len(told) > 1 else told[0]
        right = torch.full((len(rows),), probability)
        right[:1] = 1 - probability  # as sure of a wrong answer: fifteen of sixteen are right
        probs = torch.stack([right, 1 - right], -1)
        labels = torch.tensor(rows.labels)
        probs = torch.where((labels == 0)[:, None], probs, probs.flip(-1))
        return probs.double().log().expand(samples, -1, -1)

    monkeypatch.setattr(split_half, "draw", draw)
    monkeypatch.setattr(split_half, "learnt_nll", lambda system: 0.0)
    return told


UNSURE, SURE = 0.6, 0.999


def says_calibrated(rows: int, classes: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ten draws of predictions, and labels that come of their average."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.tensor([rows, classes])
    common = 1.5 * torch.randn(*size, generator=generator, dtype=torch.float64)
    own = 0.7 * torch.randn(10, *size, generator=generator, dtype=torch.float64)
    draws = (common + own).log_softmax(-1)
    labels = torch.multinomial(draws.exp().mean(0), 1, generator=generator).squeeze(1)
    return draws, labels


@pytest.mark.parametrize(
    ("rows", "repetitions", "classes"), [(1, 300, 2), (8, 500, 4), (40, 500, 2), (300, 500, 4)]
)
def test_a_calibrated_fit_seldom_asks_for_more(rows: int, repetitions: int, classes: int) -> None:
    """A level of 5 percent, with three standard errors of so many repetitions."""
    asked = sum(too_unsure(*says_calibrated(rows, classes, seed)) for seed in range(repetitions))
    assert asked / repetitions <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / repetitions)


@pytest.mark.parametrize(("rows", "least"), [(40, 0.8), (300, 1.0)])
def test_a_fit_that_has_learnt_too_little_asks_for_more(rows: int, least: float) -> None:
    """Predictions at three times the temperature that their labels come of."""
    asked = 0
    for seed in range(50):
        draws, labels = says_calibrated(rows, 4, seed)
        asked += too_unsure((draws / 3).log_softmax(-1), labels)
    assert asked / 50 >= least


@pytest.mark.parametrize(("right", "unsure"), [(240, False), (251, False), (252, True), (300, True)])
def test_the_margin_is_one_sided_five_percent(right: int, unsure: bool) -> None:
    """Of 300 answers with probability .8: (right - 240) / sqrt(48) is 1.588 for 251, 1.732 for 252."""
    draws = torch.tensor([0.8, 0.2], dtype=torch.float64).log().expand(1, 300, 2)
    labels = (torch.arange(300) >= right).long()
    assert too_unsure(draws, labels) is unsure


def test_the_score_of_a_temperature_is_the_slope_of_the_likelihood() -> None:
    """Against differences of the log-likelihood and of the predictions; a row does not offer one answer."""
    draws, labels = says_calibrated(6, 4, 0)
    draws[:, 0, 3] = -math.inf
    labels[0] = 1
    draws = draws.log_softmax(-1)
    step = 1e-5

    def average(log_temperature: float) -> torch.Tensor:
        return (draws / math.exp(log_temperature)).softmax(-1).mean(0)

    slope = (average(step) - average(-step)) / (2 * step)
    score, variance = score_of_log_temperature(draws, labels)
    own = average(0.0).gather(1, labels[:, None])[:, 0]
    assert_close(score, -slope.gather(1, labels[:, None])[:, 0] / own, rtol=1e-6, atol=1e-8)
    assert_close(variance, (slope.square() / average(0.0)).nan_to_num().sum(-1), rtol=1e-6, atol=1e-8)


def test_no_row_says_anything_of_equal_answers() -> None:
    assert not too_unsure(torch.zeros(1, 40, 4), torch.zeros(40, dtype=torch.long))


def test_copies_of_a_row_are_no_more_evidence_than_it_is() -> None:
    draws = torch.tensor([0.8, 0.2], dtype=torch.float64).log().expand(1, 40, 2)
    right = torch.zeros(40, dtype=torch.long)
    assert too_unsure(draws, right)
    for texts in (4, 8, 10, 20):
        copies = [list(range(start, 40, texts)) for start in range(texts)]
        assert too_unsure(draws, right, copies) is too_unsure(draws[:, :texts], right[:texts]) is (texts > 10)


@pytest.mark.parametrize(
    ("told", "fits", "steps"),
    [
        ([SURE], [HALF, HALF], STEPS),
        ([UNSURE], [HALF, STEPS, STEPS], 2 * STEPS),  # once: not again where the second is unsure, too
        ([UNSURE, SURE], [HALF, STEPS, STEPS], 2 * STEPS),
    ],
)
def test_a_run_is_as_long_as_its_calibration_says(
    tmp_path: Path, says: list[float], told: list[float], fits: list[int], steps: int
) -> None:
    says[:] = told
    seen: list[int] = []
    system = build_system(config(tmp_path))
    train(system, tmp_path / "run", on_split_half=lambda step, _: seen.append(step))
    assert seen == [step for length in fits for step in range(1, length + 1)]
    log = read_jsonl(tmp_path / "run" / "train_log.jsonl")
    assert log[-1]["step"] == stored_step(tmp_path / "run") == steps
    fitted = read_json(tmp_path / "run" / "fitted.json")
    assert fitted["calibrated_steps"] == steps
    assert (fitted["calibrated_temperature"] > 1) is (told[-1] == SURE)
    assert not (tmp_path / "run" / ".rehearsal").exists()
    says[:] = [told[-1]]
    given = build_system(config(tmp_path, **{"train.steps": steps, "train.may_double": None}))
    train(given, tmp_path / "given")
    ours, theirs = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("run", "given"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert torch.equal(answers(system), answers(given))
    # What a page of diagnostics says of the run is what was done.
    again = load_system(tmp_path / "run")
    assert run_facts(look(tmp_path / "run", again, Options(), None)).steps == steps
    # A finished run is only read back.
    train(
        build_system(config(tmp_path)),
        tmp_path / "run",
        resume=True,
        on_step=lambda *_: pytest.fail("trained"),
    )


@pytest.mark.slow
def test_a_kill_changes_nothing(tmp_path: Path, says: list[float]) -> None:
    says[:] = [UNSURE]
    whole = build_system(config(tmp_path))
    train(whole, tmp_path / "whole")
    # Where each goes on: from the checkpoint after every second step of the stage that was cut off.
    for stage, start in {"fit": 3, "longer fit": 3, "run": 111}.items():
        out, steps = tmp_path / stage, list[int]()
        with pytest.raises(Interrupted):
            train(
                build_system(config(tmp_path)),
                out,
                **kills(stage, {"fit": 1, "longer fit": 2}, 2 * STEPS - 1),
            )
        again = build_system(config(tmp_path))
        train(
            again,
            out,
            resume=True,
            on_split_half=lambda step, _, steps=steps: steps.append(step),
            on_step=lambda step, _, steps=steps: steps.append(100 + step),
        )
        assert steps[0] == start, stage
        assert torch.equal(answers(again), answers(whole)), stage
        rows = [read_json(folder / "rehearsal.json")["rows"] for folder in (tmp_path / "whole", out)]
        assert rows[0] == rows[1], stage


def test_other_rows_are_noticed_when_a_longer_run_is_read_back(tmp_path: Path, says: list[float]) -> None:
    says[:] = [UNSURE]
    train(build_system(config(tmp_path)), tmp_path / "run")
    for changed in ("id", "question"):
        others = [row | {changed: f"the {row[changed]}"} for row in questions()]
        write_rows(tmp_path / "rows.jsonl", others)
        with pytest.raises(DataError, match="has changed since the run was trained"):
            train(build_system(config(tmp_path)), tmp_path / "run", resume=True)
        assert stored_step(tmp_path / "run") == 2 * STEPS


def test_the_command_says_so_and_goes_on(
    tmp_path: Path, says: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    says[:] = [UNSURE]
    report = running.run(config(tmp_path), tmp_path / "run")
    assert "trained for 12 steps, twice as many as planned" in capsys.readouterr().out
    started, now = resumed(tmp_path / "run", None, {}, [])
    assert started == now == config(tmp_path).model_copy(update={"method": started.method})
    assert running.run(now, tmp_path / "run", resume=True)["metrics"] == report["metrics"]


@pytest.mark.parametrize("fits", [1, 2])  # of one half, or of both
def test_the_bar_knows_what_is_ahead(fits: int) -> None:
    """Of the longer fit from its first step that was not planned."""
    shown: list[tuple[int, int]] = []
    stages = running.Stages(
        HALF,
        STEPS,
        lambda **how: shown.append((how["completed"], how["total"])),
        lambda: 2 * STEPS,
        fits=fits,
    )
    for length in (HALF, *[STEPS] * fits):
        for step in range(1, length + 1):
            stages.split_half(step, {"nll": 0.5})
    for step in range(1, 2 * STEPS + 1):
        stages.run(step, {"nll": 0.5})
    whole = HALF + (fits + 2) * STEPS
    assert [done for done, _ in shown] == list(range(1, whole + 1))
    planned = fits * HALF + STEPS
    assert [total for _, total in shown] == [planned] * 2 * HALF + [whole] * (whole - 2 * HALF)
    assert stages.steps == 2 * STEPS
