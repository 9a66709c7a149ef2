r"""A run as plain LoRA, which PEFT reads without bara_pyro and servers of LoRA adapters serve.

What is a LoRA at its posterior mean stays what it is. BaRA's gate form,

    s B ((Phi * theta(x)) * (A x)),

is one up to its local gate: with theta at its mean over the tokens of given rows, and Phi at its posterior
mean or at a draw, the gates are folded into the columns of B. How near that is, is measured. The additive
form, s B (Phi * theta(x)), has no A x to be near to.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from bara_pyro.core.gate_draws import gate_draws
from bara_pyro.core.latents import Gates
from bara_pyro.core.prediction import record
from bara_pyro.core.sites import module_key
from bara_pyro.data import EncodedSplit, batches, first_rows
from bara_pyro.errors import ConfigError
from bara_pyro.methods import METHODS
from bara_pyro.metrics import posterior_predictive
from bara_pyro.metrics.scores import nll
from bara_pyro.runs.config import load_config
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.manifest import ADAPTER, PEFT_CONFIG, recording
from bara_pyro.runs.peft_files import lora_tensors, peft_config
from bara_pyro.runs.store import SCHEMA, write_json, write_tensors
from bara_pyro.runs.system import System, assemble
from bara_pyro.types import Json

EXPORT: Final = "export.json"
Factors = dict[str, Tensor]
"""Path of a module -> what the columns of its B are multiplied by, `rank`."""


@dataclass(frozen=True)
class Nearness:
    """How near predictions are to those of the run, on the same rows.

    Attributes:
        rows: number of rows.
        kl_mean, kl_max: KL(run || export) of the answers' probabilities, nats a row.
        nll_run, nll_export: negative log-likelihood of the labels, nats a row.
        same_answer: percent of the rows whose likeliest answer is the same.
    """

    rows: int
    kl_mean: float
    kl_max: float
    nll_run: float
    nll_export: float
    same_answer: float


def export_lora(
    system: System,
    out: Path,
    *,
    rows: EncodedSplit,
    compared_on: EncodedSplit,
    draws: int = 0,
    seed: int | None = None,
) -> Json:
    """Write a fitted system as plain LoRA adapters of PEFT.

    Args:
        system: of a method that is a LoRA at its mean (`lora`, `blob`, ..), or BaRA in gate form.
        out: folder of the adapter; each draw gets a folder `draw-<k>` in it.
        rows: over whose tokens theta is averaged, of the training split for example.
        compared_on: rows on which predictions are compared with the run's.
        draws: number K of draws of Phi to write as adapters of their own.
        seed: of these draws; the run's own by default.

    Returns:
        What `export.json` holds: `mean`, the nearness of the adapter to the run at S = 0; with draws,
        `draws`, that of the K adapters' average to the run at S = K; see `Nearness`.

    Raises:
        ConfigError: no LoRA is near the method, or it has no Phi to draw.
    """
    seed = system.config.predict.seed if seed is None else seed
    factors = _factors(system, rows, draws, seed)
    own = {"method": system.config.method.name, "config_hash": system.config.hash}
    log_probs = []
    lora = plain_lora(system)
    for number, scale in enumerate(factors):
        fold(system, scale, lora)
        write_adapter(lora, out if number == 0 else out / f"draw-{number - 1}", own)
        log_probs.append(draw(lora, compared_on, 0))
    labels = compared_on.labels
    report: Json = {"schema": SCHEMA, **own, "theta_rows": len(rows), "seed": seed}
    report["mean"] = asdict(nearness(draw(system, compared_on, 0), log_probs[0], labels))
    if draws:
        average = draw(system, compared_on, draws, seed=seed)
        report["draws"] = asdict(nearness(average, torch.cat(log_probs[1:]), labels))
    with recording(out, EXPORT):
        write_json(out / EXPORT, report)
    return report


def _factors(system: System, rows: EncodedSplit, draws: int, seed: int) -> list[Factors | None]:
    """Return by what B is multiplied: for the mean, then for each draw; None: by nothing."""
    name, gates = system.config.method.name, system.model.gates
    if METHODS[name].peft:
        if draws:
            raise ConfigError(f"{name!r} has no gates Phi to draw: leave --draws out.")
        return [None]
    if gates is None:
        raise ConfigError(f"No plain LoRA is near the method {name!r}: export bara-gate, or a LoRA.")
    if not gates.modulating:
        raise ConfigError(
            f"No plain LoRA is near {name!r} in additive form, whose change B (Phi * theta(x)) is not linear "
            "in the layer's input: train bara-gate to export one."
        )
    if draws and gates.phi is None:
        raise ConfigError(f"This {name!r} has no gates Phi to draw (latent: theta): leave --draws out.")
    theta = theta_means(system, gates, rows) if gates.theta else {}
    none = torch.ones(1, len(gates.modules), gates.r)
    phi = [phi_draws(system, rows, s, seed) if gates.phi else none for s in ((0, draws) if draws else (0,))]
    return [
        {path: own * theta.get(path, 1.0) for path, own in zip(gates.modules, one, strict=True)}
        for one in torch.cat(phi)
    ]


@torch.no_grad()
def theta_means(system: System, gates: Gates, rows: EncodedSplit) -> Factors:
    """Return each module's theta, averaged over the real tokens of rows: path -> `r`, 0 for pruned units."""
    total = {path: torch.zeros(gates.r, dtype=torch.float64) for path in gates.theta}
    count = dict.fromkeys(gates.theta, 0)
    for batch in batches(rows, system.answer_ids, system.config.predict.batch_size, by_length=True):
        for piece in record(system.model, system.guide, batch.to(system.backbone.device), samples=0):
            for path, site in gates.theta.items():
                values = piece.values[site]
                real = values[piece.mask[:, -values.shape[1] :]]
                total[path] += real.double().sum(0).cpu()
                count[path] += len(real)
    return {path: (value / count[path]).float() for path, value in total.items()}


