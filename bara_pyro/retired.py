"""Retired settings: stored runs may have them with their constant value; other values are refused."""

from collections.abc import Mapping

from bara_pyro.errors import ConfigError
from bara_pyro.types import Json

RETIRED: dict[str, Json] = {
    "adapter": {"full_vocab": False},
    "method.adalora": {
        "mask_interval": 10,
        "beta1": 0.85,
        "beta2": 0.85,
        "init_r": None,
        "t_init": 0.1,
        "t_final": 0.5,
    },
    "method.bara": {"form": "additive", "top_k": 4},
    "method.bara-gate": {"form": "gate", "top_k": 4},
    "method.blob": {"transform": "square", "kl_lr": 0.01, "init_scale": 0.05, "flipout": True},
    "method.clora": {
        "hidden": 64,
        "kl_lr": 0.01,
        "init_scale": 0.25,
        "kl_weight": 1e-6 / 65,
        "nll_weight": 1.0,
    },
    "method.fvae": {
        "encoder_width": None,
        "decoder_width": 128,
        "z2_mean": 1.5,
        "ce_weight": 1000.0,
        "rec_weight": 1.0,
        "z2_weight": 1.0,
        "z1_weight": 1.0,
        "kl_weight": 1.0,
        "decoder_layers": 3,
        "learn_scale": True,
        "padding": True,
        "detach": False,
    },
    "method.ivon": {
        "beta1": 0.9,
        "beta2": 0.99999,
        "rescale_lr": False,
        "hess_init": 0.001,
        "clip_radius": 0.001,
    },
    "method.laplace": {
        "logit_samples": 5000,
        "base": "mle",
        "prior_scale": 0.4,
        "predictive": "glm",
        "optimiser": "bisection",
        "max_gigabytes": 16.0,
        "batch_size": 8,
    },
    "method.polar_vbll": {"bound": "jensen", "max_gigabytes": 8.0},
    "method.scalabl": {"kl_lr": 0.2, "init_scale": 0.05},
    "method.tfb": {
        "anchor": "train",
        "flipout": True,
        "nll_floor": 0.1,
        "anchor_rows": 500,
        "pseudo_labels": False,
        "search_samples": 10,
        "low": 0.001,
        "halvings": 5,
    },
    "method.vbll": {"bound": "jensen", "max_gigabytes": 8.0},
    "train": {"process_timeout": 600.0},
}
"""Section or method -> retired settings with the values that are now constants of the code.

They still count in the hash of a configuration, so that stored results keep their names, except settings that
never counted (`runs.config.WITHOUT_EFFECT`).
"""


def without_retired(section: str, given: Mapping[str, object]) -> Json:
    """Return the settings of a section or of a method without retired ones.

    Raises:
        ConfigError: a retired setting differs from its constant.
    """
    constants = RETIRED.get(section, {})
    for name, constant in constants.items():
        if name in given and given[name] != constant:
            part, _, method = section.partition(".")
            raise ConfigError(
                f"{part}.{name}={given[name]!r} is no longer a setting: it is always {constant!r}"
                f"{f' with the method {method!r}' if method else ''}, so leave it out."
            )
    return {name: value for name, value in given.items() if name not in constants}


def with_retired(dumped: Json) -> Json:
    """Return a dumped configuration with the constants of its retired settings added."""
    method = dumped["method"]
    complete = {name: RETIRED.get(name, {}) | part for name, part in dumped.items() if isinstance(part, dict)}
    complete["method"] = RETIRED.get(f"method.{method['name']}", {}) | method
    return dumped | complete
