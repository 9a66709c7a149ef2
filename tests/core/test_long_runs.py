"""Memory does not grow with the number of steps or of predictions."""

import gc

import psutil
import torch
from core_cases import bara_pair, make_batch, trainer

from bara_pyro.core.prediction import predict

WARM, STEPS = 2_000, 10_000
PER_STEP = 200  # bytes: a float kept a step, with the object around it, is 56


def resident() -> int:
    gc.collect()
    return psutil.Process().memory_info().rss


def test_ten_thousand_steps_take_no_more_memory_than_two_thousand() -> None:
    torch.manual_seed(0)
    pair = bara_pair(form="gate", target_modules=r".*\.1\..*q_proj")
    svi, batch = trainer(pair, lr=1e-4), make_batch()
    for _ in range(WARM):
        svi.step(batch)
    before = resident()
    for _ in range(STEPS - WARM):
        svi.step(batch)
    assert resident() - before < PER_STEP * (STEPS - WARM)


def test_predictions_leave_nothing_behind() -> None:
    pair, batch = bara_pair(form="gate", target_modules=r".*\.1\..*q_proj", move=0.1), make_batch()
    for seed in range(200):
        predict(*pair, batch, samples=3, seed=seed)
    before = resident()
    for seed in range(200, 1_200):
        predict(*pair, batch, samples=3, seed=seed)
    assert resident() - before < PER_STEP * 1_000
