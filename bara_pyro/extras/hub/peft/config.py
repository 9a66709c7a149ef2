"""The settings of a BaRA adapter, as PEFT keeps them in `adapter_config.json`."""

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
from bara_pyro.runs.peft_files import PEFT_TYPE
from bara_pyro.settings import DEFAULT_METHOD, validation_sentence
from bara_pyro.types import Json, default
from bara_pyro.untrusted.patterns import matching
from bara_pyro.untrusted.schemas import AdapterSizes

# A member of an enumeration as PEFT's own are: a text with a `.value`, its name the same, so that it is found
# in a table under the plain text.
BaRAType = Enum("BaRAType", {PEFT_TYPE: PEFT_TYPE}, type=str)  # type: ignore[misc]  # named by PEFT's name
TYPE: str = cast(Any, BaRAType)[PEFT_TYPE]


@dataclass
class BaRAConfig(PeftConfig):
    """Settings of BaRA for PEFT.

    Args:
        r: rank.
        lora_alpha: the change is scaled by `lora_alpha / r`.
        target_modules: names, a regular expression or "all-linear", as PEFT matches them; by default the
            query, value and output projections of the architecture, as everywhere in bara_pyro.
        rank_pattern: path of a module -> its rank where that is less than r (a pruned run).
        method: "bara-gate" (the default), "bara", or a name and settings, `{"name": "bara-gate",
            "init_kappa": 0.3}`.
        backbone_fingerprint: of the language model that a run was trained on; None: not known.

    Raises:
        ConfigError: a method other than BaRA, a setting that it does not have, or a size out of range.
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
            raise ConfigError(f"PEFT has no modules for the method {settings.name!r}: choose {known}.")
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
        """The settings of the method, checked."""
        return cast(BaRAMethodConfig, method_config(self.method))
