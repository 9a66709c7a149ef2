"""The forms of questions, each with its exact answer distribution.

The same functions write the tasks (customs of today) and the pretraining text (customs of the corpus).
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from bara_pyro.microworld.words import HOMES, KINDS, OPTION_LABELS, SEASONS, Relation, option
from bara_pyro.microworld.world import Custom, Era, Resident, World

WHIM = 0.05  # weight added to each option of two-way questions, so that none is impossible


@dataclass(frozen=True)
class Question:
    """A rendered question.

    Attributes:
        text: the prompt, ending in "Answer :", so that the next token is the label.
        truth: the probability of each label.
        key: the question without its options and their order; unique within a task.
        context: the passage, or empty.
        who: the resident in the question; empty for a guest.
        offers: the value of each label.
        host: the resident named in the passage; empty without a passage.
    """

    text: str
    truth: tuple[float, ...]
    key: tuple[str, ...]
    context: str = ""
    who: str = ""
    offers: tuple[str, ...] = ()
    host: str = ""


def four_way(
    world: World,
    rng: random.Random,
    who: Resident,
    relation: Relation,
    season: int,
    era: Era,
    turned: bool = False,
) -> Question:
    """Ask what a resident does in a season, with four options; `turned` uses the near-shift phrasing."""
    custom = world.custom_of(who, relation, season)
    options = _draw_options(rng, custom)
    probabilities = custom.probabilities(era)
    when, listed = SEASONS[season], _listed(relation, options)
    question = f"in {when} {who.name} {relation.verb} what ?"
    if turned:
        question = f"{who.name} {relation.verb} which of these in {when} ?"
    return Question(
        text=f"{question} {listed} Answer :",
        truth=tuple(probabilities[o] for o in options),
        key=(who.name, relation.name, when),
        who=who.name,
        offers=tuple(relation.values[o] for o in options),
    )


def _listed(relation: Relation, options: Sequence[int]) -> str:
    labels = OPTION_LABELS[: len(options)]
    return " ".join(option(label, relation.values[o]) for label, o in zip(labels, options, strict=True))


def _draw_options(rng: random.Random, custom: Custom) -> list[int]:
    """Return one value for each option: all possible values, the old one, and others.

    Option A offers the value 0 or 4 of the relation, B 1 or 5, and so on. A letter is thus informative by
    itself, which a small model learns much sooner than looking for a value among shuffled options.
    """
    possible = {v % 4: v for v in range(8) if custom.today[v] > 0 or v == custom.old}
    return [possible.get(slot, slot + 4 * rng.randrange(2)) for slot in range(4)]


def two_way(
    world: World, rng: random.Random, pair: Sequence[Resident], relation: Relation, season: int, era: Era
) -> Question:
    """Ask which of two things the second of two residents does.

    One option is drawn from the custom of the second. If that custom was reformed, the other option is its
    old value half of the time; otherwise it is drawn from the custom of the first. Their probabilities are
    proportional to those of the second's custom plus `WHIM`. Option A offers a value of even index, B of odd.
    """
    first, custom = (world.custom_of(who, relation, season) for who in pair)
    second = custom.probabilities(era)
    mine = rng.choices(range(8), weights=second)[0]
    if custom.old >= 0 and (custom.old - mine) % 2 and rng.random() < 0.5:
        other = custom.old
    else:
        likely = [(p + WHIM) * ((v - mine) % 2) for v, p in enumerate(first.probabilities(era))]
        other = rng.choices(range(8), weights=likely)[0]
    options = sorted((mine, other), key=lambda v: v % 2)
    weights = [second[o] + WHIM for o in options]
    here, subject = (who.name for who in pair)
    text = (
        f"{here} meets {subject} . in {SEASONS[season]} {subject} {relation.verb} what ? "
        f"{_listed(relation, options)} Answer :"
    )
    return Question(
        text=text,
        truth=tuple(w / sum(weights) for w in weights),
        key=(here, subject, relation.name, SEASONS[season]),
        who=subject,
        offers=tuple(relation.values[o] for o in options),
    )


def with_passage(
    world: World, rng: random.Random, host: Resident, relation: Relation, season: int, era: Era
) -> Question:
    """Ask whether a guest does something; the passage describes the guest and names the host."""
    guest = Resident("guest", rng.randrange(len(KINDS)), rng.randrange(len(HOMES)), 0)
    custom = world.custom_of(guest, relation, season)
    value = _draw_claim(rng, custom, era)
    likely = custom.probabilities(era)[value]
    kind, home, when = KINDS[guest.kind], HOMES[guest.home], SEASONS[season]
    facts = guest_facts(rng, guest, host)
    text = f"in {when} the guest {relation.verb} {relation.values[value]} ? Answer :"
    key = (host.name, kind, home, when, relation.values[value])
    return Question(text, (likely, 1.0 - likely), key, facts, host=host.name)


def guest_facts(rng: random.Random, guest: Resident, host: Resident) -> str:
    """Return the passage: the kind and home of the guest, and the name of the host, in any order."""
    facts = [
        f"the guest is a {KINDS[guest.kind]} .",
        f"the guest lives in the {HOMES[guest.home]} .",
        f"{host.name} is the host .",
    ]
    rng.shuffle(facts)
    return " ".join(facts)


def _draw_claim(rng: random.Random, custom: Custom, era: Era) -> int:
    """Return a value to ask about: mostly a customary one, else the old or a random one."""
    fate = rng.random()
    if fate < 0.65:
        return rng.choices(range(8), weights=custom.probabilities(era))[0]
    if fate < 0.85 and custom.old >= 0:
        return custom.old
    return rng.randrange(8)
