"""What a user's process does once, done once for all tests: verify a language model, build the parser."""

from functools import cache
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase
from typer.main import get_command

from bara_pyro.cli import app
from bara_pyro.lm import verifying
from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.verifying import states_name

ABILITIES = ("verified", "tolerance", "last_apart", "continues", "takes_segments")
VERIFIED: dict[str, dict[str, Any]] = {}
RUN_WHOLE: set[str] = set()


def verify_once(backbone: Backbone) -> None:
    """Verify a language model, unless another with the same weights and configuration was verified before."""
    weights = backbone.lm.state_dict().values()
    plain = all(type(weight) is Tensor and not weight.is_meta for weight in weights)
    if backbone.verified or changed(backbone.lm) or not plain:
        verifying.verify_once(backbone)
        return
    sums = [float(weight.double().sum()) for weight in weights]
    tokenizer = backbone.tokenizer
    words = len(tokenizer) if isinstance(tokenizer, PreTrainedTokenizerBase) else None
    key = repr((type(backbone.lm), words, states_name(backbone, str(backbone.dtype)), backbone.device, sums))
    if key not in VERIFIED:
        verifying.verify_once(backbone)
        VERIFIED[key] = {name: getattr(backbone, name) for name in ABILITIES}
        if not backbone.states.layers:
            RUN_WHOLE.add(key)
    vars(backbone).update(VERIFIED[key])
    if key in RUN_WHOLE:
        backbone.states.layers = ()


def changed(lm: nn.Module) -> bool:
    """Return whether a test has changed what a language model computes."""
    return any(
        module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module)
        for module in lm.modules()
    )


@cache
def parser() -> Any:
    """Return what reads a line of `bara`."""
    return get_command(app.app)
