"""Silence libraries that log while they are imported."""

import logging

# transformers imports the first three if they are installed, and they log what they lack. lm-eval warns of
# settings that were chosen on purpose.
TALKATIVE = ("torchao", "bitsandbytes", "torch.utils._pytree", "lm_eval")


def hush_libraries() -> None:
    """Let other libraries log only errors. Commands call this; importing the package does not."""
    for library in TALKATIVE:
        logging.getLogger(library).setLevel(logging.ERROR)
