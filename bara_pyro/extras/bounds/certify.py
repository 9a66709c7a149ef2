r"""Certify a trained run: the answer head of BaRA in gate form, on the rows of one split.

    g(x) = E[Phi] * E[theta(x)],   u = certified_gate(g),   logits = h0(x) + s B_C diag(u) A x

B_C are the C answer rows of B; all lower adapters are at their posterior means.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from bara_pyro.errors import ConfigError, unknown
from bara_pyro.extras.bounds.certificate import Certificate, Constant
from bara_pyro.extras.bounds.gate_cover import COVERS, Cap, norm_cap
from bara_pyro.extras.bounds.head import HeadRows, head_rows, input_bound
from bara_pyro.extras.bounds.pac_bayes import held_out_bound
from bara_pyro.extras.bounds.rademacher import certified_change, certified_gate
from bara_pyro.metrics import accuracy, ece
from bara_pyro.metrics.scores import nll_per_example
from bara_pyro.runs.system import System

SPLITS = ("train", "validation", "test")
CAPS = ("A", "B", "x")
UNITS = {"acc": "percent", "ece": "percent", "nll": "nats, capped"}


@dataclass(frozen=True, repr=False)
class HeadCertificate:
    """A certificate with measurements on the same rows, which prints with all of them."""

    certificate: Certificate  # the bound on the capped NLL
    scores: dict[str, dict[str, float]]  # "mean gate", "certified" -> acc, ece (percent), nll (capped, nats)
    active: float  # mean number of active gates per row
    largest: int  # largest number of gates above tau in a row, before the s largest are chosen
    rho: float  # largest difference between clipped and certified gate on the rows
    largest_x: float  # largest norm of x on the rows
    held_out: float | None  # the held-out bound on the same risk; None for training rows

    def __str__(self) -> str:
        return "; ".join(map(str, self.constants()))

    __repr__ = __str__

    def constants(self) -> tuple[Constant, ...]:
        """Return the measurements, then the constants of the certificate."""
        scores = (
            Constant(f"{key}, {name}", value, UNITS[key])
            for name, scores in self.scores.items()
            for key, value in scores.items()
        )
        return (
            *scores,
            Constant("active gates", self.active, "mean per row"),
            Constant("above tau", self.largest, "largest number in a row, before the s largest are chosen"),
            Constant("rho on the rows", self.rho, "largest difference between clipped and certified gate"),
            Constant("|x| on the rows", self.largest_x, "largest norm"),
            Constant("held-out bound", self.held_out, "on the same risk; none for training rows"),
            *self.certificate.constants(),
        )


def certify_head(
    system: System,
    split_name: str,
    *,
    tau: float,
    s: int,
    clip: float,
    cap: float,
    cover: str,
    delta: float = 0.05,
    caps: Mapping[str, float] | None = None,
    choices: int = 1,
) -> HeadCertificate:
    """Evaluate the certified predictor of a run on a split and bound its risk.

    Args:
        system: a trained run of BaRA in gate form with an adapter on the answer head.
        split_name: "train", "validation" or "test".
        tau: threshold of a gate.
        s: budget of active gates.
        clip: `R_g`.
        cap: M, cap of the NLL in nats.
        cover: a key of `bara_pyro.extras.bounds.gate_cover.COVERS`.
        delta: probability that the bound fails.
        caps: norm -> its cap, if fixed before the rows were seen: "B" (the C answer rows, including the
            scaling), "A", "x". B and A without a cap are measured and take a cap from a grid, which costs a
            share of delta. x without a cap takes `input_bound`, because measurements say nothing about new
            inputs.
        choices: number of settings (tau, s, clip, ...) tried on these rows.

    Raises:
        ConfigError: the run has the additive form or no adapter on the head; the split, cover or a cap is
            unknown; or a number is out of range.
        DataError: the split is empty, or a label is missing.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.extras.bounds.certify import certify_head
        >>> run = bp.train(task="micro-wgs", method="bara-gate", steps=2, limit=40, out="runs/first")
        >>> certified = certify_head(run, "train", tau=0.1, s=4, clip=3.0, cap=4.0, cover="absorbed")
        >>> certified.certificate.bound >= certified.scores["certified"]["nll"]
        True
    """
    caps = caps or {}
    names = [("split", split_name, SPLITS), ("gate cover", cover, tuple(COVERS))]
    for kind, name, known in (*names, *(("cap", key, CAPS) for key in caps)):
        if name not in known:
            raise ConfigError(unknown(kind, name, known))
    rows = head_rows(system, system.split(split_name))
    gate = certified_gate(rows.gate, clip=clip, tau=tau, s=s)
    scores = {name: _scores(rows, g, cap) for name, g in (("mean gate", rows.gate), ("certified", gate))}
    inputs = _input_cap(system, rows, caps.get("x"))
    certificate = Certificate(
        n=len(rows.labels),
        r=len(rows.down),
        s=s,
        tau=tau,
        clip=clip,
        up=norm_cap("B", float(rows.up.norm()), caps.get("B")),
        down=norm_cap("A", float(rows.down.norm()), caps.get("A")),
        inputs=inputs,
        cover=cover,
        empirical=scores["certified"]["nll"],
        loss_cap=cap,
        outputs=len(rows.up),
        delta=delta,
        choices=choices,
        further=_further(system, split_name),
        violated=_violated(system, split_name, cover),
    )
    held_out = cap * held_out_bound(certificate.empirical / cap, certificate.n, delta / choices)
    clipped = rows.gate.clamp(-clip, clip)
    return HeadCertificate(
        certificate,
        scores,
        active=float((gate != 0).sum(-1).double().mean()),
        largest=int((clipped.abs() > tau).sum(-1).max()),
        rho=float((clipped - gate).abs().max()),
        largest_x=rows.largest_x,
        held_out=None if split_name == "train" else held_out,
    )


def _scores(rows: HeadRows, gate: Tensor, cap: float) -> dict[str, float]:
    log_probs = (rows.base + certified_change(rows.up, gate, rows.down, rows.x)).log_softmax(-1)
    return {
        "acc": accuracy(log_probs, rows.labels),
        "ece": ece(log_probs, rows.labels),
        "nll": float(nll_per_example(log_probs, rows.labels).clamp(max=cap).mean()),
    }


def _input_cap(system: System, rows: HeadRows, fixed: float | None) -> Cap:
    if fixed is not None:
        return norm_cap("x", rows.largest_x, fixed)
    limit = norm_cap("x", rows.largest_x, input_bound(system.backbone)).value
    return Cap("x", limit, 1.0, "sqrt(d) max|weight| of the backbone's last norm, for every input")


def _further(system: System, split_name: str) -> tuple[str, ...]:
    lower = sum(not target.is_head for target in system.model.targets)
    inputs = (
        f"x depends on {lower} trained adapters below the head, each at its posterior mean: the bound "
        "assumes that they were trained on other rows."
        if lower
        else "No adapter lies below the head, so x comes from the frozen language model."
    )
    rows = (
        "These are the rows that B, A and the gate were trained on."
        if split_name == "train"
        else f"The {split_name} rows were not used to train or choose anything (method, learning rate, tau, "
        "s, caps). Then B, A and the gate were also fixed before, and the held-out bound also holds."
    )
    return inputs, rows


def _violated(system: System, split_name: str, cover: str) -> tuple[str, ...]:
    """Return the violated assumptions: inputs from trained adapters, and a cover that omits the gate."""
    amortised = bool(system.model.latents.local_sites)
    sentences = []
    if split_name == "train" and any(not target.is_head for target in system.model.targets):
        sentences.append("x depends on adapters that were trained on these rows.")
    if cover == "global" and amortised:
        sentences.append("the gate depends on x, but the cover 'global' assumes one vector for all inputs.")
    elif split_name == "train" and amortised:
        sentences.append(
            f"the gate was trained on these rows, but the cover {cover!r} does not count all gates that "
            "training could reach."
        )
    return tuple(sentences)
