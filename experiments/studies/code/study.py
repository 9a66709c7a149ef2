"""pass@k, diversity and alignment tax where programs are written that fit three examples (the microworld).

    python -m experiments code --seeds 3

A program passes if it gives the right output for every input, hidden ones included; the microworld's own
interpreter runs it. Settings are those that `python -m experiments search` chose on validation replies.
"""

from argparse import Namespace
from collections.abc import Sequence
from functools import partial

from bara_pyro.microworld.code import solves
from bara_pyro.microworld.replies import CODE, code_problems
from experiments.engine.alignment_tax import ROWS, questions_tax
from experiments.engine.reply_study import Look, run
from experiments.engine.sampled import NUMBERS, Sampling
from experiments.engine.search import CHOICES_REPLIES, chosen
from experiments.page.sampled import QUESTION, parts
from experiments.page.spec import entry_study


def asked() -> Sampling:
    """Return the problems of the test split, and whether a program solves each."""
    problems = [problem for problem, _ in code_problems("test")]

    def score(place: int, replies: Sequence[str]) -> list[float]:
        return [float(solves(problems[place], reply)) for reply in replies]

    return Sampling([problem.text for problem in problems], score)


def look(args: Namespace) -> Look:
    """Return what is looked at: the replies' scores, and questions of the microworld."""
    return Look(asked(), questions_tax(args.rows), {"rows": args.rows})


def main() -> None:
    """Run the study."""
    settings = partial(chosen, path=CHOICES_REPLIES)
    run("code", __doc__, CODE, look, settings, steps=400, replies=max(NUMBERS), options=ROWS)


STUDY = entry_study("Code: pass@k, diversity, tax", QUESTION, main, parts, order=41)
