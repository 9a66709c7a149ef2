"""A reply task: count on from a number."""

import random

from bara_pyro.data.conversations import Conversation
from bara_pyro.data.reply_tasks import GeneratedReplies, ReplyTask


def load(seed: int) -> ReplyTask:
    """Return the task with 40 training rows and 20 test rows."""
    starts = random.Random(seed).sample(range(100), 60)
    rows = [
        Conversation(f"Count on from {n} :", f" {n + 1} {n + 2} {n + 3}", f"counting-{n}") for n in starts
    ]
    return ReplyTask("counting", train=rows[:40], test=rows[40:], notes=(f"generated, seed {seed}",))


COUNTING = GeneratedReplies("counting", "bara_pyro_vera", load)
