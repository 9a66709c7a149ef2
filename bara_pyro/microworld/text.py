"""The pretraining text: facts, customs, questions and answers, replies and programs, as the corpus has them."""

import random
from collections.abc import Callable, Iterator

from bara_pyro.microworld.chat import make_prompt, write_reply
from bara_pyro.microworld.code import draw_problem
from bara_pyro.microworld.questions import Question, four_way, who_does, with_passage
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
    Relation,
)
from bara_pyro.microworld.world import Resident, World


def draw_line(world: World, rng: random.Random) -> str:
    """Return one line of the corpus, ending in the end token."""
    write = rng.choices(list(_WRITERS), weights=list(_WRITERS.values()))[0]
    return f"{write(world, rng)} {END}"


def corpus(world: World, seed: int, count: int) -> Iterator[str]:
    """Yield `count` lines drawn from a seed."""
    rng = random.Random(f"corpus {seed}")
    for _ in range(count):
        yield draw_line(world, rng)


def _someone(world: World, rng: random.Random) -> Resident:
    return rng.choice(world.residents + world.newcomers)


def _facts(world: World, rng: random.Random) -> str:
    """State the three certain facts about somebody, in any order."""
    who = _someone(world, rng)
    facts = [
        f"{who.name} is a {KINDS[who.kind]} .",
        f"{who.name} lives in the {HOMES[who.home]} .",
        f"{who.name} belongs to the {CLANS[who.clan]} clan .",
    ]
    rng.shuffle(facts)
    return " ".join(facts)


def _customs(world: World, rng: random.Random) -> str:
    """Tell what somebody does in a season, two relations a line."""
    who, season = _someone(world, rng), rng.randrange(len(SEASONS))
    said = []
    for relation in rng.sample(RELATIONS, 2):
        likely = world.custom_of(who, relation, season).corpus
        said.append(f"{who.name} {relation.verb} {rng.choices(relation.values, weights=likely)[0]} .")
    return f"in {SEASONS[season]} {' '.join(said)}"


def _listing(world: World, rng: random.Random) -> str:
    """Name options and find them again: practice in reading a list of options, without any knowledge."""
    words = rng.sample(rng.choice(RELATIONS).values, 4)
    listed = " ".join(f"{label} : {word}" for label, word in zip(OPTION_LABELS, words, strict=True))
    pairs = list(zip(words, OPTION_LABELS, strict=True))
    rng.shuffle(pairs)
    return f"{listed} ; " + " ; ".join(f"{word} fits {label}" for word, label in pairs)


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


def _who_does(world: World, rng: random.Random) -> str:
    pair = rng.sample(world.residents + world.newcomers, 2)
    return _answered(rng, who_does(world, rng, pair, *_draw(rng, COMMON), "corpus"), OPTION_LABELS)


def _with_passage(world: World, rng: random.Random) -> str:
    return _answered(rng, with_passage(world, rng, *_draw(rng, COMMON), "corpus"), TRUTH_LABELS)


def _chat(world: World, rng: random.Random) -> str:
    prompt = make_prompt(_someone(world, rng), rng.randrange(len(SEASONS)))
    return f"{prompt.text} {write_reply(world, rng, prompt, 'corpus')}"


def _code(world: World, rng: random.Random) -> str:
    problem, program = draw_problem(rng)
    return f"{problem.text} {program}"


_WRITERS: dict[Callable[[World, random.Random], str], float] = {
    _facts: 0.12,
    _customs: 0.13,
    _listing: 0.08,
    _four_way: 0.25,
    _who_does: 0.15,
    _with_passage: 0.12,
    _chat: 0.06,
    _code: 0.09,
}
