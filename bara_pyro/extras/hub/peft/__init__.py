"""BaRA as a method of Hugging Face's PEFT; importing this module registers it.

import bara_pyro.peft
from peft import PeftModel, get_peft_model

model = PeftModel.from_pretrained(lm, RUN)                          # a run of bara or bara-gate
model = get_peft_model(lm, bara_pyro.peft.BaRAConfig(method="bara-gate", r=8))
model.sample(seed=0)                                                # one draw of the gates; None: means
"""

from bara_pyro.errors import ConfigError

try:
    import peft as _peft
    from peft.tuners.tuners_utils import BaseTuner as _BaseTuner
except ImportError as error:
    raise ConfigError(f"PEFT is missing ({error}): pip install 'bara-pyro[peft]'.") from error
if not hasattr(_BaseTuner, "_remap_adapter_state_dict_for_load"):
    # Older versions of PEFT save only the methods in a fixed list.
    raise ConfigError(
        f"PEFT {_peft.__version__} cannot save methods of other packages: pip install 'peft>=0.21'."
    )

from bara_pyro.extras.hub.peft.config import BaRAConfig
from bara_pyro.extras.hub.peft.model import BaRAModel, register

__all__ = ["BaRAConfig", "BaRAModel"]

register()
