"""What the uncertainty of a run is made of: in the question, in the global gates, in the local ones."""

import torch
from torch import Tensor

from bara_pyro.diagnostics.context import Context
from bara_pyro.diagnostics.gates.rank import RankCorrelation, relation
from bara_pyro.diagnostics.result import Number, Result
from bara_pyro.metrics import NestedUncertainty, decompose_nested, posterior_predictive
from bara_pyro.runs.evaluate import draw


class UncertaintySplit(Result):
    """The split of the predictive uncertainty by nested draws, nats."""

    nested: int  # draws of the global gates, and for each as many of the local ones
    total: float  # mean over rows; the next three add up to it
    aleatoric: float
    global_: float
    local: float
    aleatoric_rows: list[float]  # by row, `n`
    epistemic_rows: list[float]  # of both kinds of gate
    wrong: list[bool]  # whether the row was answered wrong
    true_entropy: list[Number]  # of the row's true answer; null where it is not known
    aleatoric_bias: float | None  # mean of `aleatoric_rows` less `true_entropy`; None where it is never known
    relations: dict[str, RankCorrelation]  # of both parts to what is known of the rows

    def share(self, part: str) -> float:
        """Return a part's share of the total, percent."""
        return 100 * float(getattr(self, part)) / self.total if self.total else 0.0


def uncertainty_split(c: Context) -> UncertaintySplit | None:
    """Return the split of the predictive uncertainty; None for methods without random gates."""
    if not c.has_gates or not c.system.guide.stochastic:
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
    """Relate the parts to what is known of the rows."""
    if len(wrong) < 3:
        return {}
    found = {}
    if int((~truth.isnan()).sum()) > 2:
        found["Aleatoric uncertainty"] = relation(parts.aleatoric[:, None], truth, "the true entropy")
    epistemic = (parts.global_ + parts.local)[:, None]
    return found | {"Epistemic uncertainty": relation(epistemic, wrong.double(), "error")}
