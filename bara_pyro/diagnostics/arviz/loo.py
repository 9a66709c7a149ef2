"""Leave-one-out by importance sampling, and methods compared by it.

**What it is.** PSIS-LOO (Vehtari, Gelman and Gabry 2017) asks how well row i would have been predicted by a
posterior that had not seen it, by giving every draw the weight 1 / p(y_i | draw). That takes row i back out
of a posterior *that was conditioned on it*: it makes sense on training rows (`split="train"`) and only there.
On other rows it would remove what was never put in; their plain likelihood is already that of unseen rows.

**What it is not.** The draws are of q, not of the posterior, and the weights do not mend the difference. They
act on latents only: weights of the adapters that are points (A and B) have seen row i and stay as they are.
So the estimate is too hopeful, and of a method without any spread there is none. Where there are validation
rows, their likelihood is the better judge.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from bara_pyro.diagnostics.arviz.compat import (
    Idata,
    Loo,
    inference_groups,
    psis_loo,
    stacking_weights,
    standard_error,
)
from bara_pyro.errors import ConfigError, DataError


class NoSpreadError(ConfigError):
    """All draws are the same: there is nothing to weigh."""


@dataclass(frozen=True)
class Ranked:
    """A method in a comparison by PSIS-LOO; sums over the rows, nats."""

    method: str
    elpd: float  # expected log predictive probability
    se: float  # its standard error over rows
    difference: float  # how far it is behind the best
    difference_se: float  # the standard error of that over rows
    p: float  # effective number of parameters
    weight: float  # in the mixture that predicts the left-out rows best
    unreliable: int  # rows whose Pareto k is above the limit; with more than a few all this is worth little


def loo(data: Idata) -> Loo:
    """Return PSIS-LOO of `to_inference_data(system, split="train", ...)`, with the Pareto k of every row.

    Raises:
        ConfigError: the rows are not of the training split, or all draws are the same (`NoSpreadError`).
        DataError: the rows have no labels.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.diagnostics.arviz.inference_data import to_inference_data
        >>> from bara_pyro.diagnostics.arviz.loo import loo
        >>> run = bp.train(task="micro-wgs", method="bara-gate", steps=2, limit=4, out="runs/first")
        >>> data = to_inference_data(run, split="train", rows=4, samples=30, prior=False)
        >>> found = loo(data)
        >>> found.pareto_k.shape
        torch.Size([4])
    """
    split = data.attrs.get("split")
    if split != "train":
        raise ConfigError(
            f"The rows are of the split {split!r}, which the posterior has not seen: export them with "
            "split='train', or take the plain likelihood, which is that of unseen rows already."
        )
    groups = inference_groups(data)
    if "log_likelihood" not in groups:
        raise DataError("There is no group log_likelihood: PSIS-LOO needs rows whose labels are known.")
    likelihood = groups["log_likelihood"]
    if not float((likelihood["y"].max("draw") - likelihood["y"].min("draw")).max()) > 0:
        raise NoSpreadError(
            f"All draws of {data.attrs.get('method')!r} are the same: PSIS-LOO re-weights draws and needs a "
            "posterior with some spread."
        )
    return psis_loo(likelihood)


def compare(methods: Mapping[str, Idata]) -> tuple[Ranked, ...]:
    """Rank methods (name -> data, as `loo` takes it) by PSIS-LOO on the same training rows, best first.

    Raises:
        ConfigError: fewer than two methods, or what `loo` raises.
        DataError: the methods do not have the same rows.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.diagnostics.arviz.inference_data import to_inference_data
        >>> from bara_pyro.diagnostics.arviz.loo import compare
        >>> data = {}
        >>> for method in ("bara-gate", "bara"):
        ...     run = bp.train(task="micro-wgs", method=method, steps=2, limit=4, out=f"runs/{method}")
        ...     data[method] = to_inference_data(run, split="train", rows=4, samples=30, prior=False)
        >>> ranked = compare(data)
        >>> sorted(one.method for one in ranked), ranked[0].difference  # the best first
        (['bara', 'bara-gate'], 0.0)
    """
    if len(methods) < 2:
        raise ConfigError(f"A comparison needs two methods or more, not {len(methods)}.")
    results = {name: loo(data) for name, data in methods.items()}
    first = next(iter(results))
    for name, result in results.items():
        if result.ids != results[first].ids:
            raise DataError(f"{first!r} and {name!r} have different rows: export both with the same rows.")
    weights = stacking_weights(results)
    best = max(results.values(), key=lambda result: result.elpd)
    rows = []
    for name, result in sorted(results.items(), key=lambda item: item[1].elpd, reverse=True):
        behind = best.pointwise - result.pointwise
        gap, error = float(behind.sum()), standard_error(behind)
        unreliable = len(result.unreliable)
        rows.append(Ranked(name, result.elpd, result.se, gap, error, result.p, weights[name], unreliable))
    return tuple(rows)
