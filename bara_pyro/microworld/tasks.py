"""The tasks: questions of the world, each row with its true distribution and an answer drawn from it.

Sizes of train and test follow the benchmarks that BaRA was published on; validation is ours. The three are
disjoint in what is asked, whatever the options.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

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
from bara_pyro.microworld.world import Resident, World

Drawer = Callable[[World, random.Random], Iterator[Question]]


@dataclass(frozen=True)
class TaskSpec:
    """What a task is and how large.

    Attributes:
        name: the name it is loaded under.
        mimics: the dataset whose shape and sizes it has.
        description: one line on what is asked.
        labels: the answers.
        sizes: rows of train, validation and test.
        draw: yields its questions, endlessly or until there are no more.
    """

    name: str
    mimics: str
    description: str
    labels: tuple[str, ...]
    sizes: tuple[int, int, int]
    draw: Drawer


def load_task(name: str, seed: int = 0) -> Task:
    """Return a task of the shipped world.

    Args:
        name: one of `TASKS`.
        seed: of the questions and the drawn answers; the world is always the one that the backbone knows.

    Raises:
        DataError: there is no such task.
    """
    if name not in TASKS:
        raise DataError(unknown("microworld task", name, TASKS))
    spec = TASKS[name]
    rng = random.Random(f"{name} {seed}")
    rows = _draw_rows(spec, World(), rng)
    train, validation, test = spec.sizes
    return Task(
        name=name,
        labels=spec.labels,
        train=rows[:train],
        validation=rows[train : train + validation],
        test=rows[train + validation : train + validation + test],
        notes=(f"generated, seed {seed}; same shape and sizes as {spec.mimics}",),
    )


def _draw_rows(spec: TaskSpec, world: World, rng: random.Random) -> list[Example]:
    """Return as many rows as the splits need, no two asking the same, each with a drawn answer."""
    rows: dict[tuple[str, ...], Example] = {}
    questions = spec.draw(world, rng)
    while len(rows) < sum(spec.sizes):
        question = next(questions)
        if question.key in rows:
            continue
        label = rng.choices(range(len(spec.labels)), weights=question.truth)[0]
        rows[question.key] = Example(
            f"{spec.name}-{len(rows):05d}", question.text, label, question.context, question.truth
        )
    return list(rows.values())


def _four_way_questions(
    relations: tuple[Relation, ...], turned: bool = False, newcomers: bool = False, hard: bool = False
) -> Drawer:
    """Return the drawer of every (resident, relation, season), in random order; hard ones first if `hard`."""

    def draw(world: World, rng: random.Random) -> Iterator[Question]:
        people = world.newcomers if newcomers else world.residents
        asked = [(who, relation, s) for who in people for relation in relations for s in range(len(SEASONS))]
        rng.shuffle(asked)
        if hard:
            asked = [a for a in asked if _is_hard(world, *a) or rng.random() < 0.5]
        for who, relation, season in asked:
            yield four_way(world, rng, who, relation, season, "today", turned)

    return draw


def _is_hard(world: World, who: Resident, relation: Relation, season: int) -> bool:
    """Tell whether the custom is ambiguous or was reformed."""
    custom = world.custom_of(who, relation, season)
    return custom.old >= 0 or not custom.certain


def _two_way_questions(world: World, rng: random.Random) -> Iterator[Question]:
    while True:
        pair = rng.sample(world.residents, 2)
        yield two_way(world, rng, pair, rng.choice(COMMON), rng.randrange(len(SEASONS)), "today")


def _passage_questions(world: World, rng: random.Random) -> Iterator[Question]:
    while True:
        host, relation = rng.choice(world.residents), rng.choice(YEARLY)
        yield with_passage(world, rng, host, relation, rng.randrange(len(SEASONS)), "today")


_SPECS = (
    TaskSpec(
        "micro-wgs", "WinoGrande-S", "which of two things one of two residents does", OPTION_LABELS[:2],
        (640, 500, 1267), _two_way_questions,
    ),
    TaskSpec(
        "micro-wgm", "WinoGrande-M", "the same questions, four times the rows", OPTION_LABELS[:2],
        (2558, 500, 1267), _two_way_questions,
    ),
    TaskSpec(
        "micro-arce", "ARC-Easy", "what a resident does, customs that hold all year", OPTION_LABELS,
        (2251, 500, 570), _four_way_questions(YEARLY),
    ),
    TaskSpec(
        "micro-arcc", "ARC-Challenge", "what a resident does, seasonal customs, mostly reformed or ambiguous",
        OPTION_LABELS, (1119, 500, 299), _four_way_questions(SEASONAL, hard=True),
    ),
    TaskSpec(
        "micro-obqa", "OpenBookQA", "what a resident does, all customs", OPTION_LABELS,
        (4957, 500, 500), _four_way_questions(COMMON),
    ),
    TaskSpec(
        "micro-boolq", "BoolQ", "whether a guest, told of in a passage, does a thing", TRUTH_LABELS,
        (2490, 500, 3270), _passage_questions,
    ),
    TaskSpec(
        "micro-near", "near shift", "other residents, another phrasing, the same customs", OPTION_LABELS,
        (0, 0, 1000), _four_way_questions(COMMON, turned=True, newcomers=True),
    ),
    TaskSpec(
        "micro-far", "far shift", "customs of the clans, which no training task asks about", OPTION_LABELS,
        (0, 0, 1000), _four_way_questions(CLANNISH),
    ),
)  # fmt: skip

TASKS: dict[str, TaskSpec] = {spec.name: spec for spec in _SPECS}
