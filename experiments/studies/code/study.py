"""pass@k, diversity and alignment tax where programs are written that fit three examples (the microworld).

    python -m experiments code --seeds 3

A program passes if it gives the right output for every input, hidden ones included; the microworld's own
interpreter runs it. Settings are those that `python -m experiments search` chose on validation replies.
"""

from collections.abc import Sequence

from bara_pyro.microworld.code import solves
from bara_pyro.microworld.replies import CODE, code_problems
from experiments.engine.reply_study import run
from experiments.engine.sampled import Score
from experiments.page.sampled import QUESTION, parts
from experiments.page.spec import entry_study


def asked() -> tuple[Sequence[str], Score]:
    """Return the problems of the test split, and whether a program solves each."""
    problems = [problem for problem, _ in code_problems("test")]
    return [problem.text for problem in problems], lambda i, reply: float(solves(problems[i], reply))


def main() -> None:
    """Run the study."""
    run("code", __doc__, CODE, asked)


STUDY = entry_study("Code: pass@k, diversity, tax", QUESTION, main, parts, order=41)