def phi_draws(system: System, rows: EncodedSplit, samples: int, seed: int) -> Tensor:
    """Return draws of Phi, those of prediction: `max(samples, 1) x modules x r`; its mean with none."""
    one = batches(first_rows(rows, 1), system.answer_ids, 1)
    phi = gate_draws(system.model, system.guide, one, samples=samples, seed=seed).phi
    return torch.as_tensor(phi)


def plain_lora(system: System) -> System:
    """Return LoRA on the same backbone, every module of rank r: servers know one rank an adapter."""
    config = load_config(base=system.config, overrides={"method": {"name": "lora"}})
    return assemble(config, system.backbone, system.task, system.model.num_data)


@torch.no_grad()
def fold(system: System, factors: Factors | None, lora: System) -> None:
    """Give a LoRA the projections of a system, the columns of B times `factors`; pruned units are zeros."""
    for target in system.model.targets:
        ours, theirs = (
            [
                model.get_parameter(f"adapters.{module_key(target.path)}.{name}")
                for name in ("lora_A", "lora_B")
            ]
            for model in (system.model, lora.model)
        )
        rank = len(ours[0])
        for value in theirs:
            value.zero_()
        theirs[0][:rank] = ours[0]
        theirs[1][:, :rank] = ours[1]
        if factors is not None:
            theirs[1].mul_(factors[target.path].to(theirs[1].device))


def write_adapter(lora: System, folder: Path, metadata: Json) -> None:
    """Write the two files of a PEFT adapter, and the manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    with recording(folder, PEFT_CONFIG, ADAPTER):
        write_json(folder / PEFT_CONFIG, peft_config(lora))
        write_tensors(folder / ADAPTER, lora_tensors(lora.model), metadata)


def nearness(run: Tensor, export: Tensor, labels: tuple[int, ...]) -> Nearness:
    """Compare predictive distributions, given as draws of log-probabilities, `S x n x C`."""
    p, q = posterior_predictive(run), posterior_predictive(export)
    kl = (p.exp() * (p - q)).nan_to_num(0.0).sum(-1).clamp_min(0)  # 0 log 0 is 0
    truth = torch.tensor(labels)
    same = (p.argmax(-1) == q.argmax(-1)).double().mean()
    return Nearness(
        len(kl), float(kl.mean()), float(kl.max()), nll(p, truth), nll(q, truth), 100 * float(same)
    )
