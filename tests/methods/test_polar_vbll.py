"""PoLAR: its change of a layer, its frames after training, its step beside torch's AdamW and an SVD."""

import pytest
import torch
from core_cases import backbone, make_batch
from method_cases import N, made, svi_of, twin_of
from torch import Tensor
from torch.testing import assert_close
from vbll_cases import log_probs_at, moved

from bara_pyro.core.optimizers import parameters
from bara_pyro.core.prediction import predict
from bara_pyro.errors import ConfigError
from bara_pyro.methods.polar_vbll import retract, tall, tangent
from bara_pyro.models.polar_vbll import PolarVBLL


def nearest(frame: Tensor) -> Tensor:
    """The orthonormal frame nearest to one, by its singular value decomposition."""
    left, _, right = torch.linalg.svd(frame.double(), full_matrices=False)
    return left @ right


@torch.no_grad()
def gaps(model: PolarVBLL) -> list[float]:
    """How far the frames are from orthonormal, entry by entry."""
    products = [p.mT @ p for a in model.adapters.values() for p in (tall(a.lora_A), tall(a.lora_B))]
    return [float((product - torch.eye(len(product))).abs().max()) for product in products]


def test_the_change_is_two_frames_and_what_is_between_them() -> None:
    """Against `W0 + s U Theta V^T` in the layers themselves."""
    model, guide = made("polar_vbll")
    moved(guide)
    with torch.no_grad():
        for adapter in model.adapters.values():
            adapter.lora_S.normal_(generator=torch.Generator().manual_seed(adapter.target.index))
    found = predict(model, guide, make_batch(), samples=0)[0]
    assert_close(
        found, log_probs_at(model, make_batch(), guide.mean[:3]).detach().double(), rtol=0, atol=2e-5
    )
    for adapter in model.adapters.values():
        change = adapter.scaling * adapter.lora_B @ adapter.lora_S @ adapter.lora_A
        values = torch.linalg.svdvals(change)[: model.r] / adapter.scaling
        assert_close(values, torch.linalg.svdvals(adapter.lora_S))  # frames change no length


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_frames_stay_orthonormal(decay: float) -> None:
    model, guide = made("polar_vbll")
    svi = svi_of("polar_vbll", (model, guide), lr=0.05, weight_decay=decay)
    start = [p.detach().clone() for p in svi.frames]
    torch.manual_seed(0)
    for _ in range(30):
        svi.step(make_batch())
        assert max(gaps(model)) < 1e-5
    assert all((new - old).abs().max() > 0.05 for new, old in zip(svi.frames, start, strict=True))


def test_the_step_is_adamw_along_the_frame_and_the_nearest_frame() -> None:
    """Three steps beside torch's AdamW on projected gradients and an SVD."""
    model, guide = made("polar_vbll")
    with torch.no_grad():
        for adapter in model.adapters.values():
            adapter.lora_S.copy_(torch.eye(model.r))
    twin, double = twin_of((model, guide))
    svi = svi_of("polar_vbll", (model, guide), lr=0.02, steps=1000, warmup=0.0)
    own = parameters(twin, double)
    adam = torch.optim.AdamW(own, lr=0.02, weight_decay=0.0, eps=1e-6)
    frames = [frame for adapter in twin.adapters.values() for frame in (adapter.lora_A, adapter.lora_B)]
    for step in range(3):
        torch.manual_seed(step)
        svi.step(make_batch())
        adam.param_groups[0]["lr"] = 0.02 if step == 0 else 0.02 * (1000 - step) / 999
        adam.zero_grad()
        torch.manual_seed(step)
        loss = svi.elbo.terms(twin, double, make_batch()).loss / N
        loss.backward()
        with torch.no_grad():
            for frame in frames:
                x, g = tall(frame), tall(frame.grad)
                normal = x @ (0.5 * (x.mT @ g + g.mT @ x))
                tall(frame.grad).sub_(normal)
        adam.step()
        with torch.no_grad():
            for frame in frames:
                frame.copy_(nearest(frame))
    for ours, theirs in zip(parameters(model, guide), own, strict=True):
        assert_close(ours, theirs, rtol=1e-4, atol=5e-6)


def test_the_tangent_keeps_the_frame_to_first_order_and_is_a_projection() -> None:
    torch.manual_seed(0)
    frame, gradient = nearest(torch.randn(7, 3)), torch.randn(7, 3, dtype=torch.float64)
    along = tangent(frame, gradient)
    assert_close(frame.T @ along + along.T @ frame, torch.zeros(3, 3, dtype=torch.float64))
    assert_close(tangent(frame, along), along)
    normal = gradient - along  # frame times a symmetric matrix, at right angles to every tangent
    assert_close(normal, frame @ (frame.T @ normal))
    assert_close((along * normal).sum(), torch.zeros((), dtype=torch.float64))


def test_retraction_gives_the_nearest_frames_whatever_their_ranks() -> None:
    torch.manual_seed(0)
    frames = [torch.randn(9, 4), torch.randn(2, 9), torch.randn(5, 4), torch.randn(3, 3)]
    truth = [nearest(frame).float() for frame in frames]
    retract(frames)
    for found, expected in zip(frames, truth, strict=True):
        assert_close(found, expected, rtol=0, atol=1e-5)


def test_a_rank_above_a_width_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"r=9 must not exceed 8, .*v_proj"):
        PolarVBLL(backbone(), N, r=9)
