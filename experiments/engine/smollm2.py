"""What studies of replies on SmolLM2 share: how it learns UltraFeedback's chosen replies."""

from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any

from bara_pyro.errors import ConfigError
from experiments.engine.reply_study import Look, run

TASK = "ultrafeedback"
RUNS = "runs/instructions"
STEPS = 60  # two epochs of the 118 replies of at most 256 tokens, prompt included
UPPER = r"model\.layers\.2[789]\..*_proj|lm_head"


def settings(method: str) -> Mapping[str, Any]:
    """Return a method's settings: its defaults, adapters in the upper three of 30 blocks and the head."""
    return {
        "adapter.target_modules": UPPER,
        "task.max_length": 256,
        "task.too_long": "drop",
    }


def run_on_smollm2(
    name: str,
    about: str | None,
    look: Callable[[Namespace], Look],
    *,
    replies: int,
    options: Mapping[str, Mapping[str, Any]],
) -> None:
    """Run a study of replies of SmolLM2; the trained models are shared by all of them.

    Args:
        name: of the study and of its results.
        about: what its command says of itself.
        look: arguments, with `model` and `data_dir` given -> what is looked at.
        replies: default of --replies, to a prompt.
        options: further arguments.
    """

    def checked(args: Namespace) -> Look:
        if args.model is None or args.data_dir is None:
            raise ConfigError(
                "Give --model and --data-dir: this study is of a real language model on real rows."
            )
        return look(args)

    run(name, about, TASK, checked, settings, steps=STEPS, replies=replies, runs=RUNS, options=options)
