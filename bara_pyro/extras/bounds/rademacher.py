r"""Formulas of the certified predictor and its bound (second appendix of arXiv 2606.29184).

    u(x) = Top_s(T_tau(clip_Rg(g(x)))),    h(x) = h0(x) + B diag(u(x)) A x

    Rad  <= R_A R_B R_g R_x / sqrt(n) [ sqrt(s) + sqrt(2 (s log(e r / s) + Gamma)) + 1 ]
    R(h) <= Rhat(h) + 2 L Rad + 3 M sqrt(log(2 / delta) / (2 n))        with probability 1 - delta

The three summands come from Lemma 1, the union over the gate cover, and its resolution eps <= R_g / sqrt(n).
The paper's `C_1 = 2 + sqrt(2)` puts them under one root. These formulas use `s log(e r / s)` throughout: the
main text's step to `s log r` needs s >= e and fails for s = 1 and 2.
"""

import math

import torch
from torch import Tensor

from bara_pyro.errors import ConfigError

NLL_LIPSCHITZ = math.sqrt(2)
"""Lipschitz constant of the negative log-likelihood in the 2-norm of the logits; the gradient is p - e_y."""


def certified_gate(gate: Tensor, *, clip: float, tau: float, s: int) -> Tensor:
    """Return `Top_s(T_tau(clip_Rg(gate)))`, `... x r` (equation of the certified gate, second appendix).

    Magnitudes are clipped at `clip` and set to 0 where they are at most `tau`, and the `s` largest are kept.
    Of equal entries, such as clipped ones, the first are kept.

    Args:
        gate: `... x r`.
        clip: `R_g`.
        tau: threshold.
        s: largest number of active gates.

    Raises:
        ConfigError: `0 < tau < clip` or `1 <= s <= r` does not hold.
    """
    if not 0 < tau < clip or not 1 <= s <= gate.shape[-1]:
        raise ConfigError(
            f"tau={tau}, clip={clip}, s={s}: choose 0 < tau < clip and 1 <= s <= r={gate.shape[-1]}."
        )
    clipped = gate.clamp(-clip, clip)
    largest = clipped.abs().argsort(dim=-1, descending=True, stable=True)[..., :s]
    chosen = torch.zeros_like(clipped, dtype=torch.bool).scatter(-1, largest, True)
    return clipped.where(chosen & (clipped.abs() > tau), torch.zeros_like(clipped))


def certified_change(up: Tensor, gate: Tensor, down: Tensor, x: Tensor) -> Tensor:
    """Return `B diag(u) A x`, `... x outputs`.

    Args:
        up: B, including the scaling, `outputs x r`.
        gate: u, `... x r`.
        down: A, `r x d`.
        x: `... x d`.
    """
    return (x @ down.T * gate) @ up.T


def class_entropy(r: int, s: int, gate_nats: float) -> float:
    """Return `s log(e r / s) + Gamma_gate` in nats."""
    return s * (1 + math.log(r / s)) + gate_nats


def rademacher(scale: float, *, n: int, r: int, s: int, gate_nats: float) -> float:
    """Return the bound on the empirical Rademacher complexity of a scalar functional, with all constants.

    Args:
        scale: `R_A R_B R_g R_x`.
        n: number of rows.
        r: rank.
        s: budget of active gates.
        gate_nats: `Gamma_gate`, nats.
    """
    bracket = math.sqrt(s) + math.sqrt(2 * class_entropy(r, s, gate_nats)) + 1
    return scale / math.sqrt(n) * bracket


def contraction(lipschitz: float, outputs: int) -> float:
    """Return the factor from the complexity of one output to that of the loss.

    One output: L (Talagrand). C outputs: `sqrt(2) L` (Maurer, ALT 2016, for losses that are Lipschitz in the
    2-norm) times `sqrt(C)`, because each summand grows by this factor with independent signs for C outputs.
    """
    return lipschitz if outputs == 1 else lipschitz * math.sqrt(2 * outputs)
