"""The certified bound as a result: every constant, what they add up to, and what had to be assumed.

The formulas are in `bara_pyro.extras.bounds.rademacher`, what norms and gates cost in `.gate_cover`.
"""

import math
from dataclasses import dataclass

from bara_pyro.errors import ConfigError
from bara_pyro.extras.bounds import rademacher as formulas
from bara_pyro.extras.bounds.gate_cover import Cap, GateCover
from bara_pyro.extras.bounds.stated import Stated, numbered


@dataclass(frozen=True)
class Constant:
    """One line of a certificate."""

    quantity: str  # its symbol or name; "assumed", "NOT MET" and "scope" stand before a sentence
    value: float | None  # None before a sentence
    meaning: str  # what it is, or the sentence


@dataclass(frozen=True, repr=False)
class Certificate(Stated):
    """The bound on one set of rows.

    Raises:
        ConfigError: a number is out of range.
    """

    n: int  # rows
    r: int  # rank
    s: int  # budget of active gates
    tau: float  # threshold of a gate
    clip: float  # `R_g`
    up: Cap  # `R_B`, scaling included
    down: Cap  # `R_A`
    inputs: Cap  # `R_x`
    cover: GateCover  # `Gamma_gate` and what it assumes
    empirical: float  # mean capped loss of the certified predictor on the rows
    loss_cap: float  # M, in the unit of the loss
    outputs: int = 1  # number C of outputs that the loss sees; 1 stands for one fixed scalar functional
    lipschitz: float = formulas.NLL_LIPSCHITZ  # L, in the 2-norm of the outputs
    delta: float = 0.05  # probability with which the bound may fail
    choices: int = 1  # settings of (tau, s, clip, ..) tried on these rows; delta is divided by it
    radius: Cap | None = None  # cap W of the gate's parameters, where the cover has one
    further: tuple[str, ...] = ()  # more assumptions, one sentence each
    violated: tuple[str, ...] = ()  # sentences on assumptions that are known not to hold for these rows

    def __post_init__(self) -> None:
        if self.n < 1 or not 1 <= self.s <= self.r or self.outputs < 1 or self.choices < 1:
            raise ConfigError(
                f"n={self.n}, s={self.s}, r={self.r}, outputs={self.outputs}, choices={self.choices} must be "
                "at least 1, and s at most r."
            )
        if not 0 < self.tau < self.clip or not 0 < self.delta < 1 or self.lipschitz <= 0:
            raise ConfigError(
                f"tau={self.tau}, clip={self.clip}, delta={self.delta}, lipschitz={self.lipschitz} must have "
                "0 < tau < clip, 0 < delta < 1 and a positive lipschitz."
            )
        if not 0 <= self.empirical <= self.loss_cap:
            raise ConfigError(
                f"The empirical risk {self.empirical} must lie between 0 and loss_cap={self.loss_cap}."
            )
        if self.cover.eps > self.clip / math.sqrt(self.n):
            raise ConfigError(
                f"The gate cover's eps={self.cover.eps} exceeds R_g / sqrt(n): make it for {self.n} rows."
            )

    @property
    def norms(self) -> float:
        """`R_A R_B R_x`."""
        return self.down.value * self.up.value * self.inputs.value

    @property
    def delta_left(self) -> float:
        """What is left of delta once caps from a grid and repeated choices are paid for."""
        radius = 1.0 if self.radius is None else self.radius.share
        return self.delta * self.up.share * self.down.share * self.inputs.share * radius / self.choices

    @property
    def rademacher(self) -> float:
        """Bound on the empirical Rademacher complexity of one scalar functional of the certified class."""
        return formulas.rademacher(
            self.norms * self.clip, n=self.n, r=self.r, s=self.s, gate_nats=self.cover.nats
        )

    @property
    def complexity(self) -> float:
        """`2 L Rad`, times `sqrt(2 C)` where the loss sees C outputs."""
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
        """Whether the bound says no more than the cap of the loss does."""
        return self.bound >= self.loss_cap

    @property
    def rho(self) -> float:
        """Largest difference of clipped and certified gate over all inputs: tau, or `R_g` where s < r."""
        return self.tau if self.s == self.r else self.clip

    @property
    def soft_residual(self) -> float:
        """`2 L R_A R_B R_x rho`: what the clipped soft gate pays on top of the bound."""
        return 2 * self.lipschitz * self.norms * self.rho

    @property
    def lora_complexity(self) -> float:
        """The paper's comparator under the same caps: `2 L R_A R_B R_x sqrt(r / n)`."""
        return self.lora_rank_free * math.sqrt(self.r)

    @property
    def lora_rank_free(self) -> float:
        """LoRA's complexity without the loose step, `2 L R_A R_B R_x / sqrt(n)`.

        One functional of LoRA is `(A^T B^T v) x`, a linear function of norm at most `R_A R_B`: no rank in it.
        """
        return 2 * formulas.contraction(self.lipschitz, self.outputs) * self.norms / math.sqrt(self.n)

    @property
    def ratio(self) -> float:
        """The paper's ratio of leading terms, BaRA to LoRA: `R_g sqrt((s log(e r / s) + Gamma) / r)`."""
        return self.clip * math.sqrt(formulas.class_entropy(self.r, self.s, self.cover.nats) / self.r)

    @property
    def slack(self) -> float:
        """`R_g^-2 - (s log(e r / s) + Gamma) / r`: the paper's advantage condition, met where positive."""
        return self.clip**-2 - formulas.class_entropy(self.r, self.s, self.cover.nats) / self.r

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What has to be true for the bound to hold, one sentence each."""
        tried = (
            "no other setting was tried on these rows" if self.choices == 1 else f"{self.choices} were tried"
        )
        outputs = (
            "is a function of one fixed scalar functional of the outputs"
            if self.outputs == 1
            else f"sees {self.outputs} outputs (Maurer's contraction, factor sqrt(2 C))"
        )
        radius = "" if self.radius is None else f", W <= {self.radius.value:.4g} ({self.radius.reason})"
        return (
            f"The {self.n} rows are independent draws from the distribution that the risk is of.",
            "The layer's inputs x and the rest of the model, h0, were fixed before these rows were seen.",
            f"Norms: R_B = {self.up.value:.4g} ({self.up.reason}), R_A = {self.down.value:.4g} "
            f"({self.down.reason}), R_x = {self.inputs.value:.4g} ({self.inputs.reason}){radius}.",
            f"The gate is clipped at {self.clip:g}, put to 0 up to {self.tau:g}, its {self.s} largest of "
            f"{self.r} entries kept; {tried}.",
            f"Gate cover {self.cover.name!r}, {self.cover.nats:.4g} nats: {self.cover.assumption}",
            f"The loss lies in 0..{self.loss_cap:.4g}, is {self.lipschitz:.4g}-Lipschitz and {outputs}.",
            *self.further,
        )

    @property
    def scope(self) -> str:
        """What the bound is about, and what it is not."""
        return (
            "It is about the certified predictor (clipped, thresholded, top s), not about the random gates "
            f"nor their average; for the clipped gate without threshold add {self.soft_residual:.4g}."
        )

    def statement(self) -> str:
        """Return the bound in sentences, with its assumptions."""
        violated = "".join(f" NOT A CERTIFICATE of this model: {sentence}" for sentence in self.violated)
        verdict = (
            f"it is vacuous, since the loss is never above {self.loss_cap:.4g}"
            if self.vacuous
            else f"it is not vacuous, since it lies below the cap {self.loss_cap:.4g} of the loss"
        )
        return (
            f"With probability at least {1 - self.delta:g} the risk is at most {self.bound:.4g} = empirical "
            f"{self.empirical:.4g} + complexity {self.complexity:.4g} + confidence {self.confidence:.4g}; "
            f"{verdict}.{violated} {self.scope} The paper compares with LoRA's {self.lora_complexity:.4g} by "
            f"the ratio {self.ratio:.4g}; LoRA's complexity without the rank is {self.lora_rank_free:.4g}. "
            f"{numbered(self.assumptions)}"
        )

    def constants(self) -> tuple[Constant, ...]:
        """Return all that goes into the bound, and under it what it is about and assumes."""
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
            ("Gamma", self.cover.nats, f"nats, gate cover {self.cover.name!r}"),
            ("eps", self.cover.eps, "resolution of the cover"),
            ("L", self.lipschitz, "Lipschitz constant of the loss"),
            ("C", self.outputs, "outputs that the loss sees"),
            ("M", self.loss_cap, "cap of the loss"),
            ("delta", self.delta, "probability of failure"),
            ("delta left", self.delta_left, "after caps from a grid and choices are paid for"),
            ("soft residual", self.soft_residual, f"2 L R_A R_B R_x rho, rho = {self.rho:g}"),
            ("LoRA", self.lora_complexity, "complexity under the same norms, the paper's sqrt(r / n)"),
            ("LoRA, no rank", self.lora_rank_free, "the same without the loose factor sqrt(r)"),
            ("ratio", self.ratio, "BaRA to LoRA, leading terms of the paper"),
            ("slack", self.slack, "of the paper's advantage condition; it holds if positive"),
            ("scope", None, self.scope),
            *(("NOT MET", None, sentence) for sentence in self.violated),
            *(("assumed", None, sentence) for sentence in self.assumptions),
        )
        return tuple(Constant(*fact) for fact in facts)
