"""The one-page program in plain Pyro and the library: the same losses where noise and start are the same."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pyro.infer import TraceMeanField_ELBO
from torch import Tensor

import bara_pyro as bp
from bara_pyro.core.distributions import weibull

STEPS = 20

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import plain_pyro  # noqa: E402 - found by the line above


@pytest.fixture
def noise(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Noise of its own for each step and rank unit, whatever the order in which sites are drawn."""
    table = torch.empty(STEPS, 8).exponential_(generator=torch.Generator().manual_seed(0))
    level = table[0]

    def begin(step: int) -> None:
        nonlocal level
        level = table[step]

    monkeypatch.setattr(Tensor, "exponential_", lambda self, *_: self.copy_(level.expand_as(self)))
    monkeypatch.setattr(weibull, "exponential", lambda _, shape: level.expand(shape).clone())
    return begin


def descent(program: torch.nn.Module, guide: torch.nn.Module) -> torch.optim.Optimizer:
    """Return plain gradient descent: Adam would divide rounding by rounding where gradients are near 0."""
    return torch.optim.SGD([*program.parameters(), *guide.parameters()], lr=0.01)


def losses(
    begin: Callable[[int], None], step: Callable[[int], Tensor], optimizer: torch.optim.Optimizer
) -> list[float]:
    found = []
    for number in range(STEPS):
        begin(number)
        loss = step(number)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def test_the_library_is_the_page(noise: Callable[[int], None]) -> None:
    backbone, task = bp.load_backbone("microworld"), bp.load_task("micro-wgs")
    answers = bp.answer_token_ids(backbone.tokenizer, task.labels)
    rows = bp.encode(task.train[:64], backbone.tokenizer)
    batch = [rows.batch(bp.training_batches(64, 4, seed=0, step=step), answers) for step in range(STEPS)]

    model = bp.models.BaRA(backbone, num_data=64, form="gate")
    guide = bp.guides.WeibullGuide(model)
    paths = [target.path for target in model.targets]
    page = plain_pyro.Program(backbone.lm, paths, 64)
    plain = plain_pyro.Guide(page)
    with torch.no_grad():
        for mine, adapter in enumerate(model.adapters.values()):
            page.A[mine].copy_(adapter.lora_A)
        plain.phi.copy_(guide._raw["phi"].weight)
        for mine, path in enumerate(paths):
            plain.theta[mine].copy_(guide._raw[f"theta/{path}"].weight)

    elbo, stock = bp.MeanFieldELBO(), TraceMeanField_ELBO()
    ours = losses(
        noise, lambda s: elbo.differentiable_loss(model, guide, batch[s]) / 64, descent(model, guide)
    )
    theirs = losses(
        noise, lambda s: stock.differentiable_loss(page, plain, batch[s]) / 64, descent(page, plain)
    )
    assert max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) < 1e-5
    assert page.B[0].abs().max() > 1e-3  # 0 at first: the losses of later steps compare gradients, too


def test_the_page_learns(capsys: pytest.CaptureFixture[str]) -> None:
    plain_pyro.main(steps=20, draws=2)
    assert "nll" in capsys.readouterr().out
