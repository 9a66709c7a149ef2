"""Decompose the uncertainty of a run: aleatoric, from the global gates, and from the local gates."""

import torch
from torch import Tensor

from bara_pyro.diagnostics.context import Context, is_random
from bara_pyro.diagnostics.gates.rank import RankCorrelation, relation
from bara_pyro.diagnostics.result import Number, Result
from bara_pyro.metrics import NestedUncertainty, decompose_nested, posterior_predictive
from bara_pyro.runs.evaluate import draw


class UncertaintySplit(Result):
    """The predictive uncertainty by source, from nested draws, in nats."""

    nested: int  # number of draws of the global gates, and of the local gates for each of them
    total: float  # mean over rows; the sum of the next three
    aleatoric: float
    global_: float
    local: float
    aleatoric_rows: list[float]  # `n`: the aleatoric part of each row
    epistemic_rows: list[float]  # `n`: the part from both kinds of gates
    wrong: list[bool]  # whether the row was answered wrong
    true_entropy: list[Number]  # entropy of the row's true answer; null if unknown
    aleatoric_bias: (
        float | None
    )  # mean of `aleatoric_rows` minus `true_entropy`; None if unknown for all rows
    relations: dict[str, RankCorrelation]  # correlations of both parts with properties of the rows

    def share(self, part: str) -> float:
        """Return the share of a part in the total, in percent."""
        return 100 * float(getattr(self, part)) / self.total if self.total else 0.0


def uncertainty_split(c: Context) -> UncertaintySplit | None:
    """Return the predictive uncertainty by source; None for methods without random gates."""
    if not is_random(c.system):
        return None
    k = c.options.nested
    draws = draw(c.system, c.rows, k * k, repeats=k)
    parts = decompose_nested(draws, k)
    wrong = posterior_predictive(draws).argmax(-1) != c.labels
    truth = torch.special.entr(c.truth).sum(-1)
    known = ~truth.isnan()
    return UncertaintySplit(
        nested=k,
        **{name: float(getattr(parts, name).mean()) for name in ("total", "aleatoric", "global_", "local")},
        aleatoric_rows=parts.aleatoric.tolist(),
        epistemic_rows=(parts.global_ + parts.local).tolist(),
        wrong=wrong.tolist(),
        true_entropy=truth.tolist(),
        aleatoric_bias=float((parts.aleatoric - truth)[known].mean()) if known.any() else None,
        relations=_relations(parts, wrong, truth),
    )


def _relations(parts: NestedUncertainty, wrong: Tensor, truth: Tensor) -> dict[str, RankCorrelation]:
    """Correlate the aleatoric part with the true entropy (if known), the epistemic part with errors."""
    if len(wrong) < 3:
        return {}
    relations = {}
    if int((~truth.isnan()).sum()) > 2:
        relations["Aleatoric uncertainty"] = relation(parts.aleatoric[:, None], truth, "the true entropy")
    epistemic = (parts.global_ + parts.local)[:, None]
    return relations | {"Epistemic uncertainty": relation(epistemic, wrong.double(), "error")}
