"""The settings of a BaRA adapter, which PEFT stores in `adapter_config.json`."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, cast

from peft import PeftConfig
from pydantic import ValidationError

from bara_pyro.core.program import AdaptedLM
from bara_pyro.errors import ConfigError
from bara_pyro.lm.targets import check_rank
from bara_pyro.methods import METHODS, method_config
from bara_pyro.methods.bara import BaRAMethodConfig
from bara_pyro.runs.writing import PEFT_TYPE
from bara_pyro.settings import DEFAULT_METHOD, validation_sentence
from bara_pyro.types import Json, default
from bara_pyro.untrusted.patterns import matching
from bara_pyro.untrusted.schemas import AdapterSizes

# Like a member of PEFT's own enumeration: a string with a `.value`, so that PEFT's tables find it under the
# plain string.
BaRAType = Enum("BaRAType", {PEFT_TYPE: PEFT_TYPE}, type=str)  # type: ignore[misc]  # named by PEFT's name
TYPE: str = cast(Any, BaRAType)[PEFT_TYPE]


@dataclass
class BaRAConfig(PeftConfig):
    """Settings of BaRA for PEFT.

    Args:
        r: rank.
        lora_alpha: the change is scaled by `lora_alpha / r`.
        target_modules: names, a regular expression or "all-linear", matched as in PEFT; by default the
            architecture's query and value projections and its output embedding.
        rank_pattern: path of a module -> its rank, for modules with a rank below r.
        method: "bara-gate" (the default), "bara", or a name with settings, for example `{"name": "bara-gate",
            "init_kappa": 0.3}`.
        backbone_fingerprint: fingerprint of the language model that the run was trained on; None if unknown.

    Raises:
        ConfigError: the method is not BaRA, has no such setting, or a size is out of range.
    """

    r: int = field(default=default(AdaptedLM, "r"))
    lora_alpha: float = field(default=default(AdaptedLM, "lora_alpha"))
    target_modules: list[str] | set[str] | str | None = None
    rank_pattern: dict[str, int] = field(default_factory=dict)
    method: str | Json = DEFAULT_METHOD
    backbone_fingerprint: str | None = None

    def __post_init__(self) -> None:
        """Check the settings and fill in the defaults of the method."""
        super().__post_init__()
        self.peft_type = TYPE
        if isinstance(self.target_modules, list):
            self.target_modules = set(self.target_modules)
        self._check_sizes()
        settings = method_config(self.method)
        if not isinstance(settings, BaRAMethodConfig):
            usable = METHODS.usable()
            known = ", ".join(name for name, method in usable if issubclass(method.config, BaRAMethodConfig))
            raise ConfigError(f"PEFT cannot build the method {settings.name!r}: choose {known}.")
        self.method = settings.model_dump(mode="json")

    def _check_sizes(self) -> None:
        try:
            AdapterSizes(r=self.r, lora_alpha=self.lora_alpha, rank_pattern=self.rank_pattern or {})
        except ValidationError as error:
            raise ConfigError(validation_sentence(error, AdapterSizes)) from error
        for path, rank in (self.rank_pattern or {}).items():
            check_rank(path, rank, self.r)
        if isinstance(self.target_modules, str):
            try:
                matching(self.target_modules, ())
            except ValueError as error:
                raise ConfigError(
                    f"target_modules={self.target_modules!r} is not a valid regular expression: {error}."
                ) from error

    @property
    def settings(self) -> BaRAMethodConfig:
        """The validated settings of the method."""
        return cast(BaRAMethodConfig, method_config(self.method))
