"""The command line of the experiments, and what a sweep shows while it runs."""

import pytest
from rich.console import Console

from bara_pyro.errors import ConfigError, DataError
from experiments.engine.arguments import (
    experiment_parser,
    run_settings,
    start,
    sweep_options,
    typed_settings,
)
from experiments.engine.methods import searched
from experiments.engine.sweep import Board


def test_defaults_are_made_for_the_microworld() -> None:
    args = experiment_parser("What it does.", runs="runs/it").parse_args([])
    assert args.methods == searched()
    assert args.tasks == ["micro-wgs", "micro-arce"]
    assert (typed_settings(args), run_settings(args, {})) == ({}, {"train.steps": 1000})
    assert sweep_options(args) == {
        "launcher": "processes",
        "workers": 2,
        "retry_failed": False,
        "strict": False,
        "reuse": None,
    }


@pytest.mark.parametrize("wrong", [["--methods", "lorra"], ["--seeds", "0"], ["--launcher", "slurm"]])
def test_a_wrong_argument_is_named(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        experiment_parser("What it does.", runs="runs/it").parse_args(wrong)
    assert ended.value.code == 2
    assert wrong[1] in capsys.readouterr().err


@pytest.mark.parametrize(("error", "code"), [(ConfigError("No such thing."), 2), (DataError("Empty."), 1)])
def test_a_mistake_is_one_sentence(error: Exception, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> None:
        raise error

    with pytest.raises(SystemExit) as ended:
        start(main)
    assert ended.value.code == code
    assert capsys.readouterr().err == f"Error: {error}\n"


def test_the_live_picture_counts_and_shows_what_runs_and_what_is_done() -> None:
    console = Console(force_terminal=True, width=100, record=True)
    with Board(done=3, failed=1, left=4, console=console) as board:
        for label in ("one", "two", "three"):
            board.started(label)
        board.finished("one", {"metrics": {"0": {}, "10": {"acc": 71.2, "ece": 4.0, "nll": None}}}, [])
        board.finished("two", {"failed": "It broke."}, ["two: It broke."])
        shown = Console(width=100, record=True)
        shown.print(board.render())
    text = shown.export_text()
    assert "4 done, 2 failed, 1 running, 1 left" in text
    assert "  three" in text
    assert "71.2" in text
    assert "failed: two" in text
    assert "about" in text
