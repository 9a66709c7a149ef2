"""Choose the rows of a pool that are most worth labelling: `bara acquire`.

Labels carry information about the global latents that rows share: BaRA's Phi, an ensemble's member, drawn
weights. They say nothing about the local latents of other rows (BaRA's theta), which joint information would
count as shared. So probabilities are averaged over `REPEATS` draws of the local latents for each draw of the
global ones; the sampling error falls with their number. Flipout's random signs serve only training and would
hide what rows share, so they are switched off.
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
from bara_pyro.extras.active.acquisition import choose, joint_information
from bara_pyro.metrics import decompose
from bara_pyro.models.gaussian_lora import unflipped
from bara_pyro.runs.asked import ask
from bara_pyro.runs.rows import OnRows
from bara_pyro.runs.system import System
from bara_pyro.types import Acquisition, Json

REPEATS = 4
NEAR = 0.9  # share of log S above which more rows cannot be ranked with these draws


@dataclass(frozen=True, repr=False)
class Pool:
    """Unlabelled rows with a run's predictions.

    Attributes:
        examples: the n rows.
        draws: log-probabilities of their answers under each draw, float64, `S x n x C`.
        shared: whether all rows share the latents of a draw; False if each row has its own.
        notes: notes on how the rows were read.
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
        examples: the rows, best first.
        rows: for each row its `id`; `chosen`, its rank from 1; `total` and `epistemic`, the uncertainty of
            its answer (nats); and `joint`, the mutual information between the latents and the answers of all
            rows up to this one (nats), or None if rows share no latents.
        summary: `rows` (in the pool), `count`, `by`, `draws` S, `joint` of all chosen rows, `most` (log S,
            the limit of `joint`) and `used_up` (the first rank at which `joint` reaches 90 % of that limit,
            or None).
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
    """Predict the answers of unlabelled rows with a fitted system.

    Args:
        system: a fitted system.
        examples: the pool, as examples or in any form that `bp.predict` takes. Rows that are too long are
            left out; answers are ignored.
        samples: draws S of the latents that rows share; an ensemble uses its members instead.
        seed: seed of the draws.
        on_rows: called after each batch with its number of rows.

    Raises:
        ConfigError: the model was trained on replies.
        DataError: every question is too long.
    """
    with unflipped(system.model):
        latents = system.model.latents
        shared = system.guide.joint and (not latents.local_sites or bool(latents.global_sites))
        repeats = REPEATS if samples and latents.local_sites and shared else 1
        asked = ask(
            system, examples, "given", samples=samples * repeats, repeats=repeats, seed=seed, on_rows=on_rows
        )
    draws = asked.draws.unflatten(0, (-1, repeats)).logsumexp(1) - math.log(repeats)
    return Pool(asked.examples, draws, shared, asked.notes)


def one_a_text(rows: Sequence[Example]) -> list[int]:
    """Return the index of the first row with each text; rows with equal texts share a label."""
    return [places[0] for places in places_by_group(together(rows, clusters=False))]


def acquire(pool: Pool, count: int, *, by: Acquisition = "batch-bald", seed: int = 0) -> Acquired:
    """Choose rows to label.

    Args:
        pool: the pool, from `ask_pool`.
        count: number of rows to choose, at most one per text (`data.clusters.compared_text`).
        by: the criterion; see `bara_pyro.extras.active.acquisition`.
        seed: seed of random choices.

    Raises:
        ConfigError: there are fewer than `count` distinct texts, or the criterion does not apply: the draws
            do not differ, or rows share no latents.
    """
    if by == "batch-bald" and not pool.shared:
        raise ConfigError(
            "by='batch-bald' needs latents that rows share, but this run draws separately for each row: "
            "choose bald or entropy."
        )
    once = torch.tensor(one_a_text(pool.examples))
    places = once[choose(pool.draws[:, once], count, by, seed=seed)]
    parts, most = decompose(pool.draws), math.log(len(pool.draws))
    information = (
        joint_information(pool.draws[:, places], seed=seed).tolist() if pool.shared else [None] * count
    )
    near = [
        number for number, nats in enumerate(information, start=1) if most and nats and nats >= NEAR * most
    ]
    rows = [
        {
            "id": pool.examples[place].id,
            "chosen": number,
            "total": float(parts.total[place]),
            "epistemic": float(parts.epistemic[place]),
            "joint": information[number - 1],
        }
        for number, place in enumerate(places.tolist(), start=1)
    ]
    summary = {
        "rows": len(pool.examples),
        "count": count,
        "by": by,
        "draws": len(pool.draws),
        "joint": information[-1],
        "most": most,
        "used_up": near[0] if near else None,
    }
    return Acquired(tuple(pool.examples[place] for place in places.tolist()), rows, summary)
