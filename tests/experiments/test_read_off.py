"""What is read off runs is kept, and read again where a place has another run now."""

from argparse import Namespace
from pathlib import Path

import pytest

from experiments.engine import run as program
from experiments.engine.results import read_results
from experiments.engine.sweep import Job

PLACES = [("lora", 0), ("lora", 1)]


@pytest.mark.parametrize("by_hash", [False, True])
def test_a_place_is_looked_at_once_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_hash: bool
) -> None:
    hashes, looked = {place: f"first{place[1]}" for place in PLACES}, []
    monkeypatch.setattr(
        program, "finished_runs", lambda jobs, args: {place: {"config_hash": hashes[place]} for place in jobs}
    )
    monkeypatch.setattr(program, "load_system", lambda folder: folder.name)
    args = Namespace(runs=tmp_path, out=tmp_path)

    def look(run: str, args: Namespace) -> dict[str, str]:
        looked.append(run)
        return {"said": run}

    def read() -> dict[int, tuple[str, str]]:
        jobs = {place: Job({}) for place in PLACES}
        program.read_off("found", jobs, ("method", "seed"), look, {}, args, by_hash=by_hash)
        entries = read_results("found", args.out).entries.values()
        return {entry["seed"]: (entry["hash"], entry["said"]) for entry in entries}

    assert read() == read() == {0: ("first0", "first0"), 1: ("first1", "first1")}
    assert looked == ["first0", "first1"]
    hashes["lora", 1] = "second1"  # of other settings
    assert read() == {0: ("first0", "first0"), 1: ("second1", "second1")}
    assert looked == ["first0", "first1", "second1"]
