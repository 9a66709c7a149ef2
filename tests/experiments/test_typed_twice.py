"""An option of a study or its commands that takes one value and is given two: refused by both."""

from argparse import Action, ArgumentParser
from importlib import import_module

import pytest

from experiments.__main__ import COMMANDS
from experiments.page.spec import find_study, study_names


class Parsed(Exception):
    """Where a command would begin."""


def parser_of(name: str, monkeypatch: pytest.MonkeyPatch) -> ArgumentParser:
    """Return the parser of a command."""

    def stop(parser: ArgumentParser, *_: object) -> None:
        raise Parsed(parser)

    monkeypatch.setattr("sys.argv", [name])
    main = import_module(COMMANDS[name]).main if name in COMMANDS else find_study(name).main
    with monkeypatch.context() as patched:
        patched.setattr(ArgumentParser, "parse_args", stop)
        with pytest.raises(Parsed) as parsed:
            main()
    return parsed.value.args[0]


def two_values(option: Action) -> list[str]:
    """Return what can be typed for an option, twice."""
    if option.choices is not None:
        return [str(choice) for choice in option.choices][:2]
    return ["2.5", "3.5"] if option.type is float else ["2", "3"]


@pytest.mark.parametrize("name", [*COMMANDS, *study_names()])
def test_two_values_are_refused(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = parser_of(name, monkeypatch)
    for option in parser._actions:
        option.required = False
    for option in parser._actions:
        if option.nargs == 0 or not option.option_strings or option.dest == "assignments":
            continue
        word = option.option_strings[0]
        one, other = two_values(option)
        with pytest.raises(SystemExit):
            parser.parse_args([word, one, word, other])
        assert f"{word} {one} and {word} {other} contradict" in capsys.readouterr().err
        given = parser.parse_args([word, one, word, one])
        assert option.dest in given.typed
