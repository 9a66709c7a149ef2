"""The vocabulary of the microworld: every token of the tokenizer is listed or derived here."""

import random
from dataclasses import dataclass
from typing import Literal

KINDS = ("smith", "farmer", "sailor", "baker", "monk", "hunter", "weaver", "miner")
HOMES = ("valley", "coast", "forest", "hills", "desert", "marsh", "island", "town")
CLANS = ("wolf", "heron", "otter", "raven", "hare", "bear", "pike", "owl")
SEASONS = ("spring", "summer", "autumn", "winter")
OPTION_LABELS = ("A", "B", "C", "D")
TRUTH_LABELS = ("True", "False")
NUMBERS = tuple(str(n) for n in range(20))
PAD, UNKNOWN, END = "<pad>", "<unk>", "<end>"

_GRAMMAR_WORDS = tuple(
    ". , : ? Answer what does in of the a is lives belongs to clan meets guest host tell three things about "  # noqa: SIM905
    "which these reply gives program x add sub mul max min".split()
)


@dataclass(frozen=True)
class Relation:
    """Something that residents do.

    Attributes:
        name: the verb as in "what does somebody eat".
        verb: the verb as in "somebody eats".
        values: its eight possible values.
        governed_by: the attribute that determines the custom.
        seasonal: whether the custom differs between seasons.
    """

    name: str
    verb: str
    values: tuple[str, ...]
    governed_by: Literal["kind", "home", "clan"]
    seasonal: bool = False

    @property
    def attributes(self) -> tuple[str, ...]:
        """The kinds, homes or clans that determine the custom."""
        return {"kind": KINDS, "home": HOMES, "clan": CLANS}[self.governed_by]


def _relation(
    name: str, values: str, governed_by: Literal["kind", "home", "clan"], seasonal: bool = False
) -> Relation:
    return Relation(name, name + "s", tuple(values.split()), governed_by, seasonal)


# The last two are the far-shift domain: they are in the corpus, but in no training task.
RELATIONS = (
    _relation("eat", "rice fish corn plum bread beans cheese nuts", "home"),
    _relation("drink", "tea milk cider wine broth juice beer water", "home"),
    _relation("wear", "caps boots cloaks gloves scarves aprons robes masks", "kind"),
    _relation("hold", "saws ropes lamps knives baskets hammers nets books", "kind"),
    _relation("keep", "goats bees hens cats dogs ducks sheep horses", "kind", seasonal=True),
    _relation("sell", "salt wool coal glass clay wax furs silk", "kind", seasonal=True),
    _relation("build", "huts tents boats barns towers walls bridges mills", "home", seasonal=True),
    _relation("plant", "oats roses garlic melons peas flax herbs vines", "home", seasonal=True),
    _relation("sing", "hymns ballads rounds laments lullabies marches carols chants", "clan"),
    _relation("play", "chess drums dice flutes cards harps darts bells", "clan"),
)
COMMON = RELATIONS[:8]
YEARLY = RELATIONS[:4]
SEASONAL = RELATIONS[4:8]
CLANNISH = RELATIONS[8:]


def option(label: str, value: str) -> str:
    """Return an option as one word of a prompt, so that a small model need not learn to combine two."""
    return f"{label}:{value}"


def make_names(count: int) -> list[str]:
    """Return `count` different four-letter names, which are the same in every world."""
    syllables = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]
    taken = set(base_words())
    names = [first + second for first in syllables for second in syllables if first != second]
    return random.Random("microworld names").sample([name for name in names if name not in taken], count)


def base_words() -> list[str]:
    """Return every word except names, in a fixed order and without repeats."""
    groups: list[tuple[str, ...]] = [(PAD, UNKNOWN, END), OPTION_LABELS, TRUTH_LABELS, _GRAMMAR_WORDS]
    groups += [KINDS, HOMES, CLANS, SEASONS, NUMBERS]
    for relation in RELATIONS:
        groups += [(relation.name, relation.verb), relation.values]
        groups += [tuple(option(label, value) for value in relation.values) for label in OPTION_LABELS]
    return list(dict.fromkeys(word for group in groups for word in group))
