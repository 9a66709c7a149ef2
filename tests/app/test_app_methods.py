"""The registry of methods, and what the methods cost in parameters."""

from dataclasses import replace

import pytest
from app_cases import Bara

from bara_pyro.errors import ConfigError
from bara_pyro.methods import METHODS, method_config, register_method
from bara_pyro.runs.config import load_config, parse_config


def test_a_name_is_taken_once() -> None:
    with pytest.raises(ConfigError, match="'lora' is already registered"):
        register_method(replace(METHODS["lora"], summary="another"))


def test_where_nobody_names_a_method_it_is_the_gate_form(bara: Bara) -> None:
    found = [load_config(), load_config(assignments=["method.beta_phi=0.5"]), parse_config({"method": {}})]
    assert {(config.method.name, config.method.form) for config in found} == {("bara-gate", "gate")}
    assert bara("params", "--model", "microworld").out == (
        bara("params", "--model", "microworld", "--method", "bara-gate").out
    )


def test_presets_and_settings() -> None:
    assert [method_config(name).form for name in ("bara", "bara-gate")] == ["additive", "gate"]
    with pytest.raises(ConfigError, match=r"'method\.foam': choose one of method\.name"):
        method_config({"name": "lora", "foam": "gate"})
    with pytest.raises(ConfigError, match=r"'lora' has no setting 'latent': .* has it \(bara, bara-"):
        method_config({"name": "lora", "latent": "phi"})


# Qwen2.5-7B: 28 layers of width d = 3584, values of width 512, 152064 tokens. Adapted: query, value, head.
D, KV, VOCABULARY, LAYERS, R = 3584, 512, 152_064, 28, 8
MODULES = 2 * LAYERS + 1
UP = LAYERS * R * (D + KV) + R * VOCABULARY  # B of every module: out_features x r
PHI = 2 * R * MODULES  # mean and noise level of each entry of Phi
EXPECTED = {
    "lora": MODULES * R * D + UP,
    "bara": MODULES * 2 * R * D + PHI + UP,  # theta's mean and noise level, 2r rows of width d
    "bara-gate": MODULES * 3 * R * D + PHI + UP,  # and LoRA's A, r rows
}


@pytest.mark.parametrize("method", EXPECTED)
def test_params_of_a_published_architecture(method: str, bara: Bara) -> None:
    result = bara("params", "--method", method, "--arch", "qwen2.5-7b")
    assert result.code == 0
    trainable = next(line for line in result.out.splitlines() if "trainable" in line)
    assert f"{EXPECTED[method]:,}" in trainable
    assert "57 modules" in result.out


def test_a_scalar_noise_level_gives_the_published_count_of_the_gate_form(bara: Bara) -> None:
    """17 rows of width d a module: A, theta's mean, and one row for its noise level."""
    result = bara(
        "params", "--method", "bara-gate", "--arch", "qwen2.5-7b", "--set", "method.shape_width=scalar"
    )
    assert f"{MODULES * 17 * D + MODULES * 2 * R + UP:,}" in result.out
