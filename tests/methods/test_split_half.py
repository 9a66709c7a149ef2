"""Split-half calibration: a temperature from fits on both halves of the training rows."""

import json
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fit_cases import Interrupted, answers, assert_runs_come_back, tiny_run
from safetensors.torch import load_file
from scipy.special import log_softmax, logsumexp
from torch.testing import assert_close

import bara_pyro as bp
from bara_pyro.core.svi import SVI
from bara_pyro.data.clusters import halves
from bara_pyro.errors import BaraError, DataError, Stopped, TrainingError
from bara_pyro.posthoc.corrections import require_temperature
from bara_pyro.posthoc.temperature import SPREAD, best_common_log_temperature
from bara_pyro.runs import split_half
from bara_pyro.runs import train as training
from bara_pyro.runs.config import RunConfig, load_config
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.ownership import clear
from bara_pyro.runs.split_half import DRAWS, HalfFit, fit_split_half, learnt_nll, split_half_system
from bara_pyro.runs.steps import train_seconds
from bara_pyro.runs.system import System, build_system
from bara_pyro.runs.train import train
from bara_pyro.untrusted.files import read_json, read_jsonl

STEPS = 9
METHODS = ("bara-gate", "lora", "mc_dropout", "laplace")


def calibrated(folder: Path, method: str = "bara-gate", **settings: object) -> RunConfig:
    own = {"adapter.calibrated": True, "train.steps": STEPS, **settings}
    return load_config(overrides=own, base=tiny_run(folder, {"name": method}))


@dataclass
class Whole:
    """A run that nothing stopped, and what it answers; it is only read."""

    system: System
    out: Path
    answers: torch.Tensor


@pytest.fixture(scope="module")
def whole_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Whole]:
    """The run of a method, trained when it is first asked for."""

    @cache
    def trained(method: str) -> Whole:
        folder = tmp_path_factory.mktemp(method)
        system = build_system(calibrated(folder, method))
        train(system, folder / "whole")
        return Whole(system, folder / "whole", answers(system))

    return trained


def test_halves_share_no_row_and_leave_none_out() -> None:
    rows = 81
    learnt, asked = halves([""] * rows, 3)
    assert len(asked) == rows // 2
    assert sorted(learnt + asked) == list(range(rows))
    assert (learnt, asked) == halves([""] * rows, 3) != halves([""] * rows, 4)
    assert (learnt, asked) == halves([f"row {i}" for i in range(rows)], 3)


@pytest.mark.parametrize("seed", range(6))
def test_the_division_is_the_nearest_to_half(seed: int) -> None:
    """Against all subsets of groups of unlike size."""
    sizes = np.random.default_rng(seed).integers(1, 12, size=8).tolist()
    clusters = [f"c{group}" for group, size in enumerate(sizes) for _ in range(size)]
    learnt, asked = halves(clusters, seed)
    sums = [sum(part) for count in range(1, 9) for part in combinations(sizes, count)]
    assert len(learnt) == min(total for total in sums if 2 * total >= len(clusters))
    assert not {clusters[row] for row in learnt} & {clusters[row] for row in asked}


def test_a_fit_to_half_has_as_many_passes_as_its_run(tmp_path: Path) -> None:
    """Of 32 rows 21 are of one cluster: it learns these, for 21/32 of the steps; halves of rows for half."""
    steps = 801
    task = build_system(calibrated(tmp_path)).task
    rows = [replace(row, cluster="one" if i < 21 else "") for i, row in enumerate(task.train)]
    uneven = build_system(calibrated(tmp_path), task=replace(task, train=rows))
    half, asked = split_half_system(uneven, HalfFit(steps))
    assert (len(half.split("train")), len(asked)) == (21, 11)
    assert half.config.train.total_steps == math.ceil(steps * 21 / 32)
    half, asked = split_half_system(build_system(calibrated(tmp_path)), HalfFit(steps))
    assert (len(half.split("train")), len(asked)) == (16, 16)
    assert half.config.train.total_steps == math.ceil(steps / 2)


