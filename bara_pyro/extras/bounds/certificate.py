"""The certified bound as a result, with all its constants and assumptions.

The formulas are in `bara_pyro.extras.bounds.rademacher`, the costs of norms and gates in `.gate_cover`.
"""

import math
from dataclasses import dataclass

from bara_pyro.errors import ConfigError, unknown
from bara_pyro.extras.bounds import rademacher as formulas
from bara_pyro.extras.bounds.gate_cover import COVERS, Cap


@dataclass(frozen=True)
class Constant:
    """One line of a certificate."""

    quantity: str  # symbol or name; "assumed", "NOT MET" or "scope" if the line is a sentence
    value: float | None  # None if the line is a sentence
    meaning: str  # explanation, or the sentence

    def __str__(self) -> str:
        return self.quantity + ("" if self.value is None else f" {self.value:.4g}") + f" ({self.meaning})"


@dataclass(frozen=True, repr=False)
class Certificate:
    """The bound on one set of rows, which prints with its assumptions.

    Raises:
        ConfigError: a number is out of range.
    """

    n: int  # number of rows
    r: int  # rank
    s: int  # budget of active gates
    tau: float  # threshold of a gate
    clip: float  # `R_g`
    up: Cap  # `R_B`, including the scaling
    down: Cap  # `R_A`
    inputs: Cap  # `R_x`
    cover: str  # a key of `COVERS`, which determines `Gamma_gate`
    empirical: float  # mean capped loss of the certified predictor on the rows
    loss_cap: float  # M, in the unit of the loss
    outputs: int = 1  # number C of outputs that the loss depends on; 1: one fixed scalar functional
    lipschitz: float = formulas.NLL_LIPSCHITZ  # L, in the 2-norm of the outputs
    delta: float = 0.05  # probability that the bound fails
    choices: int = 1  # number of settings (tau, s, clip, ...) tried on these rows; it divides delta
    further: tuple[str, ...] = ()  # further assumptions, one sentence each
    violated: tuple[str, ...] = ()  # assumptions that do not hold for these rows, one sentence each

    def __post_init__(self) -> None:
        if self.n < 1 or not 1 <= self.s <= self.r or self.outputs < 1 or self.choices < 1:
            raise ConfigError(
                f"n={self.n}, s={self.s}, r={self.r}, outputs={self.outputs}, choices={self.choices}: choose "
                "each at least 1, and s at most r."
            )
        if not 0 < self.tau < self.clip or not 0 < self.delta < 1 or self.lipschitz <= 0:
            raise ConfigError(
                f"tau={self.tau}, clip={self.clip}, delta={self.delta}, lipschitz={self.lipschitz}: choose "
                "0 < tau < clip, 0 < delta < 1 and a positive lipschitz."
            )
        if not 0 <= self.empirical <= self.loss_cap:
            raise ConfigError(
                f"The empirical risk {self.empirical} must be between 0 and loss_cap={self.loss_cap}."
            )
        if self.cover not in COVERS:
            raise ConfigError(unknown("gate cover", self.cover, COVERS))

    def __str__(self) -> str:
        return "; ".join(map(str, self.constants()))

    __repr__ = __str__

    @property
    def eps(self) -> float:
        """The resolution of the cover, the largest that the bound allows."""
        return self.clip / math.sqrt(self.n)

    @property
    def gate_nats(self) -> float:
        """`Gamma_gate(n, s, eps)`, nats (equation for the gate cover in the second appendix)."""
        return self.r * math.log(self.clip / self.eps) if self.cover == "global" else 0.0

    @property
    def norms(self) -> float:
        """`R_A R_B R_x`."""
        return self.down.value * self.up.value * self.inputs.value

    @property
    def delta_left(self) -> float:
        """The part of delta that remains after the costs of caps from a grid and of repeated choices."""
        return self.delta * self.up.share * self.down.share * self.inputs.share / self.choices

    @property
    def rademacher(self) -> float:
        """Bound on the empirical Rademacher complexity of one scalar functional of the certified class."""
        return formulas.rademacher(
            self.norms * self.clip, n=self.n, r=self.r, s=self.s, gate_nats=self.gate_nats
        )

    @property
    def complexity(self) -> float:
        """`2 L Rad`, times `sqrt(2 C)` if the loss depends on C > 1 outputs."""
        return 2 * formulas.contraction(self.lipschitz, self.outputs) * self.rademacher

    @property
    def confidence(self) -> float:
        """`3 M sqrt(log(2 / delta_left) / (2 n))`."""
        return 3 * self.loss_cap * math.sqrt(math.log(2 / self.delta_left) / (2 * self.n))

    @property
    def bound(self) -> float:
        """The bound on the risk of the certified predictor."""
        return self.empirical + self.complexity + self.confidence

    @property
    def vacuous(self) -> bool:
        """Whether the bound is no better than the cap of the loss."""
        return self.bound >= self.loss_cap

    @property
    def rho(self) -> float:
        """Largest difference between clipped and certified gate over all inputs: tau, or `R_g` if s < r."""
        return self.tau if self.s == self.r else self.clip

    @property
    def soft_residual(self) -> float:
        """`2 L R_A R_B R_x rho`: the addition to the bound that covers the clipped soft gate."""
        return 2 * self.lipschitz * self.norms * self.rho

    @property
    def lora_complexity(self) -> float:
        """LoRA's complexity under the same caps, as in the paper: `2 L R_A R_B R_x sqrt(r / n)`."""
        return self.lora_rank_free * math.sqrt(self.r)

    @property
    def lora_rank_free(self) -> float:
        """LoRA's complexity without the paper's loose step, `2 L R_A R_B R_x / sqrt(n)`.

        A functional of LoRA is `(A^T B^T v) x`, a linear function of norm at most `R_A R_B`, which does not
        depend on the rank.
        """
        return 2 * formulas.contraction(self.lipschitz, self.outputs) * self.norms / math.sqrt(self.n)

    @property
    def ratio(self) -> float:
        """The paper's ratio of leading terms, BaRA to LoRA: `R_g sqrt((s log(e r / s) + Gamma) / r)`.

        Its advantage condition holds if the ratio is below 1.
        """
        return self.clip * math.sqrt(formulas.class_entropy(self.r, self.s, self.gate_nats) / self.r)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions of the bound, one sentence each."""
        tried = (
            "no other setting was tried on these rows"
            if self.choices == 1
            else f"{self.choices} settings were tried on these rows"
        )
        outputs = (
            "is a function of one fixed scalar functional of the outputs"
            if self.outputs == 1
            else f"depends on {self.outputs} outputs (Maurer's contraction, factor sqrt(2 C))"
        )
        return (
            f"The {self.n} rows are independent draws from the distribution that defines the risk.",
            "The layer's inputs x and the rest of the model, h0, were fixed before these rows were seen.",
            f"Norms: R_B = {self.up.value:.4g} ({self.up.reason}), R_A = {self.down.value:.4g} "
            f"({self.down.reason}), R_x = {self.inputs.value:.4g} ({self.inputs.reason}).",
            f"The gate is clipped at {self.clip:g} and set to 0 where it is at most {self.tau:g}, and the "
            f"{self.s} largest of its {self.r} entries are kept; {tried}.",
            f"Gate cover {self.cover!r}, {self.gate_nats:.4g} nats: {COVERS[self.cover]}",
            f"The loss is between 0 and {self.loss_cap:.4g}, is {self.lipschitz:.4g}-Lipschitz and "
            f"{outputs}.",
            *self.further,
        )

    @property
    def scope(self) -> str:
        """What the bound covers and what it does not."""
        return (
            "The bound covers the certified predictor (clipped, thresholded, top s), not the random gates or "
            f"their average; for the clipped gate without threshold, add {self.soft_residual:.4g}."
        )

    def constants(self) -> tuple[Constant, ...]:
        """Return all terms of the bound, then its scope and assumptions."""
        verdict = "vacuous: not below M" if self.vacuous else "not vacuous: below M"
        facts: tuple[tuple[str, float | None, str], ...] = (
            ("bound", self.bound, f"on the risk; {verdict}"),
            ("empirical", self.empirical, "risk of the certified predictor on the rows"),
            ("complexity", self.complexity, "2 L Rad, times sqrt(2 C) for C outputs"),
            ("confidence", self.confidence, "3 M sqrt(log(2 / delta left) / (2 n))"),
            ("Rad", self.rademacher, "of one scalar functional"),
            ("n", self.n, "rows"),
            ("r", self.r, "rank"),
            ("s", self.s, "budget of active gates"),
            ("tau", self.tau, "threshold"),
            ("R_g", self.clip, "clip of a gate"),
            ("R_A", self.down.value, self.down.reason),
            ("R_B", self.up.value, self.up.reason),
            ("R_x", self.inputs.value, self.inputs.reason),
            ("Gamma", self.gate_nats, f"nats, gate cover {self.cover!r}"),
            ("eps", self.eps, "resolution of the cover"),
            ("L", self.lipschitz, "Lipschitz constant of the loss"),
            ("C", self.outputs, "outputs that the loss depends on"),
            ("M", self.loss_cap, "cap of the loss"),
            ("delta", self.delta, "probability of failure"),
            ("delta left", self.delta_left, "after the costs of caps from a grid and of choices"),
            ("soft residual", self.soft_residual, f"2 L R_A R_B R_x rho, rho = {self.rho:g}"),
            ("LoRA", self.lora_complexity, "complexity under the same norms, the paper's sqrt(r / n)"),
            ("LoRA, no rank", self.lora_rank_free, "the same without the loose factor sqrt(r)"),
            ("ratio", self.ratio, "BaRA to LoRA, leading terms of the paper; an advantage if below 1"),
            ("scope", None, self.scope),
            *(("NOT MET", None, sentence) for sentence in self.violated),
            *(("assumed", None, sentence) for sentence in self.assumptions),
        )
        return tuple(Constant(*fact) for fact in facts)
