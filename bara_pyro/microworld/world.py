"""The world itself: residents, what they are, what is customary, and how likely each custom is.

Every resident has a kind, a home and a clan. Those are certain. What a resident does (eats, wears, ...)
follows the custom of one of these three, and a custom is a distribution over eight values: one value for
certain, or two values with known probabilities. Customs were reformed at some point: each has a
distribution of *today*, which is the truth of every task, and one of the *corpus*, which the backbone was
pretrained on. For half of the customs the corpus still speaks mostly of the old value, and that is
what fine-tuning has to mend.
"""

import random
from dataclasses import dataclass
from typing import Literal

from bara_pyro.microworld.words import CLANS, HOMES, KINDS, RELATIONS, SEASONS, Relation, make_names

Era = Literal["today", "corpus"]
Split = Literal["train", "validation", "test"]

WORLD_SEED = 0
NUM_RESIDENTS = 220
NUM_TRAIN, NUM_VALIDATION = 155, 28  # residents whom the splits of a task ask about; test has the others
NUM_NEWCOMERS = 40  # known from the corpus like the residents, but in no training task
REFORMED = 0.5  # share of customs on which corpus and today disagree
AMBIGUOUS = 0.5  # share of customs with two values today
STALE = 0.75  # weight of the old value in the corpus where the custom was reformed


@dataclass(frozen=True)
class Resident:
    """Someone, with the three certain attributes that decide what they do.

    Attributes:
        name: one word of the vocabulary.
        kind: trade, an index into `words.KINDS`.
        home: where they live, an index into `words.HOMES`.
        clan: an index into `words.CLANS`.
    """

    name: str
    kind: int
    home: int
    clan: int


@dataclass(frozen=True)
class Custom:
    """What those who share an attribute do.

    Attributes:
        today: the true probabilities of the eight values of the relation.
        corpus: the probabilities with which the pretraining text speaks of them.
        old: index of the value of before the reform, or -1 where nothing was reformed.
    """

    today: tuple[float, ...]
    corpus: tuple[float, ...]
    old: int

    def probabilities(self, era: Era) -> tuple[float, ...]:
        """Return the distribution over the eight values in the given era."""
        return self.today if era == "today" else self.corpus


class World:
    """All residents and customs, drawn from a seed.

    Args:
        seed: what everything is drawn from; the shipped backbone knows the world of `WORLD_SEED`.

    Attributes:
        seed: as given.
        residents: those whom the tasks ask about, split by split; see `split`.
        newcomers: those whom only the near-shifted task asks about.
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
        """What tells the drawings, rows and residents of another world from those of the shipped one."""
        return "" if self.seed == WORLD_SEED else f" of world {self.seed}"

    def split(self, name: Split) -> tuple[Resident, ...]:
        """Return the residents whom a split asks about, the same ones in every task."""
        seen = NUM_TRAIN + NUM_VALIDATION
        ends = {"train": (0, NUM_TRAIN), "validation": (NUM_TRAIN, seen), "test": (seen, NUM_RESIDENTS)}
        return self.residents[slice(*ends[name])]

    def custom(self, relation: Relation, attribute: int, season: int) -> Custom:
        """Return the custom of those with `attribute` (a kind, home or clan) in a season (0 to 3)."""
        return self._customs[relation.name, attribute, season]

    def custom_of(self, who: Resident, relation: Relation, season: int) -> Custom:
        """Return the custom that a resident follows: that of their kind, home or clan."""
        return self.custom(relation, getattr(who, relation.governed_by), season)


def _draw_seasons(rng: random.Random, seasonal: bool) -> list[Custom]:
    """Return one custom a season: four different draws, or the same one four times."""
    if seasonal:
        return [_draw_custom(rng) for _ in SEASONS]
    return [_draw_custom(rng)] * len(SEASONS)


def _draw_custom(rng: random.Random) -> Custom:
    """Draw today's distribution and, where the custom was reformed, what the corpus says instead.

    All values that matter lie in different slots (index modulo 4), so that one question can offer them all.
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
