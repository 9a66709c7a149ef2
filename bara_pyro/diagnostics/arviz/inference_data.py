r"""Export a fitted system to ArviZ: draws of gates and answers from the posterior and the prior.

The draws are those of `core.prediction.predict` with the same seed. They are independent and form one chain,
so R-hat does not apply. Groups and variables are listed in `bara_pyro.diagnostics.arviz.groups`; methods
without gates lack the variables of gates.

**The ELBO of a draw** is that of `MeanFieldELBO` with both KL weights at 1. It is scaled from the n given
rows to all N training rows, and its mean over draws estimates the bound:

    elbo_s = N / n \sum_i (log p(y_i | draw s) - kl_theta_si) - kl_phi

The KLs are analytic. The KL of theta still varies between draws, because q(theta | x) sees inputs that depend
on the draws in lower layers. If a KL has no closed form, it and `elbo` are left out.

**`pareto_k`** has one value for each row and no draws, so it is in `constant_data`. On rows that were not
used in training it only measures how far the likelihood spreads over the draws; see `diagnostics.arviz.loo`.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from bara_pyro.core.attached import pair_of
from bara_pyro.core.gate_draws import chosen_modules, ranks_of
from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.likelihood import require_answer_tokens
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data import EncodedSplit, Example, Task
from bara_pyro.data.encode import prompt_text
from bara_pyro.data.types import Batch
from bara_pyro.diagnostics.arviz.compat import Idata, container, pareto_smoothed
from bara_pyro.diagnostics.arviz.groups import Variables, dataset, module_coords, nbytes
from bara_pyro.diagnostics.full_draws import FullDraws, Rows, answers, full_draws, wanted_rows
from bara_pyro.diagnostics.sparsity import TAU, check_tau
from bara_pyro.errors import ConfigError
from bara_pyro.guides.prior import PriorGuide
from bara_pyro.metrics import sparsity_by_module
from bara_pyro.posthoc.corrections import Corrections
from bara_pyro.runs.config import load_config
from bara_pyro.runs.evaluate import environment, true_probabilities
from bara_pyro.runs.system import System
from bara_pyro.types import Json
from bara_pyro.untrusted.schemas import SCHEMA

Pair: TypeAlias = tuple[AdaptedLM, SiteGuide]
GIVEN = "given"  # name of the task and method of a (model, guide) pair, which is not a run


def looked_at(
    run: System | Pair | AdaptedLM, guide: SiteGuide | None, split: str, rows: Rows | Batch
) -> tuple[System, EncodedSplit]:
    """Return a run and the requested rows; arguments as for `to_inference_data`.

    Raises:
        ConfigError: `run` is neither a run nor a program with its guide, or `rows` does not fit it.
        DataError: a row is unknown.
    """
    if isinstance(run, System):
        if guide is not None or isinstance(rows, Batch):
            raise ConfigError(
                "A run has its own guide and rows: leave out guide, and give rows as a number or identifiers."
            )
        return run, wanted_rows(run, split, rows)
    if isinstance(run, AdaptedLM):
        if guide is None:
            raise ConfigError(f"{type(run).__name__} needs a guide: give (model, guide).")
        run = (run, guide)
    model, guide = pair_of(run)
    if not isinstance(rows, Batch):
        raise ConfigError(
            f"rows is {rows!r}, but (model, guide) has no rows of a run: give a batch, such as "
            "bp.encode(examples, tokenizer).batch(range(8), answer_ids)."
        )
    require_answer_tokens(model.likelihood, "Exported draws")
    return _as_run(model, guide, rows, split)


def _as_run(model: AdaptedLM, guide: SiteGuide, batch: Batch, split: str) -> tuple[System, EncodedSplit]:
    """Return a run with default settings that has the rows of a batch as its split."""
    tokens = [ids[mask].tolist() for ids, mask in zip(batch.input_ids, batch.attention_mask, strict=True)]
    ids = batch.ids or tuple(map(str, range(len(batch))))
    labels = (-1,) * len(batch) if batch.labels is None else tuple(batch.labels.tolist())
    part = EncodedSplit(tuple(tokens), labels, ids, pad_id=0)
    texts = [_read(model, torch.tensor(row)) for row in tokens]
    examples: Any = tuple(Example(*row) for row in zip(ids, texts, labels, strict=True))
    names = tuple(_read(model, token.unsqueeze(0)).strip() or str(int(token)) for token in batch.answer_ids)
    task = replace(Task(GIVEN, names, names=names), **{split: examples})
    return System(
        load_config(), model.backbone, task, batch.answer_ids, model, guide, Corrections(model)
    ), part


def _read(model: AdaptedLM, tokens: Tensor) -> str:
    tokenizer = model.backbone.tokenizer
    return "" if tokenizer is None else str(tokenizer.decode(tokens.tolist()))


MAX_BYTES = 2**30


def to_inference_data(
    system: System | Pair | AdaptedLM,
    guide: SiteGuide | None = None,
    rows: Rows | Batch = 64,
    *,
    split: str = "test",
    samples: int = 100,
    modules: Sequence[str] | None = None,
    prior: bool = True,
    tau: float = TAU,
    seed: int | None = None,
    max_bytes: int = MAX_BYTES,
    drawn: FullDraws | None = None,
) -> Idata:
    """Return draws of a fitted system as an `arviz.InferenceData` (ArviZ 0.x) or a `DataTree` (1.x).

    Args:
        system: a fitted run, a pair `(model, guide)`, or a model (then give `guide`).
        guide: the guide of a model.
        rows: for a run the number of rows, taken from the start of the split, or their identifiers. For a
            model and guide a batch.
        split: the split of a run's rows; PSIS-LOO needs "train".
        samples: number S of draws. A guide with its own predictive distribution may return another number.
        modules: paths of the modules whose gates are kept; all if None. KLs always cover all modules.
        prior: also draw from the prior, which doubles the work.
        tau: threshold of `effective_rank` and `sparsity`.
        seed: seed of the draws; the configured seed if None.
        max_bytes: largest size of all arrays in bytes.
        drawn: the posterior draws, if they have been drawn with these arguments before.

    Raises:
        ConfigError: an argument is unknown or out of range, the arrays would exceed `max_bytes`, or `system`
            is neither a run nor a model with a guide.
        DataError: a row is unknown, or the probabilities of a draw are NaN.

    Examples:
        >>> import bara_pyro as bp
        >>> run = bp.train(task="micro-wgs", method="bara-gate", steps=2, limit=8, out="runs/first")
        >>> data = bp.to_inference_data(run, rows=3, samples=4, prior=False)
        >>> dict(data["posterior"]["phi"].sizes)
        {'chain': 1, 'draw': 4, 'module': 9, 'rank': 8}
        >>> dict(data["sample_stats"]["sparsity"].sizes)
        {'chain': 1, 'draw': 4, 'module': 9}

        For your own program and guide:

        >>> batch = run.split("test").batch(range(3), run.answer_ids)
        >>> data = bp.to_inference_data((run.model, run.guide), rows=batch, samples=4, prior=False)
        >>> data["posterior_predictive"]["probs"].shape  # chains x draws x rows x answers
        (1, 4, 3, 2)
    """
    check_tau(tau)
    is_system = isinstance(system, System)
    system, part = looked_at(system, guide, split, rows)
    paths = chosen_modules(system.model, modules)
    features = _features(system, part, prior)
    needed, n = nbytes(features, _sizes(system, part, samples, len(paths))), len(part)
    if needed > max_bytes:
        raise ConfigError(
            f"{samples} draws of {n} rows would take {needed:,} bytes, but max_bytes is {max_bytes:,}: "
            f"lower rows (to about {max(1, n * max_bytes // needed)}) or samples, or choose fewer modules."
        )
    seed = system.config.predict.seed if seed is None else seed
    if drawn is None:
        drawn = full_draws(system, system.guide, part, samples, seed, paths)
    arrays: dict[str, Variables] = {
        "posterior": drawn.gates(),
        "posterior_predictive": _predictive(drawn, part, seed, "y"),
        "constant_data": _constants(system, part, split),
        "sample_stats": _gate_stats(drawn, tau, ranks_of(system.model, paths)) if "gates" in features else {},
    }
    if {"gates", "prior"} <= features:
        # One row in a batch: padding is filled with the mean, which a prior may lack.
        unseen = full_draws(system, PriorGuide(system.model), part, samples, seed, paths, batch_size=1)
        arrays |= {"prior": unseen.gates(), "prior_predictive": _predictive(unseen, part, seed, "prior/y")}
    coords = {
        "chain": np.array([0]),
        "draw": np.arange(len(drawn.log_probs)),
        "obs": np.array(part.ids),
        "rank": np.arange(system.model.r),
        "answer": np.array(system.task.names or system.task.labels),
        **module_coords(paths),
    }
    if "labels" in features:
        labels = torch.tensor(part.labels)
        likelihood = drawn.log_probs.gather(-1, labels.expand(len(drawn.log_probs), -1).unsqueeze(-1))[..., 0]
        arrays |= {"log_likelihood": {"y": likelihood}, "observed_data": {"y": labels}}
        arrays["sample_stats"] |= _elbo(drawn, likelihood, system.model.num_data)
        arrays["constant_data"]["pareto_k"] = _pareto_k(likelihood)
    datasets = {group: dataset(group, values, coords) for group, values in arrays.items() if values}
    facts = _attributes(system, split, samples, seed, tau)
    if not is_system:  # a program and its guide, without the settings of a run
        pair = f"{type(system.model).__name__}, {type(system.guide).__name__}"
        facts |= {"method": pair, "config_hash": "", "split": GIVEN}
    return container(datasets, facts)


def _features(system: System, part: EncodedSplit, prior: bool) -> set[str]:
    """Return what the system and its rows offer, in the terms of `Variable.needs`."""
    features = {"labels"} if min(part.labels) >= 0 else set()
    if system.model.gates is not None:
        features |= {"gates", *system.model.gates.kinds}
    return features | ({"prior"} if prior else set())


def _sizes(system: System, part: EncodedSplit, samples: int, modules: int) -> dict[str, int]:
    if samples < 1:
        raise ConfigError(f"samples is {samples}: give 1 or more.")
    return {
        "chain": 1,
        "draw": max(samples, system.guide.copies),
        "obs": len(part),
        "module": modules,
        "rank": system.model.r,
        "answer": len(system.task.labels),
    }


def _predictive(drawn: FullDraws, part: EncodedSplit, seed: int, key: str) -> dict[str, Tensor]:
    return {"y": answers(drawn.log_probs, part.ids, seed, key), "probs": drawn.log_probs.exp()}


def _gate_stats(drawn: FullDraws, tau: float, ranks: Sequence[int]) -> dict[str, Tensor]:
    stats = {"kl_phi": drawn.kl_phi, "kl_theta": drawn.kl_theta}
    gates = drawn.psi
    units = (gates.abs() > tau).sum(dim=-1).double().mean(dim=-1)
    stats["effective_rank"] = units.expand(drawn.log_probs.shape[:2])
    stats["sparsity"] = torch.stack([sparsity_by_module(of_draw[None], tau, ranks) for of_draw in gates])
    return {name: value for name, value in stats.items() if value is not None}


def _elbo(drawn: FullDraws, likelihood: Tensor, num_data: int) -> dict[str, Tensor]:
    """Return `elbo` (`S`), or nothing if the KL of a latent is unknown."""
    known = {
        name: getattr(drawn, f"kl_{name}") for name in ("phi", "theta") if getattr(drawn, name) is not None
    }
    if not known or any(kl is None for kl in known.values()):
        return {}
    rows = likelihood - known.get("theta", 0.0)
    return {"elbo": num_data / likelihood.shape[1] * rows.sum(dim=1) - known.get("phi", 0.0)}


def _pareto_k(likelihood: Tensor) -> list[float]:
    """Return the Pareto k of each row, NaN for rows on which all draws agree."""
    rows = likelihood.T.numpy()
    return [pareto_smoothed(-row)[1] if row.max() > row.min() else math.nan for row in rows]


def _constants(system: System, part: EncodedSplit, split: str) -> Variables:
    texts = {row.id: prompt_text(row) for row in getattr(system.task, split)}
    truth = true_probabilities(system, part, split)
    return {
        "length": [len(texts[row_id]) for row_id in part.ids],
        "tokens": list(map(len, part.token_ids)),
        "difficulty": torch.special.entr(truth).sum(dim=-1),
        "truth": truth,
    }


def _attributes(system: System, split: str, samples: int, seed: int, tau: float) -> Json:
    """Return the origin of the draws as numbers and text, the only types of netCDF attributes."""
    return {
        "schema": SCHEMA,
        "inference_library": "bara_pyro",
        "config_hash": system.config.hash,
        "method": system.config.method.name,
        "task": system.task.name,
        "split": split,
        "seed": seed,
        "samples": samples,
        "tau": tau,
        "num_data": system.model.num_data,
        "versions": json.dumps(environment()["versions"], sort_keys=True),
    }
