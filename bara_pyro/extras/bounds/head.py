"""Inputs and gates of a trained answer head on the rows of a split, and limits that hold for all inputs.

The theorem covers one layer with a given input. It suits the answer head best: the input is the last hidden
state, the outputs are the C answers, and the rest of the model is h0.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bara_pyro.core.adapter import Adapter, tapped
from bara_pyro.core.latents import Gates
from bara_pyro.core.likelihood import require_answer_tokens
from bara_pyro.core.prediction import record
from bara_pyro.data import EncodedSplit, batches
from bara_pyro.errors import ConfigError
from bara_pyro.lm.backbone import Backbone
from bara_pyro.runs.system import System


@dataclass(frozen=True)
class HeadRows:
    """The answer head on n rows, with lower adapters at their posterior means; float64 on the CPU."""

    x: Tensor  # input of the head at the last token, `n x d`
    gate: Tensor  # `E[Phi] * E[theta(x)]`, `n x r`
    base: Tensor  # the answers' logits without the head's adapter, `n x C`
    labels: Tensor  # long, `n`
    up: Tensor  # the C answer rows of B, including the scaling, `C x r`
    down: Tensor  # A, `r x d`

    @property
    def largest_x(self) -> float:
        """The largest norm of x."""
        return float(self.x.norm(dim=-1).max())


def head_adapter(system: System) -> tuple[Adapter, Gates]:
    """Return the adapter of the answer head, and the gates of the program.

    A `ConfigError` says that the method is not BaRA in gate form, that the head is not adapted, or that the
    logits are not linear in the last hidden state.
    """
    gates = system.model.gates
    require_answer_tokens(system.model.likelihood, "Certificates")
    if gates is None:
        raise ConfigError(
            f"The method {system.config.method.name!r} has no gate to certify: train with --method bara-gate."
        )
    if not system.backbone.plain_head:
        raise ConfigError(
            "The certificate needs logits that are linear in the last hidden state, but this language model "
            "scales or caps its logits: choose another --model."
        )
    if not gates.modulating:
        raise ConfigError(
            "The certificate covers only the gate form (Definition 1 of the paper), but this run has the "
            "additive form: train with --method bara-gate."
        )
    heads = [adapter for adapter in system.model.adapters.values() if adapter.target.is_head]
    if not heads:
        raise ConfigError(
            "The certificate covers the answer head, which this run does not adapt: add it to "
            "adapter.target_modules and train again."
        )
    return heads[0], gates


@torch.no_grad()
def head_rows(system: System, split: EncodedSplit) -> HeadRows:
    """Run the rows of a split at the posterior mean; return inputs and gates of the answer head, in order.

    Errors are those of `head_adapter`.
    """
    (adapter, gates), backbone, config = head_adapter(system), system.backbone, system.config.predict
    x, gate, base = [], [], []
    with tapped([adapter]) as inputs:
        for batch in batches(split, system.answer_ids, config.batch_size):
            placed = batch.to(backbone.device)
            for piece in record(
                system.model, system.guide, placed, samples=0, memory_budget=config.memory_budget
            ):
                last = inputs[adapter.target.path][0][:, -1]
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
    """Return an upper limit of `|x|_2` for every possible last hidden state: `sqrt(d) max|weight|`.

    The last norm returns `weight * z` with `|z| <= sqrt(d)`; GPT-2 and GPT-NeoX add a bias. A backbone
    without such a norm raises a `ConfigError`.
    """
    norms = [
        layer
        for layer in backbone.lm.base_model.children()
        if isinstance(getattr(layer, "weight", None), Tensor) and layer.weight.dim() == 1
    ]
    if not norms or not _is_plain_norm(norms[-1]):
        raise ConfigError(
            f"{type(backbone.lm).__name__} does not end in a norm with a known limit: give a limit of |x| "
            "that holds for every input (caps={'x': ...})."
        )
    weight, bias = _parameters(norms[-1])
    rounding = 1 + torch.finfo(backbone.dtype).eps
    return rounding * (math.sqrt(len(weight)) * float(weight.abs().max()) + float(bias.norm()))


def _is_plain_norm(norm: nn.Module) -> bool:
    """Return whether a norm multiplies by its weight, by a probe; some multiply by 1 + weight."""
    weight, bias = _parameters(norm)
    probe = torch.linspace(-1, 2, len(weight), device=weight.device)
    centred = probe - probe.mean() if isinstance(norm, nn.LayerNorm) else probe
    expected = weight * centred / centred.square().mean().sqrt() + bias
    output = norm(probe.to(torch.as_tensor(norm.weight).dtype)).float()
    return torch.allclose(output, expected, rtol=0, atol=0.02 * float(expected.abs().max()))


def _parameters(norm: nn.Module) -> tuple[Tensor, Tensor]:
    weight = torch.as_tensor(norm.weight).float()
    bias = getattr(norm, "bias", None)
    return weight, torch.zeros_like(weight) if bias is None else bias.float()
