"""Decisions with a promise on the rows that a run was asked: `bara conformal`, `bara abstain`, `bara detect`.

Each rule is set by calibration rows (`bara_pyro.runs.asked.calibration_rows`) and applied to other rows, both
asked with the same number of draws and the same seed: the scores of a row are then a function of it
alone, and what is promised in `bara_pyro.metrics` (`conformal`, `abstention`, `detection`) holds of
exchangeable rows.
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
from bara_pyro.runs.answers import beside, write_table
from bara_pyro.runs.asked import ScoredRows, measured
from bara_pyro.runs.atomic import write_jsonl
from bara_pyro.runs.predict import names_of
from bara_pyro.runs.system import System
from bara_pyro.types import Json, Measure, SetScore

SAME = 1e-9  # scores that are closer differ by rounding
Rule = TypeVar("Rule", PredictionSets, Abstention, Detector)


@dataclass(frozen=True, repr=False)
class Decided(Generic[Rule]):
    """What was decided of rows.

    Attributes:
        rule: what decides.
        rows: a line a row, see the function that made it; beside what it says, the columns that the row
            came with, as in predictions (`bara_pyro.runs.answers.Answers.lines`).
        summary: what is worth knowing of all of them; rates in percent, None where no row says.
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
    """Return the set of answers of each row that misses the right one with probability `alpha` at most.

    Args:
        known: calibration rows, with their answers.
        asked: rows to decide on.
        task: that the run was trained on, whose names of classes are written.
        alpha: the share of rows to come whose right answer may be missing.
        score: see `bara_pyro.metrics.conformal.nonconformity`.

    Returns:
        Rows of `id`, `label` (the most probable answer), `set` (the answers in it, the most probable first)
        and `size`; of all of them `mean_size`, `sizes` (size -> number of rows), and where the answers are
        known `coverage`, where their true distribution is known `expected_coverage`.
    """
    rule = prediction_sets(known.log_probs, known.labels, alpha=alpha, score=score)
    sets = rule(asked.log_probs) & asked.offered
    rows = []
    for example, inside, order in zip(
        asked.examples, sets.tolist(), asked.log_probs.argsort(descending=True).tolist(), strict=True
    ):
        names = names_of(example, task)
        kept = [names[c] for c in order if inside[c]]
        rows.append({"id": example.id, "label": names[order[0]], "set": kept, "size": len(kept)})
    answered, sizes = asked.labels >= 0, Counter(row["size"] for row in rows)
    summary = {
        "rows": len(rows),
        "mean_size": float(sets.sum(1).double().mean()),
        "sizes": {str(size): sizes[size] for size in sorted(sizes)},
        "coverage": coverage(sets[answered], asked.labels[answered]) if answered.any() else None,
        "expected_coverage": _under_truth(lambda: expected_coverage(sets, asked.truth), asked.truth),
    }
    return Decided(rule, _carrying(asked, rows), summary)


def decide_abstention(
    known: ScoredRows, asked: ScoredRows, task: Task, *, risk: float, delta: float = 0.05
) -> Decided[Abstention]:
    """Return which rows are answered, so that at most a share `risk` of the answers is wrong.

    Args:
        known: calibration rows, with their answers.
        asked: rows to decide on.
        task: that the run was trained on, whose names of classes are written.
        risk: the error rate that answered rows to come may have.
        delta: the probability, over calibration rows, that it is larger.

    Returns:
        Rows of `id`, `label` (the most probable answer), `confidence` (its probability) and `answered`; of
        all of them `answered` (number) and, of the answered rows whose answers are known, `error_rate`, of
        those whose true distribution is known `expected_error_rate`.
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
    return Decided(rule, _carrying(asked, rows), summary)


def decide_detection(
    system: System, known: ScoredRows, asked: ScoredRows, *, alpha: float, by: Measure | None = None
) -> Decided[Detector]:
    """Return which rows are from elsewhere, of which a share `alpha` of rows at home is called so at most.

    Args:
        system: that was asked.
        known: calibration rows.
        asked: rows to decide on.
        alpha: see `bara_pyro.metrics.detection`.
        by: what is high where little is known of a row; by default `distance` where the run knows it, else
            `total`.

    Returns:
        Rows of `id`, the measure under its name, `p` and `foreign`; of all of them `by` and `foreign`
        (number).

    Raises:
        ConfigError: the run does not know this measure, or it is the same for every calibration row.
    """
    by = by or ("total" if system.corrections.distance is None else "distance")
    at_home, scores = measured(system, known, by), measured(system, asked, by)
    if float(at_home.max() - at_home.min()) < SAME:
        because = ", because the run's draws do not differ" if by == "epistemic" else ""
        raise ConfigError(
            f"All {len(at_home)} calibration rows have {by} {float(at_home[0]):.3g}{because}, which tells "
            "none from another: give another --by."
        )
    rule = detector(at_home, alpha=alpha)
    foreign, p_values = rule(scores), rule.p_values(scores)
    rows = [
        {"id": example.id, by: score, "p": p, "foreign": called}
        for example, score, p, called in zip(
            asked.examples, scores.tolist(), p_values.tolist(), foreign.tolist(), strict=True
        )
    ]
    return Decided(rule, _carrying(asked, rows), {"rows": len(rows), "by": by, "foreign": int(foreign.sum())})


def _carrying(asked: ScoredRows, rows: list[Json]) -> list[Json]:
    """Return what was decided of rows beside the columns that they came with, as predictions have them."""
    if not asked.given:
        return rows
    return [beside(own, said) for own, said in zip(asked.given, rows, strict=True)]


def _under_truth(score: Callable[[], float], truth: Tensor) -> float | None:
    return None if truth.isnan().all() else score()


def write_decisions(path: str | Path, rows: Sequence[Json], separator: str = ",") -> None:
    """Write a line a row as JSON Lines, or as a table, in which the answers of a set stand in one cell.

    `separator` is that of a .csv file.
    """
    path = Path(path)
    if path.suffix.lower() == ".jsonl":
        write_jsonl(path, rows)
        return
    import pandas as pd

    cells = [{k: " | ".join(v) if _are_texts(v) else v for k, v in row.items()} for row in rows]
    write_table(path, pd.DataFrame(cells), separator)


def _are_texts(cell: object) -> bool:
    return isinstance(cell, list) and all(isinstance(one, str) for one in cell)
