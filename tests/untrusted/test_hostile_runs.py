"""Whatever a run's files say, reading them ends in an answer or in a sentence, and touches nothing else."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from hostile import GONE, VALUES, Opened, Place, sign, spoilt, spoilt_checkpoint, targets

import bara_pyro as bp
from bara_pyro.diagnostics.paired.evaluated import read_group
from bara_pyro.diagnostics.parts.scores import stored_scores
from bara_pyro.errors import BaraError, CheckpointError
from bara_pyro.extras.hub.upload import prepare_upload
from bara_pyro.lm.backbone import Backbone
from bara_pyro.runs.manifest import CHECKPOINT, CONFIG, LOG, MANIFEST, METRICS, PEFT_CONFIG, PREDICTIONS
from bara_pyro.runs.steps import train_seconds
from bara_pyro.runs.store import read_tensors, write_tensors
from bara_pyro.runs.stored import resumed, stored_config, stored_step
from bara_pyro.runs.system import build_system
from bara_pyro.runs.train import train

SECONDS = 60  # after which a reader hangs; the slowest takes a hundredth
QUESTION = [{"id": "one", "question": "is the fox red ?"}]


@pytest.fixture(scope="session")
def backbone(place: Any) -> Backbone:
    return bp.load_backbone(place.backbone)


@pytest.fixture(scope="session")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a run to be spoilt, beside what is none of its business."""
    root = tmp_path_factory.mktemp("yard")
    (root / "outside").mkdir()
    (root / "outside" / "secret").write_text("secret")
    os.mkfifo(root / "outside" / "pipe")
    return root


@contextmanager
def guarded() -> Iterator[None]:
    """End what hangs."""

    def end(*_: object) -> None:
        pytest.fail(f"a reader takes more than {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def readers(run: Path, name: str, backbone: Backbone, out: Path) -> list[Callable[[], object]]:
    def answers() -> None:
        system = bp.load_system(run, backbone=backbone, with_rows=False)
        for samples in (0, 2):
            bp.predict(system, QUESTION, samples=samples)

    found: list[Callable[[], object]] = [
        answers,
        lambda: read_group(run),
        lambda: stored_scores(run, "0" * 12),
        lambda: stored_step(run),
        lambda: train_seconds(run),
    ]
    if name in (CONFIG, MANIFEST):
        found.append(lambda: bp.load_system(run, backbone=backbone))  # with its rows
    if name in (METRICS, PREDICTIONS, PEFT_CONFIG):
        found.append(lambda: prepare_upload(run, "somebody/run", out, base="somebody/model"))
    return found


def outside(opened: Opened, yard: Path) -> list[str]:
    """Return what was opened beside the run."""
    return [path for path in opened.paths if os.path.abspath(path).startswith(str(yard / "outside"))]


def read_all(run: Path, name: str, backbone: Backbone, yard: Path) -> list[str]:
    """Read a run in every way; return what is said of it."""
    said = []
    with guarded(), Opened() as opened:
        for read in readers(run, name, backbone, yard / "upload"):
            try:
                read()
            except BaraError as error:
                said.append(str(error))
    assert not outside(opened, yard)
    return said


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.lstat().st_size, path.lstat().st_mtime_ns) for path in sorted(folder.rglob("*"))}


def trials(run: Path, yard: Path, *names: str) -> Iterator[tuple[str, Place, Any]]:
    """Yield each place of each file once, with one value after the other."""
    values = cycle([*VALUES, str(yard / "outside" / "new"), str(yard / "outside" / "pipe")])
    for (name, where), new in zip(targets(run, names) if names else targets(run), values, strict=False):
        yield name, where, {} if new == GONE and where == () else new


@pytest.mark.slow
def test_a_changed_field_is_read_or_refused(finished: Path, backbone: Backbone, yard: Path) -> None:
    before = snapshot(yard / "outside")
    for name, where, new in trials(finished, yard):
        with telling(name, where, new):
            run = spoilt(finished, yard / "run", name, where, new)
            said = read_all(run, name, backbone, yard)
            assert snapshot(yard / "outside") == before
            assert all(len(sentence) <= 2_000 for sentence in said)


@contextmanager
def telling(*what: object) -> Iterator[None]:
    """Say of an error what was tried."""
    try:
        yield
    except BaseException as error:
        error.add_note(str(what)[:300])
        raise


def go_on(run: Path, backbone: Backbone, yard: Path) -> str:
    """Go on with a run; return what is said of it."""
    said = ""
    with guarded(), Opened() as opened:
        try:
            _, config = resumed(run, None, {}, [])
            # What a stranger may ask for are many steps: that they end is not the matter.
            if config.train.total_steps <= 100:
                train(build_system(config, backbone), run, resume=True)
        except BaraError as error:
            said = str(error)
    assert not outside(opened, yard)
    return said


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 12])
def test_a_changed_checkpoint_is_gone_on_with_or_refused(
    every: int, stopped: Path, backbone: Backbone, yard: Path
) -> None:
    before = snapshot(yard / "outside")
    for name, where, new in list(trials(stopped, yard, CONFIG, LOG, CHECKPOINT))[::every]:
        with telling(name, where, new):
            run = spoilt_checkpoint(stopped, yard / "stopped", name, where, new)
            assert len(go_on(run, backbone, yard)) <= 2_000
            assert snapshot(yard / "outside") == before


SPOILT = {
    "a row of another": lambda value: value.flatten()[:1] if value.dim() else value,
    "a row less": lambda value: value[1:] if value.dim() else value,
    "whole numbers": lambda value: value.long(),
    "not finite": lambda value: value + float("inf"),
    "before the first step": lambda value: value if value.dim() else value - 10,
}


@pytest.mark.parametrize("how", SPOILT)
def test_what_an_optimiser_kept_of_other_parameters_is_refused(
    how: str, stopped: Path, backbone: Backbone, tmp_path: Path
) -> None:
    run = shutil.copytree(stopped, tmp_path / "run")
    tensors, metadata = read_tensors(run / CHECKPOINT)
    own = [name for name in tensors if name.startswith("optim/")]
    if not own:
        pytest.skip("this optimiser keeps its state beside its settings")
    tensors |= {name: SPOILT[how](tensors[name]) for name in own}
    write_tensors(run / CHECKPOINT, tensors, metadata)
    system = build_system(stored_config(run)[0], backbone)
    with pytest.raises(CheckpointError, match="is damaged"):
        train(system, run, resume=True)
    sign(run)
    with pytest.raises(CheckpointError, match="does not fit the optimiser"):
        train(system, run, resume=True)