@pytest.mark.parametrize(("alone", "on"), [(9, False), (10, True)])
def test_too_few_rows_to_hold_out_turn_calibration_off(tmp_path: Path, alone: int, on: bool) -> None:
    """A note if it is the default; an error before training if the user set it."""
    default = calibrated(tmp_path, **{"train.steps": 4}).updated("adapter", calibrated=None)
    task = build_system(calibrated(tmp_path)).task
    rows = [replace(row, cluster="one" if i >= alone else "") for i, row in enumerate(task.train)]
    task = replace(task, train=rows, notes=())
    system = build_system(default, task=task)
    assert bool(system.config.adapter.calibrated) is on
    said = [note for note in system.task.notes if "split-half" in note]
    assert [f"only {alone} can be held out" in note for note in said] == [not on]
    train(system, tmp_path / "default")
    assert (tmp_path / "default" / "rehearsal.json").exists() is on
    asked_for = build_system(calibrated(tmp_path), task=task)
    with nullcontext() if on else pytest.raises(DataError, match=r"only 9 of 32 .* needs 10"):
        train(asked_for, tmp_path / "run")
    assert (tmp_path / "run").exists() is on
    if on:  # 10 rows are too few to learn what predicts the other 22
        assert "turned" not in read_json(tmp_path / "run" / "rehearsal.json")


