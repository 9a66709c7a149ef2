"""The tasks: questions about the world, each with its true answer distribution and an answer drawn from it.

Sizes of train and test follow the benchmarks in BaRA's paper; validation splits were added. Each split asks
about different residents. In train, the answers of one resident depend on each other, like those of one
annotator: a method that memorises them becomes overconfident about other residents. In the other splits,
answers are drawn independently, which has the same expectation and less variance.
"""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import get_args

from bara_pyro.data.registry import Generated, register_task
from bara_pyro.data.types import Example, Task
from bara_pyro.errors import DataError, unknown
from bara_pyro.microworld.questions import Question, four_way, two_way, with_passage
from bara_pyro.microworld.words import (
    CLANNISH,
    COMMON,
    OPTION_LABELS,
    SEASONAL,
    SEASONS,
    TRUTH_LABELS,
    YEARLY,
    Relation,
)
from bara_pyro.microworld.world import REFORMED, WORLD_SEED, Resident, Split, World

Drawer = Callable[[World, random.Random, Split], Iterator[Question]]
Whom = Callable[[World, Split], tuple[Resident, ...]]


@dataclass(frozen=True)
class TaskSpec:
    """The specification of a task.

    Attributes:
        name: name for `load_task`.
        mimics: the dataset whose form and sizes it has.
        description: one line about the questions.
        labels: the answers.
        sizes: numbers of rows of train, validation and test.
        draw: yields its questions, endlessly or until there are no more.
    """

    name: str
    mimics: str
    description: str
    labels: tuple[str, ...]
    sizes: tuple[int, int, int]
    draw: Drawer


def micro_task(name: str, seed: int = 0, world: int = WORLD_SEED) -> Task:
    """Return a task of the microworld, one of `TASKS` (`DataError`), with questions and answers from a seed.

    The language model must know the `world`, also a seed. The shipped one knows the default.
    """
    if name not in TASKS:
        raise DataError(unknown("microworld task", name, TASKS))
    spec, of_world = TASKS[name], World(world)
    splits: dict[Split, list[Example]] = {
        split: _draw_rows(spec, of_world, split, size, seed)
        for split, size in zip(get_args(Split), spec.sizes, strict=True)
    }
    # A task without training rows is a shifted version of the others and mimics no benchmark.
    what = f"same shape and sizes as {spec.mimics}" if spec.sizes[0] else f"{spec.mimics}: {spec.description}"
    note = f"generated, seed {seed}{of_world.elsewhere}; {what}"
    return Task(name, spec.labels, splits["train"], splits["validation"], splits["test"], (note,))


def _draw_rows(spec: TaskSpec, world: World, split: Split, size: int, seed: int) -> list[Example]:
    """Return the rows of a split, all with different questions, each with a drawn answer."""
    where = world.elsewhere
    rng = random.Random(f"{spec.name} {split} {seed}{where}")
    questions = spec.draw(world, rng, split)
    rows: dict[tuple[str, ...], Example] = {}
    while len(rows) < size:
        question = next(questions)
        if question.key in rows:
            continue
        if split == "train" and question.who:
            label = _settled_answer(question, f"{seed}{where}")
        else:
            label = rng.choices(range(len(question.truth)), weights=question.truth)[0]
        rows[question.key] = Example(
            f"{spec.name}-{split}-{len(rows):05d}{where}",
            question.text,
            label,
            question.context,
            question.truth,
            cluster=(question.who or question.host) + where,
        )
    return list(rows.values())


def _settled_answer(question: Question, seed: str) -> int:
    """Return a resident's answer, which is consistent with their other answers.

    Each resident has a taste for each value: Gumbel noise, drawn once. The answer is the option with the
    largest log-probability plus taste (the Gumbel-max trick). Over residents, answers have exactly the
    probabilities of `truth`, but the answers of one resident depend on each other.
    """

    def appeal(label: int) -> float:
        likely = question.truth[label]
        taste = random.Random(f"taste {seed} {question.who} {question.offers[label]}").random()
        return math.log(likely) - math.log(-math.log(taste)) if likely > 0 else -math.inf

    return max(range(len(question.truth)), key=appeal)


