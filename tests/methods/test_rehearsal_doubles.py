"""A rehearsal that is not too sure of itself asks for twice the steps: once, and as if they were given."""

from pathlib import Path

import pytest
import torch
from app_cases import questions, write_rows
from fit_cases import Interrupted, answers, tiny_run
from safetensors.torch import load_file

from bara_pyro.cli import running
from bara_pyro.data import EncodedSplit
from bara_pyro.diagnostics.context import Options, look
from bara_pyro.diagnostics.inspection import run_facts
from bara_pyro.errors import DataError
from bara_pyro.runs import rehearsal
from bara_pyro.runs.config import RunConfig, load_config
from bara_pyro.runs.folder import load_system, stored_step
from bara_pyro.runs.store import read_json, read_jsonl
from bara_pyro.runs.system import System, build_system
from bara_pyro.runs.train import train

STEPS, HALF = 6, 3


def config(folder: Path, **settings: object) -> RunConfig:
    own = {"adapter.calibrated": True, "train.steps": STEPS, "train.may_double": True}
    return load_config(overrides={**own, **settings}, base=tiny_run(folder, {"name": "bara-gate"}))


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The probabilities of the right answer that rehearsals say, in turn; the last is said ever after."""
    told = [0.7]

    def draw(system: System, rows: EncodedSplit, samples: int) -> torch.Tensor:
        probability = told.pop(0) if len(told) > 1 else told[0]
        right = torch.full((len(rows),), probability)
        right[:4] = 1 - probability  # as sure of four wrong answers: 75 % of sixteen are right
        probs = torch.stack([right, 1 - right], -1)
        labels = torch.tensor(rows.labels)
        probs = torch.where((labels == 0)[:, None], probs, probs.flip(-1))
        return probs.double().log().expand(samples, -1, -1)

    monkeypatch.setattr(rehearsal, "draw", draw)
    return told


UNSURE, SURE = 0.6, 0.999


@pytest.mark.parametrize(
    ("told", "rehearsed", "steps"),
    [
        ([SURE], [HALF], STEPS),
        ([UNSURE], [HALF, STEPS], 2 * STEPS),  # once: not again where the second is unsure, too
        ([UNSURE, SURE], [HALF, STEPS], 2 * STEPS),
    ],
)
def test_a_run_is_as_long_as_its_rehearsal_says(
    tmp_path: Path, says: list[float], told: list[float], rehearsed: list[int], steps: int
) -> None:
    says[:] = told
    seen: list[int] = []
    system = build_system(config(tmp_path))
    train(system, tmp_path / "run", on_rehearsal=lambda step, _: seen.append(step))
    assert seen == [step for length in rehearsed for step in range(1, length + 1)]
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


@pytest.mark.parametrize("stage", ["rehearsal", "longer rehearsal", "run"])
def test_a_kill_changes_nothing(tmp_path: Path, says: list[float], stage: str) -> None:
    says[:] = [UNSURE]
    whole = build_system(config(tmp_path))
    train(whole, tmp_path / "whole")
    rehearsals = 0

    def in_rehearsal(step: int, _: dict[str, float]) -> None:
        nonlocal rehearsals
        rehearsals += step == 1
        if (stage, rehearsals, step) in (("rehearsal", 1, 3), ("longer rehearsal", 2, 3)):
            raise Interrupted

    def in_run(step: int, _: dict[str, float]) -> None:
        if (stage, step) == ("run", 2 * STEPS - 1):
            raise Interrupted

    with pytest.raises(Interrupted):
        train(build_system(config(tmp_path)), tmp_path / "cut", on_step=in_run, on_rehearsal=in_rehearsal)
    first: list[int] = []
    again = build_system(config(tmp_path))
    train(
        again,
        tmp_path / "cut",
        resume=True,
        on_rehearsal=lambda step, _: first.append(step),
        on_step=lambda step, _: first.append(100 + step),
    )
    # From the checkpoint after every second step of the stage that was cut off.
    assert first[0] == {"rehearsal": 3, "longer rehearsal": 3, "run": 111}[stage]
    assert torch.equal(answers(again), answers(whole))
    rows = [read_json(tmp_path / name / "rehearsal.json")["rows"] for name in ("whole", "cut")]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("changed", ["id", "question"])
def test_other_rows_are_noticed_when_a_longer_run_is_read_back(
    tmp_path: Path, says: list[float], changed: str
) -> None:
    says[:] = [UNSURE]
    train(build_system(config(tmp_path)), tmp_path / "run")
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
    started, now = running.resumed(tmp_path / "run", None, {}, [])
    assert started == now == config(tmp_path).model_copy(update={"method": started.method})
    assert running.run(now, tmp_path / "run", resume=True)["metrics"] == report["metrics"]


def test_the_bar_knows_what_is_ahead() -> None:
    shown: list[tuple[int, int]] = []
    stages = running.Stages(HALF, STEPS, lambda **how: shown.append((how["completed"], how["total"])))
    for length in (HALF, STEPS):
        for step in range(1, length + 1):
            stages.rehearsal(step, {"nll": 0.5})
    for step in range(1, 2 * STEPS + 1):
        stages.run(step, {"nll": 0.5})
    assert [done for done, _ in shown] == list(range(1, HALF + 3 * STEPS + 1))
    assert [total for _, total in shown] == [HALF + STEPS] * HALF + [HALF + 3 * STEPS] * 3 * STEPS
