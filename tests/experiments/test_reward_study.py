"""The study of Bayesian reward models: its likelihood and its curve against direct computations."""

from itertools import combinations

import numpy as np
import pytest
import torch

import bara_pyro as bp
from bara_pyro.core.prediction import predict
from bara_pyro.core.program import AdapterOptions
from bara_pyro.extras.replies.reward import bradley_terry
from bara_pyro.methods import build, method_config
from experiments.studies.reward import study


@pytest.mark.parametrize("method", ["lora", "ensemble"])
def test_the_loss_is_the_bradley_terry_loss_of_the_rewards(method: str) -> None:
    rows = study.encoded(["he eats nuts .", "he eats .", "she wears silk .", "plants garlic . .", "a", "b ."])
    batch = rows.batch(range(6), study.verdicts())
    options: AdapterOptions = {"r": 2, "likelihood": study.Preference()}
    torch.manual_seed(0)
    model, guide = build(method_config(method), study.backbone(), 60, options)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.1)
    log_probs = predict(model, guide, batch.unlabelled(), samples=1)
    rewards = log_probs[..., 0] - log_probs[..., 1]
    losses = [float(bradley_terry(own[0::2], own[1::2])) for own in rewards]
    loss = bp.MeanFieldELBO().terms(model, guide, batch).loss.item()
    assert loss / 30 == pytest.approx(np.mean(losses), rel=1e-5)  # 60 rows are 30 pairs


def test_the_curve_is_the_mean_over_all_subsets() -> None:
    rng = np.random.default_rng(0)
    proxy, scores = rng.normal(size=6), rng.random(6)
    for n, found in enumerate(study.curve(proxy, scores), 1):
        every = [scores[max(subset, key=proxy.__getitem__)] for subset in combinations(range(6), n)]
        assert found == pytest.approx(np.mean(every))