@pytest.mark.parametrize("order", [1, -1])
def test_a_text_of_two_clusters_joins_them(tmp_path: Path, order: int) -> None:
    """The text stands in both, and so all rows of both lie on one side, whatever the text's case is."""
    task = build_system(calibrated(tmp_path)).task
    rows = [replace(row, cluster=f"c{i // 2}") for i, row in enumerate(task.train)]
    for i in range(0, 32, 4):  # c0 and c1 share a text, c2 and c3 ...
        rows[i + 2] = replace(rows[i + 2], question=rows[i].question.upper(), context=rows[i].context)
    system = build_system(calibrated(tmp_path), task=replace(task, train=rows[::order]))
    half, asked = split_half_system(system, HalfFit(STEPS))
    four = {row.id: i // 4 for i, row in enumerate(rows)}
    ours, theirs = ({four[row] for row in part.ids} for part in (half.split("train"), asked))
    assert not ours & theirs
    assert len(asked) == 16


def test_rows_of_one_cluster_alone_are_rows() -> None:
    assert halves(["a"] * 40, 2) == halves([""] * 40, 2)


@pytest.mark.parametrize("shared", ["cluster", "context", "text"])
def test_rows_that_share_something_lie_on_one_side(tmp_path: Path, shared: str) -> None:
    """A cluster of their own, a passage, or the whole text: in this order."""
    task = build_system(calibrated(tmp_path)).task
    pairs = [
        replace(
            row,
            cluster=f"c{i // 2}" if shared == "cluster" else "",
            context="" if shared == "text" else f"passage {i // 2 if shared == 'context' else i % 4}",
            question=f"is the fox red ? {i // 2 if shared == 'text' else i}\nAnswer:",
        )
        for i, row in enumerate(task.train)
    ]
    system = build_system(calibrated(tmp_path), task=replace(task, train=tuple(pairs)))
    half, asked = split_half_system(system, HalfFit(STEPS))
    pair = {row.id: i // 2 for i, row in enumerate(pairs)}
    ours, theirs = ([pair[row] for row in part.ids] for part in (half.split("train"), asked))
    assert not set(ours) & set(theirs)
    assert sorted(ours + theirs) == sorted(pair.values())
    assert len(theirs) == len(pairs) // 2


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.slow
def test_a_run_comes_back_whenever_it_is_killed(tmp_path: Path, method: str) -> None:
    assert_runs_come_back(calibrated(tmp_path, method), tmp_path)
    whole, cut = (read_json(tmp_path / name / "rehearsal.json") for name in ("whole", "cut"))
    assert whole["rows"] == cut["rows"]
    assert len(whole["rows"]) == 16
    assert not (tmp_path / "whole" / ".rehearsal").exists()


def test_a_run_that_is_killed_in_its_calibration_goes_on(
    tmp_path: Path, whole_of: Callable[[str], Whole]
) -> None:
    config, steps = calibrated(tmp_path), list[int]()

    def killed(step: int, _: dict[str, float]) -> None:
        if step == 3:
            raise Interrupted

    with pytest.raises(Interrupted):
        train(build_system(config), tmp_path / "cut", on_split_half=killed)
    again = build_system(config)
    train(again, tmp_path / "cut", resume=True, on_split_half=lambda step, _: steps.append(step))
    assert steps == [3, 4, 5, 1, 2, 3, 4, 5]  # from the checkpoint after step 2; then the halves are turned
    assert torch.equal(answers(again), whole_of("bara-gate").answers)


@pytest.mark.parametrize("fit", [1, 2])
@pytest.mark.parametrize("place", ["discard", "half discard", "write_json"])
def test_a_run_that_is_killed_after_a_fit_goes_on(
    tmp_path: Path,
    whole_of: Callable[[str], Whole],
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    fit: int,
) -> None:
    """Before or while the files of the fit are removed, or before its result is written."""
    config, calls, whole = calibrated(tmp_path), 0, whole_of("bara-gate")

    def killed(*args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == fit:
            if place == "half discard":
                (args[0] / "adapter_model.safetensors").unlink()
            raise Interrupted
        actual(*args)

    with monkeypatch.context() as patch:
        actual = getattr(training, name := place.removeprefix("half "))
        patch.setattr(training, name, killed)
        with pytest.raises(Interrupted):
            train(build_system(config), tmp_path / "cut")
    again = build_system(config)
    train(again, tmp_path / "cut", resume=True)
    assert torch.equal(answers(again), whole.answers)
    stored = [read_json(out / "rehearsal.json") for out in (whole.out, tmp_path / "cut")]
    assert all(stored[0][rows] == stored[1][rows] for rows in ("rows", "turned"))
    assert not (tmp_path / "cut" / ".rehearsal").exists()


def train_by_settings(
    system: System, out: Path, **callbacks: Callable[[int, dict[str, float]], None]
) -> None:
    c = system.config
    given = {"task": c.task.name, "method": c.method.name, "model": c.backbone.name, "steps": STEPS}
    bp.train(out=out, calibrated=True, limit=32, **given, **callbacks)


@pytest.mark.parametrize("train_with", [train, train_by_settings])
def test_the_old_name_of_on_split_half_works_with_a_warning(
    tmp_path: Path, train_with: Callable[..., object]
) -> None:
    """It is called in the first fit; the run itself does not begin."""

    def killed(step: int, _: dict[str, float]) -> None:
        raise Interrupted

    system, out = build_system(calibrated(tmp_path)), tmp_path / "run"
    message = "on_rehearsal is now on_split_half: the old name goes with the next version"
    with pytest.warns(DeprecationWarning, match=message) as said, pytest.raises(Interrupted):
        train_with(system, out, on_rehearsal=killed)
    assert [one.filename for one in said if message in str(one.message)] == [__file__]
    assert (out / ".rehearsal" / "train_log.jsonl").exists()
    assert not (out / "train_log.jsonl").exists()


def test_a_signal_in_calibration_names_the_run(tmp_path: Path) -> None:
    import signal

    def stop(step: int, _: dict[str, float]) -> None:
        if step == 2:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Stopped, match=r"Stopped during split-half calibration .*run: continue with") as told:
        train(build_system(calibrated(tmp_path)), tmp_path / "run", on_split_half=stop)
    assert ".rehearsal" not in str(told.value)
    assert ". " not in str(told.value)


def test_a_loss_that_breaks_in_calibration_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is not trained then; another one in the folder starts anew."""

    def broken(*_: object) -> float:
        raise TrainingError("The loss is nan (KL of phi): lower the learning rate.")

    config, out = calibrated(tmp_path), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(SVI, "step", broken)
        with pytest.raises(TrainingError, match=r"calibration stopped at step 1, .*: the loss") as told:
            train(build_system(config), out)
    assert ". " not in str(told.value)
    assert not (out / "adapter_model.safetensors").exists()
    clear(out)
    train(build_system(config), out)
    assert not (out / ".rehearsal").exists()
    assert (out / "fitted.json").exists()


@pytest.mark.parametrize("method", ["bara-gate", "laplace"])
def test_nothing_but_the_temperature_differs_from_a_run_without(
    tmp_path: Path, whole_of: Callable[[str], Whole], method: str
) -> None:
    train(build_system(calibrated(tmp_path, method, **{"adapter.calibrated": False})), tmp_path / "without")
    for file in ("adapter_model.safetensors", "guide.safetensors"):
        ours, theirs = (load_file(out / file) for out in (whole_of(method).out, tmp_path / "without"))
        assert {key for key in ours if key not in theirs} <= {"log_temperature"}
        for key, value in theirs.items():
            assert torch.equal(ours[key], value), key


@pytest.mark.parametrize(
    ("method", "kept_as"), [("bara-gate", "rows"), ("bara-gate", "turned"), ("mc_dropout", "turned")]
)
def test_what_is_kept_is_what_a_run_on_half_of_the_rows_says(
    tmp_path: Path, whole_of: Callable[[str], Whole], method: str, kept_as: str
) -> None:
    whole = whole_of(method)
    system = whole.system
    rows = system.task.train
    learnt, asked = halves([row.question for row in rows], system.config.seed)
    if kept_as == "turned":
        learnt, asked = asked, learnt
    half = replace(
        system.task, train=tuple(rows[i] for i in learnt), test=tuple(rows[i] for i in asked), notes=()
    )
    alone = build_system(
        calibrated(tmp_path, method, **{"adapter.calibrated": False, "train.steps": math.ceil(STEPS / 2)}),
        task=half,
    )
    train(alone, tmp_path / "half")
    kept = read_json(whole.out / "rehearsal.json")[kept_as]
    assert [row["id"] for row in kept] == [row.id for row in half.test]
    assert [row["label"] for row in kept] == list(alone.split("test").labels)
    there = torch.tensor([row["log_probs"] for row in kept], dtype=torch.float64).transpose(0, 1)
    assert_close(there, draw(alone, alone.split("test"), DRAWS), rtol=0, atol=1e-9)


def test_the_temperature_is_the_most_probable_one(tmp_path: Path) -> None:
    system = build_system(calibrated(tmp_path, **{"train.lr": 0.05, "train.steps": 40}))
    train(system, tmp_path / "run")
    fitted = json.loads((tmp_path / "run" / "fitted.json").read_text())
    stored = read_json(tmp_path / "run" / "rehearsal.json")
    rows = stored["rows"] + stored["turned"]
    assert {row["id"] for row in rows} == {row.id for row in system.task.train}
    draws = np.array([row["log_probs"] for row in rows]).transpose(1, 0, 2)
    labels = np.array([row["label"] for row in rows])

    def nll_at(log_temperature: float) -> float:
        """In scipy."""
        members = log_softmax(draws / math.exp(log_temperature), axis=-1)
        mean = logsumexp(members, axis=0) - math.log(len(draws))
        return -mean[np.arange(len(labels)), labels].mean()

    def loss(log_temperature: float) -> float:
        """Minus ln of the posterior density, without constants, a row."""
        return nll_at(log_temperature) + log_temperature**2 / (2 * SPREAD**2 * len(labels))

    best = math.log(fitted["calibrated_halves_temperature"])
    assert fitted["calibrated_rows"] == len(rows)
    assert fitted["calibrated_nll_1"] == pytest.approx(nll_at(0.0), rel=1e-9)
    assert fitted["calibrated_nll_temperature"] == pytest.approx(nll_at(best), rel=1e-9)
    assert loss(best) <= min(loss(t) for t in np.linspace(-4.6, 4.6, 921)) + 1e-6
    assert best > 0.01
    again = load_system(tmp_path / "run")
    test, own = again.split("test"), again.split("train")
    warm = draw(again, test, 3)
    require_temperature(again.corrections).set(0.0)
    # 1.5 for each nat by which the run fits its own rows better than the half did.
    learnt = logsumexp(draw(again, own, DRAWS).numpy(), axis=0) - math.log(DRAWS)
    better = stored["learnt_nll"] + learnt[np.arange(len(own)), own.labels].mean()
    best += 1.5 * better
    assert 0.001 < abs(1.5 * better) < math.log(2)
    # The run that is read back divides by it, and nothing else has changed.
    assert math.log(fitted["calibrated_temperature"]) == pytest.approx(best, rel=1e-6)
    plain = draw(again, test, 3)
    assert_close(warm, (plain / math.exp(best)).log_softmax(-1), rtol=0, atol=1e-5)
    assert (warm - plain).abs().max() > 1e-3


@pytest.mark.parametrize("surer", [False, True])
def test_split_half_calibration_never_makes_a_run_surer(tmp_path: Path, surer: bool) -> None:
    """Half-sure and always right, as of rows that it knows already, its answers ask for T below 1."""
    system = build_system(calibrated(tmp_path))
    out = tmp_path / "run"
    out.mkdir()
    right = [0.8 if surer or row % 2 else 0.01 for row in range(40)]
    told = [
        {"id": f"{i}", "label": 0, "log_probs": np.log([[p, 1 - p]]).tolist()} for i, p in enumerate(right)
    ]
    (out / "rehearsal.json").write_text(json.dumps({"steps": 1, "seconds": 1.0, "rows": told}))
    fitted = fit_split_half(system, out)
    draws = torch.tensor([row["log_probs"] for row in told], dtype=torch.float64).transpose(0, 1)
    found = best_common_log_temperature(draws, torch.zeros(40, dtype=torch.long), spread=SPREAD)
    assert (found < -0.1) is surer
    assert fitted["temperature"] == pytest.approx(1.0 if surer else math.exp(found), rel=1e-12)
    assert math.log(require_temperature(system.corrections).value) == pytest.approx(
        math.log(fitted["temperature"])
    )


@pytest.mark.parametrize(
    ("of_half", "of_run", "wrong", "factor"),
    [
        (0.5, 0.3, 20, math.exp(0.3)),
        (0.3, 0.4, 20, math.exp(-0.15)),
        (1, 0, 20, 2),
        (0, 1, 20, 0.5),
        (0, 1, 4, 0),
    ],
)
def test_a_run_that_fits_its_own_rows_better_gets_a_higher_temperature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_half: float, of_run: float, wrong: int, factor: float
) -> None:
    """At most twice or half of that of the halves, and never below 1."""
    system = build_system(calibrated(tmp_path))
    right = [0.01] * wrong + [0.99] * (60 - wrong)
    told = [
        {"id": f"{i}", "label": 0, "log_probs": np.log([[p, 1 - p]]).tolist()} for i, p in enumerate(right)
    ]
    (tmp_path / "rehearsal.json").write_text(
        json.dumps({"steps": 1, "seconds": 1.0, "rows": told, "learnt_nll": of_half})
    )
    monkeypatch.setattr(split_half, "learnt_nll", lambda of: of_run)
    fitted = fit_split_half(system, tmp_path)
    assert fitted["halves_temperature"] > 1.1
    wanted = max(1.0, factor * fitted["halves_temperature"])
    assert fitted["temperature"] == pytest.approx(wanted, rel=1e-12)


def test_how_well_a_run_fits_its_own_rows_does_not_depend_on_its_temperature(
    whole_of: Callable[[str], Whole],
) -> None:
    again = load_system(whole_of("bara-gate").out)
    found = []
    for log_temperature in (0.0, 1.0):
        require_temperature(again.corrections).set(log_temperature)
        found.append(learnt_nll(again))
    assert found[0] == found[1] > 0


def test_the_time_of_calibration_counts(whole_of: Callable[[str], Whole]) -> None:
    out = whole_of("bara-gate").out
    own = read_jsonl(out / "train_log.jsonl")[-1]["seconds"]
    second = read_json(out / "rehearsal.json")["seconds"]
    assert second > 0
    assert train_seconds(out) == pytest.approx(own + second, abs=1e-3)


def too_few(folder: Path) -> System:
    rows = build_system(calibrated(folder)).task
    return build_system(calibrated(folder), task=replace(rows, train=rows.train[:19]))


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (too_few, "19 training rows are too few for split-half calibration .* give at least 20"),
        (
            lambda folder: build_system(calibrated(folder, "temperature", **{"task.validation_rows": 8})),
            "fits its own",
        ),
    ],
)
def test_what_could_not_be_calibrated_is_refused_before_training(
    tmp_path: Path, made: Callable[[Path], System], says: str
) -> None:
    with pytest.raises(BaraError, match=says) as error:
        train(made(tmp_path), tmp_path / "run")
    assert ". " not in str(error.value)
    assert not (tmp_path / "run").exists()
