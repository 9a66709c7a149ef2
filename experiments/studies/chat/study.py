"""Best of n, diversity and alignment tax of replies about a resident of the microworld.

    python -m experiments chat --seeds 3

A reply's score is exact: the world knows what can rightly be said, and how likely it is. Settings are those
that `python -m experiments search` chose on validation replies, with the same number of trials each.
"""

from collections.abc import Sequence

from bara_pyro.microworld.chat import score_reply
from bara_pyro.microworld.replies import CHAT, chat_prompts
from bara_pyro.microworld.world import World
from experiments.engine.replies import Sampling
from experiments.page.replies import microworld_study


def asked() -> Sampling:
    """Return the prompts about residents of the test split, and the score of a reply to each."""
    world, prompts = World(), chat_prompts("test")

    def score(place: int, replies: Sequence[str]) -> list[float]:
        return [score_reply(world, prompts[place], reply) for reply in replies]

    return Sampling([prompt.text for prompt in prompts], score)


STUDY = microworld_study("chat", __doc__, "Do posterior draws improve chat replies?", CHAT, asked)
