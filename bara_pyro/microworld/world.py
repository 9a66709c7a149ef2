"""The world: its residents with their attributes, and the customs that determine what they do.

Every resident has a kind, a home and a clan, which are certain. What a resident does (eats, wears, ...)
follows the custom of one of these three attributes. A custom is a distribution over eight values: one certain
value, or two values with known probabilities. Each custom has a distribution *today*, which is the truth of
every task, and one in the *corpus*, on which the backbone was pretrained. Half of the customs were reformed:
for these the corpus still favours the old value, which fine-tuning has to correct.
"""

import random
from dataclasses import dataclass
from typing import Literal

from bara_pyro.microworld.words import CLANS, HOMES, KINDS, RELATIONS, SEASONS, Relation, make_names

Era = Literal["today", "corpus"]
Split = Literal["train", "validation", "test"]

WORLD_SEED = 0
NUM_RESIDENTS = 220
NUM_TRAIN, NUM_VALIDATION = 155, 28  # residents in these splits of a task; the others are in test
NUM_NEWCOMERS = 40  # in the corpus like the residents, but in no training task
REFORMED = 0.5  # share of customs on which corpus and today disagree
AMBIGUOUS = 0.5  # share of customs with two values today
STALE = 0.75  # weight of the old value of a reformed custom in the corpus


@dataclass(frozen=True)
class Resident:
    """A resident, with the three attributes that determine what they do.

    Attributes:
        name: one word of the vocabulary.
        kind: trade, an index into `words.KINDS`.
        home: place, an index into `words.HOMES`.
        clan: an index into `words.CLANS`.
    """

    name: str
    kind: int
    home: int
    clan: int


@dataclass(frozen=True)
class Custom:
    """What residents with a common attribute do.

    Attributes:
        today: the true probabilities of the eight values of the relation.
        corpus: the probabilities of the values in the pretraining text.
        old: index of the value before the reform, or -1 if the custom was not reformed.
    """

    today: tuple[float, ...]
    corpus: tuple[float, ...]
    old: int

    def probabilities(self, era: Era) -> tuple[float, ...]:
        """Return the distribution over the eight values today or in the corpus."""
        return self.today if era == "today" else self.corpus


class World:
    """All residents and customs, drawn from a seed.

    Args:
        seed: the seed of the world; the shipped backbone knows the world of `WORLD_SEED`.

    Attributes:
        seed: seed of the world.
        residents: the residents that tasks ask about; see `split`.
        newcomers: residents that only the near-shift task asks about.
    """

    def __init__(self, seed: int = WORLD_SEED) -> None:
        self.seed = seed
        rng = random.Random(f"microworld {seed}")
        names = make_names(NUM_RESIDENTS + NUM_NEWCOMERS)
        known = [
            Resident(name, rng.randrange(len(KINDS)), rng.randrange(len(HOMES)), rng.randrange(len(CLANS)))
            for name in names
        ]
        self.residents = tuple(known[:NUM_RESIDENTS])
        self.newcomers = tuple(known[NUM_RESIDENTS:])
        self._customs = {
            (relation.name, attribute, season): custom
            for relation in RELATIONS
            for attribute in range(len(relation.attributes))
            for season, custom in enumerate(_draw_seasons(rng, relation.seasonal))
        }

    @property
    def elsewhere(self) -> str:
        """A suffix for seeds and ids of another world than the shipped one; empty for that one."""
        return "" if self.seed == WORLD_SEED else f" of world {self.seed}"

    def split(self, name: Split) -> tuple[Resident, ...]:
        """Return the residents of a split, which are the same in every task."""
        test_start = NUM_TRAIN + NUM_VALIDATION
        ends = {
            "train": (0, NUM_TRAIN),
            "validation": (NUM_TRAIN, test_start),
            "test": (test_start, NUM_RESIDENTS),
        }
        return self.residents[slice(*ends[name])]

    def custom(self, relation: Relation, attribute: int, season: int) -> Custom:
        """Return the custom of residents with `attribute` (a kind, home or clan) in a season (0 to 3)."""
        return self._customs[relation.name, attribute, season]

    def custom_of(self, who: Resident, relation: Relation, season: int) -> Custom:
        """Return the custom that a resident follows, by their kind, home or clan."""
        return self.custom(relation, getattr(who, relation.governed_by), season)


def _draw_seasons(rng: random.Random, seasonal: bool) -> list[Custom]:
    """Return one custom per season: four different draws, or the same draw four times."""
    if seasonal:
        return [_draw_custom(rng) for _ in SEASONS]
    return [_draw_custom(rng)] * len(SEASONS)


def _draw_custom(rng: random.Random) -> Custom:
    """Draw today's distribution and, for a reformed custom, the corpus's distribution.

    Values with positive probability have different indices modulo 4, so that a question can offer them all.
    """
    first, second, old = (slot + 4 * rng.randrange(2) for slot in rng.sample(range(4), 3))
    weights = [0.0] * 8
    weights[first] = rng.choice((0.6, 0.7, 0.8)) if rng.random() < AMBIGUOUS else 1.0
    weights[second] = 1.0 - weights[first]
    today = tuple(weights)
    if rng.random() >= REFORMED:
        return Custom(today, today, -1)
    corpus = [(1.0 - STALE) * weight for weight in weights]
    corpus[old] = STALE
    return Custom(today, tuple(corpus), old)
