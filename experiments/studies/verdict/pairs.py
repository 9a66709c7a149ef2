"""What the verdict compares: pairs of arms, the score in which they differ, and on whose rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bara_pyro.metrics import accuracy, ece, error_auroc, nll
from experiments.engine.rows import RunRows
from experiments.studies.confirmatory.study import PRIMARY

Metric = Callable[[Any, Any], float]
SCORES: Mapping[str, Metric] = {"nll": nll, "ece": ece, "acc": accuracy, "error_auroc": error_auroc}
SHIFTED = {"near": "micro-near", "far": "micro-far"}
AWARE, FEW, AGAIN, ARMS = ", distance-aware", ", 80 rows", ", made again", ", a further arm"
# By defaults that were chosen when the benchmark was over.
SHORTER, REHEARSED = ", 80 rows, 10 passes", ", 80 rows, rehearsed"
ASKED, LONGER = ", 80 rows, rehearsed as asked for", ", 80 rows, rehearsed, 20 passes"
DOUBLING = ", 80 rows, rehearsed, 10 passes or 20"
# Files of rows -> what their arms are called.
FURTHER = {
    **{"aware": AWARE, "few": FEW, "again": AGAIN},
    **{"shorter": SHORTER, "rehearsed": REHEARSED, "lora": ASKED, "longer": LONGER},
    **{"doubling": DOUBLING, "arms": ARMS},
}


@dataclass(frozen=True)
class Pair:
    """Two arms and the score in which they differ, on the tasks that they learnt or on other rows."""

    arm: str
    reference: str
    metric: str = "nll"
    tested_on: str | None = None

    def runs(self, world: Sequence[RunRows]) -> list[RunRows]:
        """Return what a world has of the two, each as if it had learnt what it was tested on."""
        return [
            replace(run, task=run.tested_on)
            for run in world
            if run.arm in (self.arm, self.reference) and run.tested_on == (self.tested_on or run.task)
        ]


GATE, RIVAL = PRIMARY.arm, PRIMARY.reference
PAIRS: Mapping[str, Pair] = {
    **{metric: Pair(GATE, RIVAL, metric) for metric in SCORES},
    **{name: Pair(GATE, RIVAL, tested_on=task) for name, task in SHIFTED.items()},
    # Of the language model that the distance-aware form has, where it was not the world's first one.
    **{f"{name}_aware": Pair(GATE + AWARE, RIVAL + AGAIN, tested_on=task) for name, task in SHIFTED.items()},
    **{f"{name}_both": Pair(GATE + AWARE, RIVAL + AWARE, tested_on=task) for name, task in SHIFTED.items()},
    "few": Pair(GATE + FEW, RIVAL + FEW),
    "shorter": Pair(GATE + SHORTER, RIVAL + FEW),
    # Between arms of the same language models, made again.
    "rehearsed": Pair(GATE + REHEARSED, RIVAL + REHEARSED),
    "rehearsed_ece": Pair(GATE + REHEARSED, RIVAL + REHEARSED, "ece"),
    "longer": Pair(GATE + LONGER, RIVAL + REHEARSED),
    "longer_ece": Pair(GATE + LONGER, RIVAL + REHEARSED, "ece"),
    "doubling": Pair(GATE + DOUBLING, RIVAL + REHEARSED),
    "doubling_ece": Pair(GATE + DOUBLING, RIVAL + REHEARSED, "ece"),
    "rehearsed_bara": Pair("bara" + REHEARSED, RIVAL + REHEARSED),
    "rehearsed_lora": Pair("lora" + REHEARSED, RIVAL + REHEARSED),
    "asked_lora": Pair("lora" + ASKED, RIVAL + REHEARSED),
    "bara": Pair("bara" + ARMS, GATE + ARMS),
    "bara_ece": Pair("bara" + ARMS, GATE + ARMS, "ece"),
    "bara_acc": Pair("bara" + ARMS, GATE + ARMS, "acc"),
    "lora": Pair("lora" + ARMS, GATE + ARMS),
    "lora_ece": Pair("lora" + ARMS, GATE + ARMS, "ece"),
    "lora_acc": Pair("lora" + ARMS, GATE + ARMS, "acc"),
}
