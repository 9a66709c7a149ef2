"""Run untrusted Python programs in isolation and test them so that they cannot forge the result."""

from bara_pyro.extras.replies.sandbox.humaneval import Judged, Problem, judge, load_humaneval, truncate
from bara_pyro.extras.replies.sandbox.limits import Limits
from bara_pyro.extras.replies.sandbox.processes import Finished
from bara_pyro.extras.replies.sandbox.trial import Outcome, check_isolation, run_program, try_function

__all__ = [
    "Finished",
    "Judged",
    "Limits",
    "Outcome",
    "Problem",
    "check_isolation",
    "judge",
    "load_humaneval",
    "run_program",
    "truncate",
    "try_function",
]
