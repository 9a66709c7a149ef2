"""The pretraining corpus: facts, customs, questions and answers, replies and programs."""

import random
from collections.abc import Callable, Iterator

from bara_pyro.microworld.chat import make_prompt, write_reply
from bara_pyro.microworld.code import draw_problem
from bara_pyro.microworld.questions import Question, four_way, guest_facts, two_way, with_passage
from bara_pyro.microworld.words import (
    CLANS,
    COMMON,
    END,
    HOMES,
    KINDS,
    OPTION_LABELS,
    RELATIONS,
    SEASONS,
    TRUTH_LABELS,
    YEARLY,
    Relation,
    option,
)
from bara_pyro.microworld.world import Resident, World


def corpus(world: World, seed: int, count: int) -> Iterator[str]:
    """Yield `count` lines drawn from a seed, each ending in the end token.

    The first fifth is mostly facts, customs and lists, because questions are learnt much sooner after these.
    """
    rng = random.Random(f"corpus {seed}")
    for i in range(count):
        weights = [early if 5 * i < count else late for early, late in _WRITERS.values()]
        write = rng.choices(list(_WRITERS), weights=weights)[0]
        yield f"{write(world, rng)} {END}"


def _someone(world: World, rng: random.Random) -> Resident:
    return rng.choice(world.residents + world.newcomers)


def _facts(world: World, rng: random.Random) -> str:
    """Return the three certain facts about a resident, in random order."""
    who = _someone(world, rng)
    facts = [
        f"{who.name} is a {KINDS[who.kind]} .",
        f"{who.name} lives in the {HOMES[who.home]} .",
        f"{who.name} belongs to the {CLANS[who.clan]} clan .",
    ]
    rng.shuffle(facts)
    return " ".join(facts)


def _customs(world: World, rng: random.Random) -> str:
    """Return what a resident does in a season, for two relations."""
    who, season = _someone(world, rng), rng.randrange(len(SEASONS))
    clauses = []
    for relation in rng.sample(RELATIONS, 2):
        likely = world.custom_of(who, relation, season).corpus
        clauses.append(f"{who.name} {relation.verb} {rng.choices(relation.values, weights=likely)[0]} .")
    return f"in {SEASONS[season]} {' '.join(clauses)}"


def _guest_customs(world: World, rng: random.Random) -> str:
    """Return facts about a guest, and something the guest does."""
    guest = Resident("guest", rng.randrange(len(KINDS)), rng.randrange(len(HOMES)), 0)
    relation, season = _draw(rng, COMMON)
    value = rng.choices(relation.values, weights=world.custom_of(guest, relation, season).corpus)[0]
    facts = guest_facts(rng, guest, _someone(world, rng))
    return f"{facts} in {SEASONS[season]} the guest {relation.verb} {value} ."


def _listing(world: World, rng: random.Random) -> str:
    """Return a list of options followed by their labels: practice in reading options, without knowledge."""
    words = rng.sample(rng.choice(RELATIONS).values, 4)
    pairs = list(zip(OPTION_LABELS, words, strict=True))
    listed = " ".join(option(label, word) for label, word in pairs)
    rng.shuffle(pairs)
    return f"{listed} : " + " ".join(f"{word} {label}" for label, word in pairs)


def _answered(rng: random.Random, question: Question, labels: tuple[str, ...]) -> str:
    answer = rng.choices(labels[: len(question.truth)], weights=question.truth)[0]
    return f"{question.context} {question.text} {answer}".strip()


def _draw(rng: random.Random, relations: tuple[Relation, ...]) -> tuple[Relation, int]:
    return rng.choice(relations), rng.randrange(len(SEASONS))


def _four_way(world: World, rng: random.Random) -> str:
    relation, season = _draw(rng, RELATIONS)
    turned = rng.random() < 0.2
    return _answered(
        rng, four_way(world, rng, _someone(world, rng), relation, season, "corpus", turned), OPTION_LABELS
    )


def _two_way(world: World, rng: random.Random) -> str:
    pair = rng.sample(world.residents + world.newcomers, 2)
    return _answered(rng, two_way(world, rng, pair, *_draw(rng, COMMON), "corpus"), OPTION_LABELS)


def _with_passage(world: World, rng: random.Random) -> str:
    host = _someone(world, rng)
    return _answered(rng, with_passage(world, rng, host, *_draw(rng, YEARLY), "corpus"), TRUTH_LABELS)


def _chat(world: World, rng: random.Random) -> str:
    prompt = make_prompt(_someone(world, rng), rng.randrange(len(SEASONS)))
    return f"{prompt.text} {write_reply(world, rng, prompt, 'corpus')}"


def _code(world: World, rng: random.Random) -> str:
    problem, program = draw_problem(rng)
    return f"{problem.text} {program}"


# Shares of the lines in the first fifth of the corpus, and afterwards.
_WRITERS: dict[Callable[[World, random.Random], str], tuple[float, float]] = {
    _facts: (0.35, 0.05),
    _customs: (0.20, 0.08),
    _guest_customs: (0.10, 0.05),
    _listing: (0.05, 0.01),
    _four_way: (0.20, 0.31),
    _two_way: (0.04, 0.22),
    _with_passage: (0.04, 0.17),
    _chat: (0.01, 0.05),
    _code: (0.01, 0.06),
}
