"""pass@k of a real language model that learnt to follow instructions, on HumanEval.

    python -m experiments humaneval --model runs/smollm2 --data-dir FOLDER --seeds 3

The models are those of the study `instructions`, trained once for both. Completions of the first problems of
FOLDER/humaneval/test.jsonl run in a sandbox (docs/sandbox.md), one at a time.
"""

from argparse import Namespace
from collections.abc import Sequence

from bara_pyro.extras.replies.sandbox import Problem, judge
from bara_pyro.extras.replies.sandbox.humaneval import STOP_SEQUENCES, load_humaneval
from experiments.engine.arguments import option
from experiments.engine.replies import Look, Sampling
from experiments.page.replies import smollm2_study

TEMPERATURES = (0.4, 1.0)


def look(args: Namespace) -> Look:
    """Return what is looked at: whether programs pass.

    Raises:
        DataError: the problems cannot be read.
        SandboxError: programs cannot be isolated here.
    """
    problems = load_humaneval(args.data_dir / "humaneval" / "test.jsonl")[: args.problems]
    asked = Sampling(
        [problem.prompt for problem in problems],
        lambda place, replies: passes(problems[place], replies),
        TEMPERATURES,
        args.max_new_tokens,
        STOP_SEQUENCES,
    )
    return Look(asked, facts={"problems": len(problems), "tokens": args.max_new_tokens})


def passes(problem: Problem, replies: Sequence[str]) -> list[float]:
    """Return 1 of each completion that passes the problem's test, 0 of the others."""
    found = judge([problem], ((problem.task_id, reply) for reply in replies), workers=1)
    outcomes = {one.index: float(one.outcome.passed) for one in found}
    return [outcomes[i] for i in range(len(replies))]


SETUP = """\
The models of the [study on instructions](instructions.md) ({model}, {steps:,} training steps of four,
{seeds}) complete the first {problems} of HumanEval's 164 problems, {replies} times at temperatures of
{temperatures}, with at most {tokens} tokens. Each completion has its own posterior draw, or all use the
posterior mean ("mean"). Score: pass@n in percent ("best of n"), unbiased over all subsets of the {replies}.
Diversity: 100 - Self-BLEU. Entropy: minus the log probability of a sampled token at temperature 1, in nats.
"""
STUDY = smollm2_study(
    "humaneval",
    __doc__,
    "Do posterior draws help on HumanEval?",
    SETUP,
    look,
    replies=4,
    options={
        "--problems": option(40, "how many", metavar="N"),
        "--max-new-tokens": option(128, "where a program is cut", metavar="N"),
    },
)
