"""What the answer head of a fitted BaRA sees on the rows of a split, and limits that hold for all inputs.

The theorem is about one layer whose input is given. The head is the layer it fits best: its input is the last
hidden state, its outputs are the C answers, and the rest of the model is h0.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bara_pyro.core.adapter import Adapter, tapped
from bara_pyro.core.distributions import MEAN_MIN
from bara_pyro.core.latents import Gates
from bara_pyro.core.likelihood import require_answer_tokens
from bara_pyro.core.modules import module_key
from bara_pyro.core.prediction import record
from bara_pyro.data import EncodedSplit, batches
from bara_pyro.errors import ConfigError
from bara_pyro.lm.backbone import Backbone
from bara_pyro.runs.system import System


@dataclass(frozen=True)
class HeadRows:
    """The answer head on n rows, lower adapters at their posterior means; float64 on the CPU."""

    x: Tensor  # its input at the last token, `n x d`
    gate: Tensor  # `E[Phi] * E[theta(x)]`, `n x r`
    base: Tensor  # the answers' logits without its adapter, `n x C`
    labels: Tensor  # long, `n`
    up: Tensor  # the C answer rows of B with the scaling in them, `C x r`
    down: Tensor  # A, `r x d`

    @property
    def largest_x(self) -> float:
        """The largest norm of x."""
        return float(self.x.norm(dim=-1).max())


def head_adapter(system: System) -> tuple[Adapter, Gates]:
    """Return the adapter of the answer head, and the gates of the program.

    Raises:
        ConfigError: the method is not BaRA in gate form, or the head is not adapted.
    """
    gates = system.model.gates
    require_answer_tokens(system.model.likelihood, "Certificates")
    if gates is None:
        raise ConfigError(
            f"The method {system.config.method.name!r} has no gate to certify: train bara-gate instead."
        )
    if not system.backbone.plain_head:
        raise ConfigError(
            "The certificate is about logits that are linear in the last hidden state, which those of this "
            "language model are not: take another --model."
        )
    if not gates.modulating:
        raise ConfigError(
            "Definition 1 of the paper covers the gate form only, and this run has the additive form: "
            "train bara-gate."
        )
    heads = [adapter for adapter in system.model.adapters.values() if adapter.target.is_head]
    if not heads:
        raise ConfigError(
            "The certificate is about the answer head, which this run does not adapt: name it in "
            "adapter.target_modules."
        )
    return heads[0], gates


@torch.no_grad()
def head_rows(system: System, split: EncodedSplit) -> HeadRows:
    """Run the rows of a split at the posterior mean and note what the answer head sees, in their order."""
    (adapter, gates), backbone, config = head_adapter(system), system.backbone, system.config.predict
    x, gate, base = [], [], []
    with tapped([adapter]) as seen:
        for batch in batches(split, system.answer_ids, config.batch_size):
            placed = batch.to(backbone.device)
            for piece in record(
                system.model, system.guide, placed, samples=0, memory_budget=config.memory_budget
            ):
                last = seen[adapter.target.path][0][:, -1]
                x.append(last.double().cpu())
                means = gates.of(piece.values, adapter.target.path)[0, :, -1].expand(len(last), -1)
                gate.append(means[:, : adapter.r].double().cpu())
                base.append(backbone.logits(last.to(backbone.dtype), placed.answer_ids).double().cpu())
    up = adapter.lora_B.detach().cpu()[system.answer_ids] * adapter.scaling
    return HeadRows(
        x=torch.cat(x),
        gate=torch.cat(gate),
        base=torch.cat(base),
        labels=torch.tensor(split.labels),
        up=up.double(),
        down=adapter.lora_A.detach().double().cpu(),
    )


@torch.no_grad()
def input_bound(backbone: Backbone) -> float:
    """Return a limit of `|x|_2` for every last hidden state that there can be: `sqrt(d) max|weight|`.

    The last norm gives `weight * z` with `|z| <= sqrt(d)`, and adds a bias in GPT-2 and GPT-NeoX.

    Raises:
        ConfigError: the backbone does not end in a norm of this form.
    """
    norms = [
        layer
        for layer in backbone.lm.base_model.children()
        if isinstance(getattr(layer, "weight", None), Tensor) and layer.weight.dim() == 1
    ]
    if not norms or not _is_plain_norm(norms[-1]):
        raise ConfigError(
            f"{type(backbone.lm).__name__} does not end in a norm that is known to limit the head's input: "
            "give a limit that holds for every input (caps={'x': ..})."
        )
    weight, bias = _parameters(norms[-1])
    rounding = 1 + torch.finfo(backbone.dtype).eps
    return rounding * (math.sqrt(len(weight)) * float(weight.abs().max()) + float(bias.norm()))


def _is_plain_norm(norm: nn.Module) -> bool:
    """Return whether a norm multiplies by its weight: some multiply by 1 + weight, and a probe tells."""
    weight, bias = _parameters(norm)
    probe = torch.linspace(-1, 2, len(weight), device=weight.device)
    centred = probe - probe.mean() if isinstance(norm, nn.LayerNorm) else probe
    expected = weight * centred / centred.square().mean().sqrt() + bias
    found = norm(probe.to(torch.as_tensor(norm.weight).dtype)).float()
    return torch.allclose(found, expected, rtol=0, atol=0.02 * float(expected.abs().max()))


def _parameters(norm: nn.Module) -> tuple[Tensor, Tensor]:
    weight = torch.as_tensor(norm.weight).float()
    bias = getattr(norm, "bias", None)
    return weight, torch.zeros_like(weight) if bias is None else bias.float()


@torch.no_grad()
def gate_radius(system: System) -> float:
    """Return W: the largest 2-norm, over the head's gates, of amortiser row and mean of Phi together."""
    (adapter, gates), model, guide = head_adapter(system), system.model, system.guide
    squares = torch.zeros(adapter.r, dtype=torch.float64)
    if gates.theta:
        rows = guide.sites[module_key(gates.theta[adapter.target.path])].weight[: adapter.r]
        squares += rows.detach().double().cpu().square().sum(-1)
    if gates.phi:
        mean = guide.get_posterior(gates.phi, model.phi_prior).mean[adapter.target.index]
        squares += mean[: adapter.r].double().cpu().square()
    return float(squares.max().sqrt())


def gate_slope(system: System, radius: float, input_norm: float) -> float:
    """Return Lambda: how far `phi softplus(w z)` moves per unit of (w, phi) in a ball of radius W.

    The gradient is `(phi sigmoid(w z) z, softplus(w z))` with `softplus(t) <= |t| + log 2`: its norm is at
    most `W |z| + log 2`, where `|z|` is `input_norm`, or `sqrt(d)` where the amortiser normalises its input.
    """
    width = head_adapter(system)[0].target.in_features
    size = math.sqrt(width) if getattr(system.guide, "normalize_input", False) else input_norm
    return radius * size + math.log(2) + MEAN_MIN
