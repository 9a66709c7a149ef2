"""Libraries that speak of themselves while they are imported."""

import logging

# Where these are installed, transformers imports them, and they say what they would like to have; lm-eval
# warns of what was asked for.
TALKATIVE = ("torchao", "bitsandbytes", "torch.utils._pytree", "lm_eval")


def hush_libraries() -> None:
    """Let other libraries log errors only; for commands, not for whoever imports this package."""
    for library in TALKATIVE:
        logging.getLogger(library).setLevel(logging.ERROR)
