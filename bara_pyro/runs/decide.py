"""Decisions with a guarantee: `bara conformal`, `bara abstain` and `bara detect`.

Each rule is calibrated on rows (`bara_pyro.runs.asked.calibration_rows`) and applied to other rows. Both are
predicted with the same number of draws and the same seed, so that a row's scores depend only on the row. The
guarantees of `bara_pyro.metrics` (`conformal`, `abstention`, `detection`) then hold for exchangeable rows.

In each function `known` are the calibration rows, `asked` the rows to decide on, and the task is the run's.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from torch import Tensor

from bara_pyro.data import Task
from bara_pyro.errors import ConfigError
from bara_pyro.metrics import (
    Abstention,
    Detector,
    PredictionSets,
    abstention,
    coverage,
    detector,
    expected_coverage,
    prediction_sets,
)
from bara_pyro.runs.answers import with_cells, write_predictions
from bara_pyro.runs.asked import ScoredRows, measured
from bara_pyro.runs.predict import names_of
from bara_pyro.runs.system import System
from bara_pyro.types import Json, Measure, SetScore

SAME = 1e-9  # scores closer than this differ only by rounding
Rule = TypeVar("Rule", PredictionSets, Abstention, Detector)


@dataclass(frozen=True, repr=False)
class Decided(Generic[Rule]):
    """Decisions on rows.

    Attributes:
        rule: the calibrated rule.
        rows: one dictionary per row; see the function that returned this. The row's input columns are
            included, as in predictions (`bara_pyro.runs.answers.Answers.lines`).
        summary: totals over all rows; rates in percent, None if unknown.
    """

    rule: Rule
    rows: list[Json]
    summary: Json

    def __repr__(self) -> str:
        about = ", ".join(f"{name} {value}" for name, value in self.summary.items())
        return f"Decided by {type(self.rule).__name__}: {about}"


def decide_sets(
    known: ScoredRows, asked: ScoredRows, task: Task, *, alpha: float, score: SetScore = "lac"
) -> Decided[PredictionSets]:
    """Return prediction sets that miss the right answer with probability at most `alpha`.

    The score is one of `bara_pyro.metrics.conformal.nonconformity`.

    Returns:
        Rows of `id`, `label` (the most probable answer), `set` (the answers in it, the most probable first)
        and `size`. The summary has `mean_size`, `sizes` (size -> number of rows), `coverage` if answers are
        known, and `expected_coverage` if their true distribution is known.
    """
    rule = prediction_sets(known.log_probs, known.labels, alpha=alpha, score=score)
    sets = rule(asked.log_probs) & asked.offered
    rows = []
    for example, inside, order in zip(
        asked.examples, sets.tolist(), asked.log_probs.argsort(descending=True).tolist(), strict=True
    ):
        names = names_of(example, task)
        labels = [names[c] for c in order if inside[c]]
        rows.append({"id": example.id, "label": names[order[0]], "set": labels, "size": len(labels)})
    answered, sizes = asked.labels >= 0, Counter(row["size"] for row in rows)
    summary = {
        "rows": len(rows),
        "mean_size": float(sets.sum(1).double().mean()),
        "sizes": {str(size): sizes[size] for size in sorted(sizes)},
        "coverage": coverage(sets[answered], asked.labels[answered]) if answered.any() else None,
        "expected_coverage": _under_truth(lambda: expected_coverage(sets, asked.truth), asked.truth),
    }
    return Decided(rule, with_cells(asked.given, rows), summary)


def decide_abstention(
    known: ScoredRows, asked: ScoredRows, task: Task, *, risk: float, delta: float = 0.05
) -> Decided[Abstention]:
    """Return which rows to answer, so that at most a share `risk` of the answers is wrong.

    Over calibration rows, the error rate on answered new rows is larger with probability at most `delta`.

    Returns:
        Rows of `id`, `label` (the most probable answer), `confidence` (its probability) and `answered`. The
        summary has `answered` (a number) and, for answered rows, `error_rate` if their answers are known and
        `expected_error_rate` if the true distribution is known.
    """
    rule = abstention(known.log_probs, known.labels, risk=risk, delta=delta)
    answers, (confidence, label) = rule(asked.log_probs), asked.log_probs.exp().max(1)
    rows = [
        {"id": example.id, "label": names_of(example, task)[place], "confidence": sure, "answered": given}
        for example, place, sure, given in zip(
            asked.examples, label.tolist(), confidence.tolist(), answers.tolist(), strict=True
        )
    ]
    scored = answers & (asked.labels >= 0)
    wrong = (label != asked.labels)[scored].double()
    truth = asked.truth[answers]
    right = truth.gather(1, label[answers][:, None])[:, 0]
    summary = {
        "rows": len(rows),
        "answered": int(answers.sum()),
        "error_rate": 100 * float(wrong.mean()) if len(wrong) else None,
        "expected_error_rate": _under_truth(lambda: 100 * (1 - float(right.nanmean())), truth),
    }
    return Decided(rule, with_cells(asked.given, rows), summary)


def decide_detection(
    system: System, known: ScoredRows, asked: ScoredRows, *, alpha: float, by: Measure | None = None
) -> Decided[Detector]:
    """Return which rows are out-of-distribution; false alarms on in-distribution rows are at most `alpha`.

    The measure is by default `distance` if the run was trained with it, else `total`.

    Returns:
        Rows of `id`, the measure under its name, `p` (a p-value) and `foreign`. The summary has `by` and the
        number of `foreign` rows.

    Raises:
        ConfigError: the run lacks this measure, or it is the same for every calibration row.
    """
    by = by or ("total" if system.corrections.distance is None else "distance")
    at_home, scores = measured(system, known, by), measured(system, asked, by)
    if float(at_home.max() - at_home.min()) < SAME:
        because = ", because the run's draws do not differ" if by == "epistemic" else ""
        raise ConfigError(
            f"All {len(at_home)} calibration rows have the same {by}, {float(at_home[0]):.3g}{because}: "
            "choose another measure (--by)."
        )
    rule = detector(at_home, alpha=alpha)
    foreign, p_values = rule(scores), rule.p_values(scores)
    rows = [
        {"id": example.id, by: score, "p": p, "foreign": called}
        for example, score, p, called in zip(
            asked.examples, scores.tolist(), p_values.tolist(), foreign.tolist(), strict=True
        )
    ]
    return Decided(
        rule, with_cells(asked.given, rows), {"rows": len(rows), "by": by, "foreign": int(foreign.sum())}
    )


def _under_truth(score: Callable[[], float], truth: Tensor) -> float | None:
    return None if truth.isnan().all() else score()


def write_decisions(path: str | Path, rows: Sequence[Json], separator: str = ",") -> None:
    """Write decisions as JSON Lines, or as a table that holds each set in one cell."""

    def table() -> list[Json]:
        return [{k: " | ".join(v) if _are_texts(v) else v for k, v in row.items()} for row in rows]

    write_predictions(path, lambda: rows, table, separator)


def _are_texts(cell: object) -> bool:
    return isinstance(cell, list) and all(isinstance(one, str) for one in cell)
