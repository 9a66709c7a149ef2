"""The command line of the experiments."""

import os
import signal

import pytest

from bara_pyro.errors import ConfigError, DataError
from experiments.engine.arguments import experiment_parser, run_settings, start, typed_settings
from experiments.engine.methods import studied


def test_defaults_are_made_for_the_microworld() -> None:
    args = experiment_parser("What it does.").parse_args([])
    assert args.methods == studied()
    assert args.tasks == ["micro-wgs", "micro-arce"]
    assert (typed_settings(args), run_settings(args, {})) == ({}, {"train.steps": 1000})
    assert (args.launcher, args.workers, args.retry_failed) == ("processes", 2, False)


@pytest.mark.parametrize("wrong", [["--methods", "lorra"], ["--seeds", "0"], ["--launcher", "slurm"]])
def test_a_wrong_argument_is_named(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        experiment_parser("What it does.").parse_args(wrong)
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


def test_a_terminated_experiment_says_what_it_keeps(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            print("kept")
            raise

    before = signal.signal(signal.SIGTERM, lambda *_: None)  # without it the tests would end here
    try:
        with pytest.raises(SystemExit) as ended:
            start(main)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (ended.value.code, capsys.readouterr().out) == (143, "kept\n")
