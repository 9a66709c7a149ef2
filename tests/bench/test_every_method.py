"""What every method must satisfy. What is special about one is tested in tests/methods."""

import json
import math
from dataclasses import replace

import pytest
import torch
from bench_cases import CHECKPOINT, DEVICE, SAMPLES, STEPS, STOP, Case
from torch import Tensor
from torch.nn import functional as F

from bara_pyro.cli.commands.params import params
from bara_pyro.core.prediction import predict
from bara_pyro.data import batches
from bara_pyro.data.types import Batch
from bara_pyro.methods import METHODS
from bara_pyro.metrics import nll, posterior_predictive
from bara_pyro.runs.config import load_config
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.system import System, build_system, count_parameters
from bara_pyro.runs.train import train

# Float32 sums in another order: of other batches, of other padding.
ROUNDING = 5e-5


def answers(system: System, samples: int = SAMPLES, seed: int = 0) -> Tensor:
    """Log-probabilities of the test rows, draws x rows x classes."""
    return draw(system, system.split("test"), samples, seed=seed)


def test_learns_from_the_untrained_state(case: Case) -> None:
    """Every site has an analytic KL, too, or the method declares otherwise: the ELBO refuses it if not."""
    assert len(case.losses) == STEPS
    assert all(map(math.isfinite, case.losses))
    split = case.system.split("train")
    labels = torch.tensor(split.labels)
    after = posterior_predictive(draw(case.system, split, 0))
    assert nll(after, labels) < nll(case.before.log_softmax(-1), labels)


def test_who_looks_at_validation_rows_says_so(case: Case) -> None:
    """They calibrate prediction sets, abstention and detection where nothing was fitted to them."""
    looked_at = "validation" in case.system._encoded
    assert METHODS[case.config.method.name].uses_validation(case.config.method) == looked_at


def test_the_predictive_is_a_distribution(case: Case) -> None:
    for samples in (0, SAMPLES):
        probs = posterior_predictive(case.answers[samples]).exp()
        assert probs.dtype == torch.float64
        torch.testing.assert_close(
            probs.sum(-1), torch.ones(len(probs), dtype=torch.float64), rtol=0, atol=1e-6
        )


def test_the_posterior_mean_needs_no_seed_and_draws_only_that(case: Case) -> None:
    generator = torch.get_rng_state()
    assert torch.equal(answers(case.system, 0, seed=1), case.answers[0])
    assert torch.equal(answers(case.system), case.answers[SAMPLES])
    if case.system.guide.stochastic:
        assert not torch.equal(answers(case.system, seed=1), case.answers[SAMPLES])
    assert torch.equal(torch.get_rng_state(), generator)


@pytest.mark.parametrize("settings", [{"batch_size": 1}, {"memory_budget": 1}], ids=str)
def test_rows_do_not_depend_on_their_batch_or_on_memory(case: Case, settings: dict[str, int]) -> None:
    other = load_config(overrides={**case.config.model_dump(), "predict": settings})
    found = answers(replace(case.system, config=other))
    torch.testing.assert_close(found, case.answers[SAMPLES], rtol=0, atol=ROUNDING)


def test_shortcuts_change_nothing(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(case.system.backbone, "shortcuts", frozenset())
    for samples, expected in case.answers.items():
        torch.testing.assert_close(answers(case.system, samples), expected, rtol=0, atol=ROUNDING)


def test_rows_do_not_depend_on_padding(case: Case) -> None:
    batch = next(iter(batches(case.system.split("test"), case.system.answer_ids, 6)))
    wide = Batch(
        F.pad(batch.input_ids, (3, 0), value=4),
        F.pad(batch.attention_mask, (3, 0), value=False),
        batch.answer_ids,
        batch.labels,
        batch.ids,
    )
    first, second = (
        predict(case.system.model, case.system.guide, b.to(DEVICE), samples=SAMPLES) for b in (batch, wide)
    )
    torch.testing.assert_close(first, second, rtol=0, atol=ROUNDING)


def test_a_run_is_read_back_bit_for_bit(case: Case) -> None:
    found = load_system(case.out)
    for samples, expected in case.answers.items():
        assert torch.equal(answers(found, samples), expected)


@pytest.mark.skipif(DEVICE == "cpu", reason="compares a GPU with the CPU: BARA_TEST_DEVICE=cuda")
def test_what_a_gpu_trained_answers_alike_on_a_cpu(case: Case) -> None:
    found = load_system(case.out, device="cpu")
    for samples, expected in case.answers.items():
        torch.testing.assert_close(answers(found, samples), expected, rtol=0, atol=10 * ROUNDING)


class Interrupted(Exception):
    """Stands for a kill."""


@pytest.mark.slow
def test_an_interrupted_run_ends_in_the_same_bits(case: Case) -> None:
    out = case.out.with_name("cut")

    def stop(step: int, _: dict[str, float]) -> None:
        if step == STOP:
            raise Interrupted

    with pytest.raises(Interrupted):
        train(build_system(case.config, case.system.backbone), out, on_step=stop)
    resumed, steps = build_system(case.config, case.system.backbone), []
    train(resumed, out, resume=True, on_step=lambda step, _: steps.append(step))
    assert steps[0] == STOP // CHECKPOINT * CHECKPOINT + 1
    for samples, expected in case.answers.items():
        assert torch.equal(answers(resumed, samples), expected)


def test_the_language_model_is_left_as_it_was(case: Case) -> None:
    lm = case.system.backbone.lm
    for name, value in lm.state_dict().items():
        assert torch.equal(value, case.frozen[name]), name
    assert all(p.grad is None and not p.requires_grad for p in lm.parameters())
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    assert not any(getattr(module, kind) for module in lm.modules() for kind in kinds)


def test_parameters_are_counted_as_the_command_does(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    total = count_parameters(case.system.model) + count_parameters(case.system.guide)
    params(case.config.method.name, arch=None, model=case.config.backbone.name, assignments=[])
    assert f"{total:,}" in capsys.readouterr().out
    stored = json.loads((case.out / "bara_config.json").read_text())
    assert stored["config"]["method"]["name"] == case.config.method.name
