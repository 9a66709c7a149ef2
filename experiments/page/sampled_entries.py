"""What is read of the entries of studies of sampled replies."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import mean
from typing import Any

import numpy as np

from experiments.engine.results import distinct, having
from experiments.engine.sampled import THOUSAND, read_numbers
from experiments.page.values import display

REFERENCE = "lora"

Entry = Mapping[str, Any]


def numbers_of(entries: Sequence[Entry]) -> list[int]:
    """Return the numbers n of replies whose best is known."""
    return [int(n) for n in entries[0]["samples"][0]["best"]]


def target_of(entries: Sequence[Entry]) -> int:
    """Return how many replies of LoRA others are to equal: with all of its own a score may be at its end."""
    return max(numbers_of(entries)) // 4


def kinds(entries: Sequence[Entry], method: str) -> list[str]:
    """Return which draws a method was sampled with, draws first."""
    return distinct(having(entries, method=method)[0]["samples"], "draws")


def arms(entries: Sequence[Entry]) -> Iterator[tuple[str, str, str]]:
    """Yield method, kind of draws and name of everything that was sampled."""
    for method in distinct(entries, "method"):
        own = kinds(entries, method)
        for kind in own:
            yield method, kind, display(method) + (", mean" if kind == "mean" and len(own) > 1 else "")


def samples_of(entry: Entry, kind: str, temperature: float = 1.0) -> Entry:
    """Return what was sampled from an entry with such draws at a temperature."""
    [found] = having(entry["samples"], draws=kind, temperature=temperature)
    return found


def scores_of(samples: Entry, n: int) -> np.ndarray:
    """Return the expected best of n of each prompt, percent."""
    return read_numbers(samples["best"][str(n)]) * 100 / THOUSAND


def scored(entries: Sequence[Entry]) -> bool:
    """Return whether any reply is worth anything."""
    return any(scores_of(samples, 1).any() for entry in entries for samples in entry["samples"])


def diversity_of(samples: Entry) -> np.ndarray:
    """Return the diversity of each prompt's replies."""
    return read_numbers(samples["diversity"]) / 10


def by_seed(
    entries: Sequence[Entry],
    method: str,
    kind: str,
    read: Callable[[Entry], np.ndarray],
    temperature: float = 1.0,
) -> np.ndarray:
    """Return a figure of each prompt under each seed of a method, `seeds x prompts`, seeds rising."""
    own = sorted(having(entries, method=method), key=lambda entry: entry["seed"])
    return np.stack([read(samples_of(entry, kind, temperature)) for entry in own])


def temperatures_of(entries: Sequence[Entry]) -> list[float]:
    """Return the temperatures that were sampled at."""
    return distinct(entries[0]["samples"], "temperature")


def sweep(entries: Sequence[Entry], method: str, kind: str, n: int) -> np.ndarray:
    """Return score and diversity, `prompts x temperatures x 2`, means over seeds."""
    reads = (partial(scores_of, n=n), diversity_of)
    pairs = [
        [by_seed(entries, method, kind, read, temperature).mean(axis=0) for read in reads]
        for temperature in temperatures_of(entries)
    ]
    return np.array(pairs).transpose(2, 0, 1)


def prompts_of(entries: Sequence[Entry]) -> list[str]:
    """Return a name for each prompt: none has anything in common with another."""
    return [str(i) for i in range(len(scores_of(entries[0]["samples"][0], 1)))]


def curve(entries: Sequence[Entry], method: str, kind: str) -> np.ndarray:
    """Return the expected best of n, `prompts x numbers`, means over seeds."""
    by_number = [by_seed(entries, method, kind, partial(scores_of, n=n)) for n in numbers_of(entries)]
    return np.stack([values.mean(axis=0) for values in by_number], axis=-1)


def paired(entries: Sequence[Entry], *methods: str) -> list[Entry]:
    """Return the entries of the seeds that all of these methods have."""
    found = [set(distinct(having(entries, method=method), "seed")) for method in methods]
    shared = set.intersection(*found)
    return [entry for entry in entries if entry["seed"] in shared]


def tax_of(entry: Entry, key: str) -> float:
    """Return a score after minus before, mean over the tasks of questions."""
    return mean(entry["tax"][task][key] - entry["before"][task][key] for task in entry["tax"])


def taxes_of(entries: Sequence[Entry], method: str) -> dict[str, list[float]]:
    """Return accuracy after minus before of each seed, seeds rising: each task's, and `mean` over tasks."""
    own = sorted(having(entries, method=method), key=lambda entry: entry["seed"])
    by_task = {
        task: [e["tax"][task]["acc"] - e["before"][task]["acc"] for e in own] for task in own[0]["tax"]
    }
    return by_task | {"mean": [tax_of(entry, "acc") for entry in own]}


def drawn_arms(entries: Sequence[Entry]) -> list[tuple[str, str, str]]:
    """Return each method once, by draws where it has any."""
    return [(method, kind, name) for method, kind, name in arms(entries) if kind == kinds(entries, method)[0]]
