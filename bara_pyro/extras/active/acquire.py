"""Rows of a pool that are worth labelling, by what a run knows of them: `bara acquire`.

Labels tell of what rows share: the global latents (BaRA's Phi, a member of an ensemble, drawn weights). What
each row draws for itself (BaRA's theta) no label of another row helps to know, and joint information would
count it as if it were shared. So each draw of the global latents gets `REPEATS` draws of the local ones, over
which probabilities are averaged; the sampling error that this leaves falls with their number. Flipout's signs
are no latents but a way to train: they would hide what rows share, and are left out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bara_pyro.data import Example
from bara_pyro.data.clusters import places_by_group, together
from bara_pyro.data.tables import Data
from bara_pyro.errors import ConfigError
from bara_pyro.metrics import choose, decompose, joint_information
from bara_pyro.models.gaussian_lora import unflipped
from bara_pyro.runs.asked import answers_drawn
from bara_pyro.runs.evaluate import OnRows
from bara_pyro.runs.rows import reading_notes
from bara_pyro.runs.system import System
from bara_pyro.types import Acquisition, Json

REPEATS = 4
NEAR = 0.9  # share of log S from which on the draws are used up


@dataclass(frozen=True, repr=False)
class Pool:
    """Rows that may be labelled, and what a run says of them.

    Attributes:
        examples: the n rows.
        draws: log-probabilities of their answers under each draw, float64, `S x n x C`.
        shared: whether a draw is one of latents that rows share; each row has its own otherwise.
        notes: what is worth knowing about the rows.
    """

    examples: tuple[Example, ...]
    draws: Tensor
    shared: bool
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        return f"Pool of {len(self.examples)} rows, {len(self.draws)} draws"


@dataclass(frozen=True, repr=False)
class Acquired:
    """Rows to label.

    Attributes:
        examples: the rows, the first choice first.
        rows: a line a row: `id`; `chosen`, its place from 1; `total` and `epistemic`, the uncertainty of its
            answer (nats); `joint`, what the answers of the rows up to this one tell of the latents (nats),
            None where the rows share none.
        summary: `rows` (of the pool), `count`, `by`, `draws` S, `joint` of all that were chosen, `most` (log
            S, more than which no answers can tell) and `used_up` (from which place on `joint` is at least
            nine tenths of that; None: from none).
    """

    examples: tuple[Example, ...]
    rows: list[Json]
    summary: Json

    def __repr__(self) -> str:
        about = ", ".join(f"{name} {value}" for name, value in self.summary.items())
        return f"Acquired: {about}"


def ask_pool(
    system: System,
    examples: Sequence[Example] | Data,
    *,
    samples: int = 32,
    seed: int = 0,
    on_rows: OnRows | None = None,
) -> Pool:
    """Ask a fitted system rows that have no answers yet.

    Args:
        system: fitted.
        examples: the pool, read already or in any form that `bp.predict` takes; rows whose question is too
            long are left out, answers are not looked at.
        samples: draws S of the latents that rows share; an ensemble has as many as members.
        seed: of the draws.
        on_rows: called with the number of rows just done.

    Raises:
        ConfigError: the model learnt replies.
        DataError: no question is short enough.
    """
    with unflipped(system.model):
        latents = system.model.latents
        shared = system.guide.joint and (not latents.local_sites or bool(latents.global_sites))
        repeats = REPEATS if samples and latents.local_sites and shared else 1
        kept, split, draws = answers_drawn(
            system, examples, "given", samples * repeats, repeats=repeats, seed=seed, on_rows=on_rows
        )
    draws = draws.unflatten(0, (-1, repeats)).logsumexp(1) - math.log(repeats)
    return Pool(kept, draws, shared, tuple(reading_notes(system.config, system.backbone, split, "given")))


def one_a_text(rows: Sequence[Example]) -> list[int]:
    """Return the place of the first row of each text: the label of one is that of all."""
    return [places[0] for places in places_by_group(together(rows, clusters=False))]


def acquire(pool: Pool, count: int, *, by: Acquisition = "batch-bald", seed: int = 0) -> Acquired:
    """Choose rows to label.

    Args:
        pool: of `ask_pool`.
        count: how many to choose; of rows of one text (`data.clusters.compared_text`) one at most.
        by: see `bara_pyro.metrics.acquisition`.
        seed: of what is left to chance.

    Raises:
        ConfigError: there are fewer than `count` texts; `by` asks how much draws differ that do not differ,
            or what rows tell together that share nothing.
    """
    if by == "batch-bald" and not pool.shared:
        raise ConfigError(
            "This run draws for each row by itself: no answer tells of what rows share, as by='batch-bald' "
            "asks; give bald or entropy."
        )
    once = torch.tensor(one_a_text(pool.examples))
    places = once[choose(pool.draws[:, once], count, by, seed=seed)]
    parts, most = decompose(pool.draws), math.log(len(pool.draws))
    told = joint_information(pool.draws[:, places], seed=seed).tolist() if pool.shared else [None] * count
    near = [number for number, nats in enumerate(told, start=1) if most and nats and nats >= NEAR * most]
    rows = [
        {
            "id": pool.examples[place].id,
            "chosen": number,
            "total": float(parts.total[place]),
            "epistemic": float(parts.epistemic[place]),
            "joint": told[number - 1],
        }
        for number, place in enumerate(places.tolist(), start=1)
    ]
    summary = {
        "rows": len(pool.examples),
        "count": count,
        "by": by,
        "draws": len(pool.draws),
        "joint": told[-1],
        "most": most,
        "used_up": near[0] if near else None,
    }
    return Acquired(tuple(pool.examples[place] for place in places.tolist()), rows, summary)