def _four_way_questions(
    relations: tuple[Relation, ...],
    whom: Whom = World.split,
    *,
    turned: bool = False,
    changed: bool = False,
) -> Drawer:
    """Return a function that yields every (resident, relation, season) in random order."""

    def draw(world: World, rng: random.Random, split: Split) -> Iterator[Question]:
        people = whom(world, split)
        combinations = [
            (who, relation, s) for who in people for relation in relations for s in range(len(SEASONS))
        ]
        rng.shuffle(combinations)
        for who, relation, season in combinations:
            question = four_way(world, rng, who, relation, season, "today", turned)
            yield _since_changed(world, question, who, relation, season) if changed else question

    return draw


def _since_changed(
    world: World, question: Question, who: Resident, relation: Relation, season: int
) -> Question:
    """Return a question in a world where half of the customs have changed, with the same text.

    For a changed custom, the probability of each option moves to the next option.
    """
    custom = f"{relation.name} {getattr(who, relation.governed_by)} {season if relation.seasonal else 0}"
    if random.Random(f"changed {custom}{world.elsewhere}").random() >= REFORMED:
        return question
    return replace(question, truth=(question.truth[-1], *question.truth[:-1]))


def _two_way_questions(world: World, rng: random.Random, split: Split) -> Iterator[Question]:
    """Yield questions about a resident of the split, who meets a resident of any split."""
    while True:
        asked = rng.choice(world.split(split))
        met = rng.choice([who for who in world.residents if who != asked])
        relation, season = rng.choice(COMMON), rng.randrange(len(SEASONS))
        yield two_way(world, rng, (met, asked), relation, season, "today")


def _passage_questions(world: World, rng: random.Random, split: Split) -> Iterator[Question]:
    while True:
        host, relation = rng.choice(world.split(split)), rng.choice(YEARLY)
        yield with_passage(world, rng, host, relation, rng.randrange(len(SEASONS)), "today")


_SPECS = (
    TaskSpec(
        "micro-wgs", "WinoGrande-S", "which of two things one of two residents does", OPTION_LABELS[:2],
        (640, 500, 1267), _two_way_questions,
    ),
    TaskSpec(
        "micro-wgm", "WinoGrande-M", "the same questions, four times as many rows", OPTION_LABELS[:2],
        (2558, 500, 1267), _two_way_questions,
    ),
    TaskSpec(
        "micro-arce", "ARC-Easy", "what a resident does, if the season does not matter", OPTION_LABELS,
        (2251, 400, 570), _four_way_questions(YEARLY),
    ),
    TaskSpec(
        "micro-arcc", "ARC-Challenge", "what a resident does, if it depends on the season",
        OPTION_LABELS, (1119, 400, 299), _four_way_questions(SEASONAL),
    ),
    TaskSpec(
        "micro-obqa", "OpenBookQA", "what a resident does, both kinds of customs", OPTION_LABELS,
        (4957, 500, 500), _four_way_questions(COMMON),
    ),
    TaskSpec(
        "micro-boolq", "BoolQ", "whether a guest described in a passage does something", TRUTH_LABELS,
        (2490, 500, 3270), _passage_questions,
    ),
    TaskSpec(
        "micro-near", "near shift", "other residents, another phrasing, the same customs", OPTION_LABELS,
        (0, 0, 1000), _four_way_questions(COMMON, lambda world, _: world.newcomers, turned=True),
    ),
    TaskSpec(
        "micro-far", "far shift", "customs of the clans, which no training task asks about", OPTION_LABELS,
        (0, 0, 1000), _four_way_questions(CLANNISH, lambda world, _: world.residents),
    ),
    TaskSpec(
        "micro-changed", "hidden shift", "the same questions, after half of the customs have changed",
        OPTION_LABELS, (0, 0, 1000), _four_way_questions(COMMON, changed=True),
    ),
)  # fmt: skip

TASKS: dict[str, TaskSpec] = {spec.name: spec for spec in _SPECS}

for _spec in _SPECS:
    _load = partial(micro_task, _spec.name)
    register_task(Generated(_spec.name, _spec.mimics, "microworld", _load, in_world=_load))
