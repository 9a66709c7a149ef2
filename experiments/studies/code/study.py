"""pass@k, diversity and alignment tax where programs are written that fit three examples (the microworld).

    python -m experiments code --seeds 3

A program passes if it gives the right output for every input, hidden ones included; the microworld's own
interpreter runs it. Settings are those that `python -m experiments search` chose on validation replies.
"""

from collections.abc import Sequence

from bara_pyro.microworld.code import solves
from bara_pyro.microworld.replies import CODE, code_problems
from experiments.engine.replies import Sampling
from experiments.page.replies import microworld_study


def asked() -> Sampling:
    """Return the problems of the test split, and whether a program solves each."""
    problems = [problem for problem, _ in code_problems("test")]

    def score(place: int, replies: Sequence[str]) -> list[float]:
        return [float(solves(problems[place], reply)) for reply in replies]

    return Sampling([problem.text for problem in problems], score)


STUDY = microworld_study("code", __doc__, "Do posterior draws solve more programming problems?", CODE, asked)
