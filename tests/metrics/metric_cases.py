"""Predictions to score, and naive Python loops as oracles."""

import torch
from torch import Tensor


def logs(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64).log()


def random_case(seed: int, n: int = 200, classes: int = 4, sharpness: float = 2.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(n, classes, dtype=torch.float64, generator=generator)
    noise = -torch.empty(n, classes, dtype=torch.float64).exponential_(generator=generator).log()
    # Gumbel noise on halved logits: labels come from a flatter distribution, so it is over-confident.
    return logits.log_softmax(-1), (0.5 * logits + noise).argmax(-1)


def perfect(n: int = 12, classes: int = 3) -> tuple[Tensor, Tensor]:
    labels = torch.arange(n) % classes
    return torch.nn.functional.one_hot(labels, classes).double().log(), labels


def worst(n: int = 12, classes: int = 3) -> tuple[Tensor, Tensor]:
    log_probs, labels = perfect(n, classes)
    return log_probs, (labels + 1) % classes


def top(row: list[float]) -> tuple[float, int]:
    best = max(range(len(row)), key=lambda c: row[c])
    return row[best], best


def naive_ece(log_probs: Tensor, labels: Tensor, n_bins: int = 15) -> float:
    probs, total = log_probs.exp().tolist(), 0.0
    for k in range(n_bins):
        low, high = k / n_bins, (k + 1) / n_bins
        members = []
        for row, label in zip(probs, labels.tolist(), strict=True):
            confidence, predicted = top(row)
            if low <= confidence < high or (k == n_bins - 1 and confidence >= high):
                members.append((confidence, float(predicted == label)))
        if members:
            gap = sum(c for c, _ in members) / len(members) - sum(r for _, r in members) / len(members)
            total += abs(gap) * len(members) / len(probs)
    return 100.0 * total


def naive_adaptive_ece(log_probs: Tensor, labels: Tensor, n_bins: int = 15) -> float:
    rows = []
    for row, label in zip(log_probs.exp().tolist(), labels.tolist(), strict=True):
        confidence, predicted = top(row)
        rows.append((confidence, float(predicted == label)))
    rows.sort()
    base, extra = divmod(len(rows), n_bins)
    total, start = 0.0, 0
    for k in range(n_bins):
        size = base + (1 if k < extra else 0)
        run = rows[start : start + size]
        start += size
        total += abs(sum(c - r for c, r in run))
    return 100.0 * total / len(rows)


def naive_aurc(log_probs: Tensor, labels: Tensor) -> float:
    rows = []
    for row, label in zip(log_probs.exp().tolist(), labels.tolist(), strict=True):
        confidence, predicted = top(row)
        rows.append((-confidence, float(predicted != label)))
    rows.sort()
    risks = [sum(error for _, error in rows[:k]) / k for k in range(1, len(rows) + 1)]
    return 100.0 * sum(risks) / len(risks)


def naive_brier(log_probs: Tensor, labels: Tensor) -> float:
    total = 0.0
    for row, label in zip(log_probs.exp().tolist(), labels.tolist(), strict=True):
        total += sum((p - float(c == label)) ** 2 for c, p in enumerate(row))
    return total / len(labels)


def naive_auroc(inside: Tensor, outside: Tensor) -> float:
    wins = sum(1.0 if o > i else 0.5 if o == i else 0.0 for i in inside.tolist() for o in outside.tolist())
    return 100.0 * wins / (len(inside) * len(outside))
