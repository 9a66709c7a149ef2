"""BaRA as a method of Hugging Face's PEFT; importing this module makes it known to PEFT.

import bara_pyro.peft
from peft import PeftModel, get_peft_model

model = PeftModel.from_pretrained(lm, RUN)                          # a run of bara or bara-gate
model = get_peft_model(lm, bara_pyro.peft.BaRAConfig(method="bara-gate", r=8))
model.sample(seed=0)                                                # one draw of the gates; None: means
"""

try:
    import peft as _peft  # noqa: F401 - only whether it is there
except ImportError as error:
    from bara_pyro.errors import ConfigError

    raise ConfigError(f"PEFT is missing ({error}): pip install 'bara-pyro[peft]'.") from error

from bara_pyro.peft.config import BaRAConfig
from bara_pyro.peft.model import BaRAModel, register

__all__ = ["BaRAConfig", "BaRAModel"]

register()
