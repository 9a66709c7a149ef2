"""The groups of exported draws: dimensions, type and unit of each variable, and when it exists."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import xarray

SAMPLE = ("chain", "draw")
FLOAT, SMALL, INTEGER = "float64", "float32", "int64"


@dataclass(frozen=True)
class Variable:
    """One variable of a group."""

    dims: tuple[str, ...]
    dtype: str
    text: str  # description
    unit: str = ""  # "nats", "tokens", ..; empty for a plain number
    # What the variable needs: "phi", "theta" (such a gate), "gates" (either), "labels" (for every row),
    # "prior" (draws from the prior).
    needs: tuple[str, ...] = ()


def _gates(*needs: str) -> dict[str, Variable]:
    both = (*SAMPLE, "obs", "module", "rank")
    return {
        "phi": Variable((*SAMPLE, "module", "rank"), SMALL, "global gate Phi", needs=("phi", *needs)),
        "theta": Variable(both, SMALL, "local gate theta at the last token", needs=("theta", *needs)),
        "gate": Variable(both, SMALL, "Phi * theta at the last token", needs=("phi", "theta", *needs)),
    }


def _predictive(*needs: str) -> dict[str, Variable]:
    probs = "probability of each answer under the draw"
    return {
        "y": Variable((*SAMPLE, "obs"), INTEGER, "drawn answer, an index into the answers", needs=needs),
        "probs": Variable((*SAMPLE, "obs", "answer"), FLOAT, probs, needs=needs),
    }


_ROW = (*SAMPLE, "obs")
GROUPS: dict[str, dict[str, Variable]] = {
    "posterior": _gates(),
    "prior": _gates("prior"),
    "posterior_predictive": _predictive(),
    "prior_predictive": _predictive("gates", "prior"),
    "log_likelihood": {"y": Variable(_ROW, FLOAT, "log p(label | draw)", "nats", ("labels",))},
    "sample_stats": {
        "elbo": Variable(
            SAMPLE, FLOAT, "evidence lower bound of all training rows, by draw", "nats", ("gates", "labels")
        ),
        "kl_phi": Variable(SAMPLE, FLOAT, "KL(q(Phi) || p(Phi)), all modules, weight 1", "nats", ("phi",)),
        "kl_theta": Variable(
            _ROW, FLOAT, "KL(q(theta | x) || p(theta)), all modules and tokens, weight 1", "nats", ("theta",)
        ),
        "effective_rank": Variable(
            _ROW, FLOAT, "units whose gate exceeds tau, mean over modules", "units", ("gates",)
        ),
        "sparsity": Variable(
            (*SAMPLE, "module"), FLOAT, "gates of all rows with |gate| < tau", "percent", ("gates",)
        ),
    },
    "observed_data": {"y": Variable(("obs",), INTEGER, "label, an index into the answers", "", ("labels",))},
    "constant_data": {
        "length": Variable(("obs",), INTEGER, "length of the prompt's text", "characters"),
        "tokens": Variable(("obs",), INTEGER, "length of the prompt as the model sees it", "tokens"),
        "difficulty": Variable(("obs",), FLOAT, "entropy of the true answer; NaN: unknown", "nats"),
        "truth": Variable(("obs", "answer"), FLOAT, "true probability of each answer; NaN: unknown"),
        "pareto_k": Variable(
            ("obs",), FLOAT, "Pareto k of the weights 1 / p(label | draw); NaN: no spread", "", ("labels",)
        ),
    },
}
"""Group -> variable -> description. ArviZ expects chains and draws in every group except the data groups."""


def nbytes(features: Collection[str], sizes: Mapping[str, int]) -> int:
    """Return the bytes of all variables whose needs are among the features, without coordinates."""
    return sum(
        np.dtype(spec.dtype).itemsize * prod(sizes[dim] for dim in spec.dims)
        for group in GROUPS.values()
        for spec in group.values()
        if set(spec.needs) <= set(features)
    )


Variables = dict[str, Any]
"""Name -> values: tensors, arrays or lists that numpy can read."""

Coords = Mapping[str, np.ndarray | tuple[str, np.ndarray]]
"""Name -> values, or (dimension, values) for a coordinate that is not an index."""


def dataset(group: str, arrays: Variables, coords: Coords) -> xarray.Dataset:
    """Return a group of exported draws.

    `arrays` lack the dimension `chain`, and coordinates of unused dimensions are left out.
    """
    variables = {}
    for name, values in arrays.items():
        spec = GROUPS[group][name]
        array = np.asarray(values, dtype=spec.dtype)
        attributes = {"long_name": spec.text, **({"units": spec.unit} if spec.unit else {})}
        variables[name] = (spec.dims, array[None] if spec.dims[0] == "chain" else array, attributes)
    used = {dim for dims, *_ in variables.values() for dim in dims}
    used_coords = {key: v for key, v in coords.items() if (v[0] if isinstance(v, tuple) else key) in used}
    return xarray.Dataset(variables, coords=used_coords)


def module_coords(paths: Sequence[str]) -> Coords:
    """Return the coordinates of modules: path, layer (-1 for modules outside the layers) and projection."""
    layers = [re.search(r"(?:^|\.)(\d+)(?:\.|$)", path) for path in paths]
    return {
        "module": np.array(paths, dtype=str),
        "layer": (
            "module",
            np.array([-1 if match is None else int(match[1]) for match in layers], dtype=int),
        ),
        "projection": ("module", np.array([path.rsplit(".", 1)[-1] for path in paths], dtype=str)),
    }
