"""An option that takes one value and is given two: refused by both, whichever command it is of."""

from typing import Any

import pytest
from app_cases import Bara, assert_one_sentence
from command_cases import COMMANDS, options_of

from bara_pyro.cli.app import UsageError


@pytest.mark.parametrize("name", COMMANDS)
def test_two_values_are_refused(name: str) -> None:
    for option in options_of(name):
        word = option.opts[0]
        typed = [f"{word}=one", f"{word}=two"]
        if option.is_flag:
            typed = [word, *option.secondary_opts]
        if option.multiple or len(typed) == 1:
            continue
        with pytest.raises(UsageError) as refused:
            parse(name, *typed)
        for given in typed:
            assert given.replace("=", " ") in str(refused.value)


def parse(name: str, *words: str) -> Any:
    return COMMANDS[name].make_context(name, list(words))


def test_the_same_value_again_and_what_can_be_repeated() -> None:
    params = parse(
        "train", "--lr", "1", "--lr", "1", "-q", "--quiet", "--samples", "1", "--samples", "2"
    ).params
    assert (params["lr"], params["quiet"], params["samples"]) == (1.0, True, [1, 2])


def test_it_is_one_sentence(bara: Bara) -> None:
    assert_one_sentence(bara("train", "micro-wgs", "--lr", 1, "--lr", 2), "--lr 1 and --lr 2", "train --help")
    assert_one_sentence(bara("train", "--calibrated", "--no-calibrated"), "--calibrated and --no-calibrated")
