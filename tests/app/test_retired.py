"""Settings that there are no more: a run that has their only value is read, and known by the same name."""

import pytest

from bara_pyro.errors import ConfigError
from bara_pyro.methods import METHODS
from bara_pyro.runs.assignments import setting_fields
from bara_pyro.runs.config import load_config, parse_config
from bara_pyro.runs.sections import check_settings
from bara_pyro.settings import RETIRED
from bara_pyro.types import Json

# Hashes under which results were stored when all of these were settings.
HASHES = {
    "bara": "7eef99d3c1b6",
    "bara-gate": "265b8c8642e7",
    "lora": "536ddde5c088",
    "adalora": "0ba92fb5c770",
    "blob": "55977d5a3f2f",
    "clora": "adc53fafa440",
    "fvae": "9d3f6c665737",
    "ivon": "3644ab950995",
    "laplace": "325554371d9c",
    "scalabl": "02f7ed4d4200",
    "tfb": "7dc4ab0e4c39",
    "vbll": "046d92d609f1",
    "polar_vbll": "2c310e084feb",
}


def stored(section: str, name: str, value: object) -> Json:
    """Return settings as a run has them, the retired one among them."""
    part, _, method = section.partition(".")
    return {part: {"name": method, name: value} if method else {name: value}}


def test_stored_results_keep_their_names() -> None:
    assert {method: load_config(overrides={"method": method}).hash for method in HASHES} == HASHES


@pytest.mark.parametrize("section", RETIRED)
def test_its_only_value_is_read_and_another_is_refused(section: str) -> None:
    _, _, method = section.partition(".")
    there = METHODS[method].config.model_fields if method else setting_fields()
    for name, constant in RETIRED[section].items():
        read = parse_config(stored(section, name, constant))
        assert read == parse_config({"method": {"name": method}} if method else {})
        with pytest.raises(ConfigError, match=rf"{name}='another'.*{constant}"):
            parse_config(stored(section, name, "another"))
        assert (name if method else f"{section}.{name}") not in there


def test_a_form_is_chosen_by_the_method_and_a_refusal_says_which() -> None:
    with pytest.raises(ConfigError, match="always 'additive' with the method 'bara'"):
        parse_config({"method": {"name": "bara", "form": "gate"}})


def test_it_is_refused_before_anything_slow() -> None:
    check_settings({"adapter": {"full_vocab": False}})
    with pytest.raises(ConfigError, match="full_vocab=True"):
        check_settings({"adapter": {"full_vocab": True}})
