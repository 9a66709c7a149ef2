"""Programs with a temperature: p(y) = softmax(z / T), z the scores of the answers (Guo et al., ICML 2017)."""

from typing import Any, Unpack

from bara_pyro.core.backbone import Backbone
from bara_pyro.core.program import AdaptedLM, AdapterOptions
from bara_pyro.errors import ConfigError
from bara_pyro.models.ensemble import Ensemble
from bara_pyro.models.lora import LoRA


class Tempered(AdaptedLM):
    """A program whose answers' scores are divided by T: logits of tokens, or log-probabilities of texts.

    `T = exp(log_temperature)` is positive whatever the parameter, and no temperature changes which answer is
    the most probable under one set of weights. The parameter is frozen at T = 1, where the program is what it
    was bit for bit, while the adapters are trained, and fitted afterwards.

    Raises:
        ConfigError: the likelihood is of no closed set of answers, or `calibrated` asks for a second one.
    """

    prunable = False  # the temperature belongs to the units that it was fitted with
    tempered = True

    def __init__(self, backbone: Backbone, num_data: int, *args: Any, **options: Any) -> None:
        if options.get("calibrated"):
            raise ConfigError(
                "calibrated=True (adapter.calibrated) asks for a temperature, and a method that is about "
                "temperatures fits one of its own: leave it out."
            )
        super().__init__(backbone, num_data, *args, **{**options, "calibrated": True})


class TemperedLoRA(Tempered, LoRA):
    """Maximum-likelihood LoRA with a temperature."""

    # Settings are read off the signature, which Tempered's does not tell.
    def __init__(self, backbone: Backbone, num_data: int, **adapter: Unpack[AdapterOptions]) -> None:
        super().__init__(backbone, num_data, **adapter)


class TemperedEnsemble(Tempered, Ensemble):
    """An ensemble whose members have one temperature in common.

    Args:
        backbone, num_data, members, **adapter: of `Ensemble`.
    """

    def __init__(
        self, backbone: Backbone, num_data: int, *, members: int = 3, **adapter: Unpack[AdapterOptions]
    ) -> None:
        super().__init__(backbone, num_data, members=members, **adapter)
