"""What studies of replies in the microworld share: settings that were chosen, and a tax on its questions."""

from argparse import Namespace
from collections.abc import Callable
from functools import partial

from experiments.engine.alignment_tax import questions_tax
from experiments.engine.arguments import positive
from experiments.engine.reply_study import Look, run
from experiments.engine.sampled import NUMBERS, Sampling
from experiments.engine.search import CHOICES_REPLIES, chosen

OPTIONS = {
    "--rows": {
        "type": positive,
        "default": 300,
        "help": "test rows of each task of questions; default: %(default)s",
    }
}


def run_in_microworld(name: str, about: str | None, task: str, asked: Callable[[], Sampling]) -> None:
    """Run a study of replies in the microworld.

    Args:
        name: of the study and of its results.
        about: what its command says of itself.
        task: that is learnt.
        asked: gives the test prompts and the score of replies to them.
    """

    def look(args: Namespace) -> Look:
        return Look(asked(), questions_tax(args.rows), {"rows": args.rows})

    settings = partial(chosen, path=CHOICES_REPLIES)
    run(name, about, task, look, settings, steps=400, replies=max(NUMBERS), options=OPTIONS)
