"""The forms a question can take, each with its exact answer distribution.

The same functions write the tasks (with the customs of today) and the pretraining text (with those of the corpus).
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from bara_pyro.microworld.words import HOMES, KINDS, OPTION_LABELS, SEASONS, Relation
from bara_pyro.microworld.world import Custom, Era, Resident, World

WHIM = 0.05  # weight with which somebody does what is not their custom; only who-questions need it


@dataclass(frozen=True)
class Question:
    """A rendered question.

    Attributes:
        text: the prompt, ending in "Answer :", so that the next token is the label.
        truth: the probability of each label.
        key: what is asked, free of the order of options; splits are disjoint in it.
        context: the passage, or empty.
    """

    text: str
    truth: tuple[float, ...]
    key: tuple[str, ...]
    context: str = ""


def four_way(
    world: World, rng: random.Random, who: Resident, relation: Relation, season: int, era: Era, turned: bool = False
) -> Question:
    """Ask what somebody does in a season, with four options.

    Args:
        world: where the customs come from.
        rng: draws the wrong options and shuffles all four.
        who: whom the question is about.
        relation: what is asked.
        season: index of the season.
        era: whose probabilities are the truth.
        turned: ask in the phrasing of the near-shifted task.
    """
    custom = world.custom_of(who, relation, season)
    options = _draw_options(rng, custom)
    probabilities = custom.probabilities(era)
    listed = " ".join(f"{label} : {relation.values[o]}" for label, o in zip(OPTION_LABELS, options, strict=True))
    when = SEASONS[season]
    if turned:
        text = f"{who.name} {relation.verb} which of these in {when} ? {listed} Answer :"
    else:
        text = f"in {when} what does {who.name} {relation.name} ? {listed} Answer :"
    return Question(text, tuple(probabilities[o] for o in options), (who.name, relation.name, when))


def _draw_options(rng: random.Random, custom: Custom) -> list[int]:
    """Return four of the eight values, shuffled: all that are possible, the old one, and others."""
    possible = [v for v in range(8) if custom.today[v] > 0 or v == custom.old]
    others = [v for v in range(8) if v not in possible]
    options = possible + rng.sample(others, 4 - len(possible))
    rng.shuffle(options)
    return options


def who_does(
    world: World, rng: random.Random, pair: Sequence[Resident], relation: Relation, season: int, era: Era
) -> Question:
    """Ask which of two does a thing: as likely as each of them is to do it, with `WHIM` added to both."""
    customs = [world.custom_of(who, relation, season).probabilities(era) for who in pair]
    value = rng.choices(range(8), weights=customs[rng.randrange(2)])[0]
    weights = [custom[value] + WHIM for custom in customs]
    names = [who.name for who in pair]
    text = f"in {SEASONS[season]} who {relation.verb} {relation.values[value]} ? A : {names[0]} B : {names[1]} Answer :"
    key = (*sorted(names), relation.values[value], SEASONS[season])
    return Question(text, tuple(w / sum(weights) for w in weights), key)


def with_passage(world: World, rng: random.Random, relation: Relation, season: int, era: Era) -> Question:
    """Ask whether a stranger does a thing; the passage tells the kind and home of three strangers."""
    names = rng.sample(world.strangers, 3)
    strangers = [Resident(name, rng.randrange(len(KINDS)), rng.randrange(len(HOMES)), 0) for name in names]
    facts = [f"{s.name} is a {KINDS[s.kind]} . {s.name} lives in the {HOMES[s.home]} ." for s in strangers]
    asked = rng.choice(strangers)
    custom = world.custom_of(asked, relation, season)
    value = _draw_claim(rng, custom, era)
    likely = custom.probabilities(era)[value]
    text = f"does {asked.name} {relation.name} {relation.values[value]} in {SEASONS[season]} ? Answer :"
    context = " ".join(facts)
    return Question(text, (likely, 1.0 - likely), (context, text), context)


def _draw_claim(rng: random.Random, custom: Custom, era: Era) -> int:
    """Return a value to ask about: half the time a customary one, else one that is, or became, wrong."""
    fate = rng.random()
    if fate < 0.5:
        return rng.choices(range(8), weights=custom.probabilities(era))[0]
    if fate < 0.75 and custom.old >= 0:
        return custom.old
    return rng.randrange(8)
