"""Tasks of replies with exact scores: three claims about a resident, and programs."""

import random
from collections.abc import Callable

from bara_pyro.data.conversations import Conversation
from bara_pyro.data.reply_tasks import REPLY_TASKS, GeneratedReplies, ReplyTask
from bara_pyro.microworld.chat import ChatPrompt, make_prompt, write_reply
from bara_pyro.microworld.code import CodeProblem, draw_problem
from bara_pyro.microworld.words import SEASONS
from bara_pyro.microworld.world import Split, World

CHAT, CODE = "micro-chat", "micro-code"
SIZES: dict[str, dict[Split, int]] = {
    CHAT: {"train": 320, "validation": 80, "test": 120},
    CODE: {"train": 640, "validation": 100, "test": 164},
}


def chat_prompts(split: Split, seed: int = 0) -> list[ChatPrompt]:
    """Return the prompts of a split; different splits are about different residents."""
    world = World()
    every = [make_prompt(who, season) for who in world.split(split) for season in range(len(SEASONS))]
    return random.Random(f"{CHAT} {split} {seed}").sample(every, min(SIZES[CHAT][split], len(every)))


def code_problems(split: Split, seed: int = 0) -> list[tuple[CodeProblem, str]]:
    """Return the problems of a split, each with its program; no problem is in two splits."""
    problems: dict[str, tuple[CodeProblem, str]] = {}
    rng = random.Random(f"{CODE} {seed}")
    while len(problems) < sum(SIZES[CODE].values()):
        problem, program = draw_problem(rng)
        problems[problem.text] = problem, program
    start = 0
    for name, size in SIZES[CODE].items():
        if name == split:
            break
        start += size
    return list(problems.values())[start : start + SIZES[CODE][split]]


def _chat(split: Split, seed: int) -> list[tuple[str, str]]:
    world, rng = World(), random.Random(f"{CHAT} replies {split} {seed}")
    return [(p.text, write_reply(world, rng, p, "today")) for p in chat_prompts(split, seed)]


def _code(split: Split, seed: int) -> list[tuple[str, str]]:
    return [(problem.text, program) for problem, program in code_problems(split, seed)]


def _load(name: str, draw: Callable[[Split, int], list[tuple[str, str]]], seed: int) -> ReplyTask:
    def rows(split: Split) -> tuple[Conversation, ...]:
        pairs = enumerate(draw(split, seed))
        return tuple(Conversation(text, f" {reply}", f"{name}-{split}-{n:05d}") for n, (text, reply) in pairs)

    note = f"generated, seed {seed}; one reply per prompt, drawn from the right ones"
    return ReplyTask(name, rows("train"), rows("validation"), rows("test"), (note,))


REPLY_TASKS.register(CHAT, GeneratedReplies(CHAT, "microworld", lambda seed: _load(CHAT, _chat, seed)))
REPLY_TASKS.register(CODE, GeneratedReplies(CODE, "microworld", lambda seed: _load(CODE, _code, seed)))
