"""Prompts with many right replies: tell three things about a resident.

Scores are exact, because the world knows the probability of every claim.
"""

import random
from dataclasses import dataclass

from bara_pyro.errors import DataError
from bara_pyro.microworld.words import COMMON, HOMES, KINDS, SEASONS
from bara_pyro.microworld.world import Era, Resident, World

CLAIMS = 3


@dataclass(frozen=True)
class ChatPrompt:
    """A prompt to continue.

    Attributes:
        text: the prompt, ending in "reply :".
        who: the resident to tell about.
        season: index of the season.
    """

    text: str
    who: Resident
    season: int


def make_prompt(who: Resident, season: int) -> ChatPrompt:
    """Return the prompt that asks for three things about `who` in a season (0 to 3)."""
    return ChatPrompt(f"tell three things about {who.name} in {SEASONS[season]} . reply :", who, season)


def draw_prompts(world: World, count: int, seed: int = 0) -> list[ChatPrompt]:
    """Return `count` different prompts about residents; a `DataError` if the world has fewer."""
    every = [make_prompt(who, season) for who in world.residents for season in range(len(SEASONS))]
    if not 0 <= count <= len(every):
        raise DataError(f"Cannot draw {count} chat prompts: choose 0 to {len(every)}.")
    return random.Random(f"chat {seed}").sample(every, count)


def claims(world: World, who: Resident, season: int, era: Era = "today") -> dict[str, float]:
    """Return every right claim about a resident with its score in (0, 1].

    A certain fact scores 1; a custom scores its probability divided by that of the likeliest value.
    """
    scores = {f"is a {KINDS[who.kind]}": 1.0, f"lives in the {HOMES[who.home]}": 1.0}
    for relation in COMMON:
        likely = world.custom_of(who, relation, season).probabilities(era)
        for value, p in zip(relation.values, likely, strict=True):
            if p > 0:
                scores[f"{relation.verb} {value}"] = p / max(likely)
    return scores


def score_reply(world: World, prompt: ChatPrompt, reply: str) -> float:
    """Return the mean score of the first three clauses of a reply, in [0, 1].

    A clause ends in " .". A clause that is wrong, repeated, unreadable or missing scores 0; clauses after the
    third are ignored.
    """
    known = claims(world, prompt.who, prompt.season)
    clauses = [" ".join(clause.split()) for clause in f" {reply} ".split(" . ")][:CLAIMS]
    return sum(known.get(clause, 0.0) for clause in dict.fromkeys(clauses)) / CLAIMS


def write_reply(world: World, rng: random.Random, prompt: ChatPrompt, era: Era) -> str:
    """Return a reply of three different clauses, drawn in proportion to their scores in `era`."""
    known = claims(world, prompt.who, prompt.season, era)
    chosen: dict[str, None] = {}
    while len(chosen) < CLAIMS:
        chosen[rng.choices(list(known), weights=list(known.values()))[0]] = None
    return " ".join(f"{clause} ." for clause in chosen)
