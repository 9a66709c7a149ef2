r"""Export a run as plain LoRA, which PEFT and LoRA servers read without bara_pyro.

Methods that are a LoRA at their posterior mean are exported exactly. BaRA is approximated: at the posterior
mean its change is s B (Phi * c(x)), with c(x) = theta(x) * (A x) in gate form and theta(x) in additive form.
The export replaces c by the nearest linear map on given rows (`bara_pyro.extras.hub.linear_gates`) and folds
Phi, at its posterior mean or at a draw, into the columns of B. It also measures the approximation error. A
draw of the weights of TFB, BLoB or IVON-LoRA is a LoRA itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, NamedTuple

import torch
from torch import Tensor

from bara_pyro.atomic import write_json
from bara_pyro.core.gate_draws import gate_draws
from bara_pyro.core.modules import module_key
from bara_pyro.core.prediction import record
from bara_pyro.data import EncodedSplit, batches, first_rows
from bara_pyro.errors import ConfigError
from bara_pyro.extras.hub.linear_gates import down_projections, linear_gates
from bara_pyro.extras.hub.prompt_format import prompt_format
from bara_pyro.methods import METHODS
from bara_pyro.metrics import posterior_predictive
from bara_pyro.metrics.scores import nll
from bara_pyro.models.gaussian_lora import GaussianLoRA, unflipped
from bara_pyro.runs.config import load_config
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.manifest import ADAPTER, PEFT_CONFIG, is_run
from bara_pyro.runs.ownership import adding, check_replaceable
from bara_pyro.runs.store import write_tensors
from bara_pyro.runs.system import System, assemble
from bara_pyro.runs.writing import is_bara, lora_tensors, peft_config
from bara_pyro.types import Json
from bara_pyro.untrusted.schemas import SCHEMA

EXPORT: Final = "export.json"


@dataclass(frozen=True)
class Nearness:
    """How close the predictions of an export are to those of its run, on the same rows.

    Attributes:
        rows: number of rows.
        kl_mean, kl_max: mean and largest KL(run || export) of the answers' probabilities, nats per row.
        nll_run, nll_export: negative log-likelihood of the labels, nats per row.
        same_answer: percentage of rows with the same most probable answer.
    """

    rows: int
    kl_mean: float
    kl_max: float
    nll_run: float
    nll_export: float
    same_answer: float


def export_lora(
    system: System,
    out: str | Path,
    *,
    rows: EncodedSplit,
    compared_on: EncodedSplit,
    draws: int = 0,
    seed: int | None = None,
    max_kl: float | None = None,
) -> Json:
    """Write a fitted system as plain LoRA adapters of PEFT.

    Args:
        system: a fitted system whose method is a LoRA at its mean (`lora`, `blob`, ..), or BaRA.
        out: folder of the adapter; draw k is written to its subfolder `draw-<k>`.
        rows: rows whose tokens BaRA's local gates are fitted on, for example of the training split.
        compared_on: rows on which the export is compared with the run.
        draws: number K of draws of Phi or of the weights, each written as a separate adapter.
        seed: seed of these draws; the run's own by default.
        max_kl: largest mean KL divergence from the run to the export, nats per row; None for no limit.

    Returns:
        The content of `export.json`: `ask`, the prompt format (`prompt_format.prompt_format`); `mean`, the
        `Nearness` of the adapter to the run at S = 0; with draws, `draws`, the `Nearness` of the K adapters'
        average to the run at S = K; and the run's `temperature` and `distance_aware`, if it has them, which a
        LoRA cannot hold.

    Raises:
        ConfigError: the method has no nearest LoRA, the nearest is further than `max_kl`, there is nothing to
            draw, or `out` is the folder of a run, whose files would be replaced. Nothing is
            written.

    Examples:
        >>> from pathlib import Path
        >>> import bara_pyro as bp
        >>> from bara_pyro.extras.hub.export import export_lora
        >>> run = bp.train(task="micro-wgs", method="bara-gate", steps=5, limit=40, out="runs/first")
        >>> train, test = run.split("train"), run.split("test")
        >>> found = export_lora(run, "runs/first-lora", rows=train, compared_on=test)
        >>> found["mean"]["rows"], found["mean"]["kl_mean"] < 0.01  # nats from the run's probabilities
        (40, True)
        >>> sorted(path.name for path in Path("runs/first-lora").glob("adapter_*"))
        ['adapter_config.json', 'adapter_model.safetensors']
    """
    out = Path(out)
    if is_run(out):
        raise ConfigError(
            f"{out} is the folder of a run, whose files the adapter would replace: give another folder."
        )
    check_replaceable(out, (PEFT_CONFIG, ADAPTER, EXPORT))
    loras = nearest_loras(system, rows=rows, compared_on=compared_on, draws=draws, seed=seed)
    check_near(loras.report, max_kl)
    loras.write(out)
    return loras.report


class Drawn(NamedTuple):
    """What a LoRA is made from beside A and B.

    Attributes:
        phi: Phi, `modules x r`; None without gates.
        weights: site -> deviation of A or B from its mean.
    """

    phi: Tensor | None = None
    weights: Mapping[str, Tensor] = {}


@dataclass(frozen=True)
class PlainLoras:
    """The LoRA adapters nearest to a system, not yet written.

    Attributes:
        system: the exported system.
        report: how close they are and their prompt format, as returned by `export_lora`.
    """

    system: System
    report: Json
    _lora: System
    _down: Mapping[str, Tensor]
    _draws: Sequence[Drawn]

    def write(self, out: Path) -> None:
        """Write the adapters and the report."""
        facts = {key: self.report[key] for key in ("method", "config_hash")}
        for number, drawn in enumerate(self._draws):
            fold(self.system, self._down, drawn, self._lora)
            write_adapter(self._lora, out if number == 0 else out / f"draw-{number - 1}", facts)
        with adding(out) as place:
            write_json(place / EXPORT, self.report)


def nearest_loras(
    system: System,
    *,
    rows: EncodedSplit,
    compared_on: EncodedSplit,
    draws: int = 0,
    seed: int | None = None,
) -> PlainLoras:
    """Return the nearest adapters and their report; see `export_lora` for arguments and errors."""
    seed = system.config.predict.seed if seed is None else seed
    down, drawn = _parts(system, rows, draws, seed)
    tempered = system.corrections.temperature
    temperature = 1.0 if tempered is None else tempered.value
    facts = {"method": system.config.method.name, "config_hash": system.config.hash}
    log_probs = []
    lora = plain_lora(system)
    for one in drawn:
        fold(system, down, one, lora)
        log_probs.append((draw(lora, compared_on, 0) / temperature).log_softmax(-1))
    labels = compared_on.labels
    report: Json = {"schema": SCHEMA, **facts, "fitted_rows": len(rows), "seed": seed}
    report["ask"] = prompt_format(system)
    if tempered is not None:
        report["temperature"] = temperature
    if system.corrections.distance is not None:
        report["distance_aware"] = True
    report["mean"] = asdict(nearness(draw(system, compared_on, 0), log_probs[0], labels))
    if draws:
        average = draw(system, compared_on, draws, seed=seed)
        report["draws"] = asdict(nearness(average, torch.cat(log_probs[1:]), labels))
    return PlainLoras(system, report, lora, down, drawn)


def check_near(report: Json, max_kl: float | None) -> None:
    """Raise `ConfigError` if adapters are further from their run than `max_kl` (nats per row)."""
    for name in ("mean", "draws"):
        if max_kl is not None and name in report and report[name]["kl_mean"] > max_kl:
            raise ConfigError(
                f"The nearest LoRA is {report[name]['kl_mean']:.3g} nats per row from the run, above "
                f"the limit {max_kl:g}, so nothing was written: serve the run itself, or raise --max-kl."
            )


def _parts(
    system: System, rows: EncodedSplit, draws: int, seed: int
) -> tuple[Mapping[str, Tensor], list[Drawn]]:
    """Return each module's down-projection, and what is drawn: its mean, then its draws."""
    name, gates = system.config.method.name, system.model.gates
    if not METHODS[name].peft and (gates is None or not is_bara(system)):
        guide = getattr(system.config.method, "guide", None)
        guide_note = f" with the guide {guide!r}" if gates is not None and guide else ""
        way_out = "train with the guide 'weibull'" if guide_note else "export BaRA or a LoRA method"
        raise ConfigError(f"The method {name!r}{guide_note} cannot be exported as plain LoRA: {way_out}.")
    weights = isinstance(system.model, GaussianLoRA) and system.guide.stochastic
    if draws and not weights and (gates is None or gates.phi is None):
        raise ConfigError(f"This run of {name!r} has no gates Phi or weights to draw: leave --draws out.")
    if gates is None:
        return down_projections(system), [
            Drawn(),
            *(weight_draws(system, rows, draws, seed) if draws else ()),
        ]
    if not gates.modulating and not gates.theta:
        raise ConfigError(
            f"This run of {name!r} without theta cannot be exported as plain LoRA, because its change does "
            "not depend on the layer's input: export the gate form, or train with theta."
        )
    down = linear_gates(system, gates, rows) if gates.theta else down_projections(system)
    phi = [phi_draws(system, rows, count, seed) for count in ((0, draws) if draws else (0,)) if gates.phi]
    return down, [Drawn(one) for one in torch.cat(phi)] if phi else [Drawn()]


def phi_draws(system: System, rows: EncodedSplit, samples: int, seed: int) -> Tensor:
    """Return the draws of Phi that prediction uses, `max(samples, 1) x modules x r`; its mean for 0."""
    one = batches(first_rows(rows, 1), system.answer_ids, 1)
    phi = gate_draws(system.model, system.guide, one, samples=samples, seed=seed).phi
    return torch.as_tensor(phi)


def weight_draws(system: System, rows: EncodedSplit, samples: int, seed: int) -> list[Drawn]:
    """Return draws of the weights' deviations, the same for all tokens, as a LoRA has them."""
    batch = first_rows(rows, 1).batch([0], system.answer_ids).to(system.backbone.device)
    with unflipped(system.model):
        pieces = [*record(system.model, system.guide, batch, samples=samples, seed=seed)]
        sites = [*system.model.latents.global_sites]
    values = {site: torch.cat([piece.values[site] for piece in pieces]).flatten(0, -3) for site in sites}
    return [Drawn(weights={site: value[k] for site, value in values.items()}) for k in range(samples)]


def plain_lora(system: System) -> System:
    """Return LoRA on the same backbone with rank r in every module, as LoRA servers require."""
    config = load_config(
        base=system.config,
        overrides={
            "method": {"name": "lora"},
            "adapter.calibrated": False,
            "adapter.start": None,
            "train.steps": 1,  # which are not taken
        },
    )
    return assemble(config, system.backbone, system.task, system.model.num_data)


@torch.no_grad()
def fold(system: System, down: Mapping[str, Tensor], drawn: Drawn, lora: System) -> None:
    """Fill a LoRA with down-projections and the system's B, as they are drawn; 0 above a module's rank."""
    for target in system.model.targets:
        ours, a, b = (
            model.get_parameter(f"adapters.{module_key(target.path)}.{name}")
            for model, name in ((system.model, "lora_B"), (lora.model, "lora_A"), (lora.model, "lora_B"))
        )
        new_a, rank = down[target.path], ours.shape[1]
        a.zero_()[: len(new_a)] = new_a
        b.zero_()[:, :rank] = ours
        for factor, name in ((a[: len(new_a)], "lora_A"), (b[:, :rank], "lora_B")):
            if (deviation := drawn.weights.get(target.site(name))) is not None:
                factor.add_(deviation)
        if drawn.phi is not None:
            b[:, :rank].mul_(drawn.phi[target.index, :rank].to(b.device))


def write_adapter(lora: System, folder: Path, metadata: Json) -> None:
    """Write the two files of a PEFT adapter and the manifest."""
    with adding(folder) as place:
        write_json(place / PEFT_CONFIG, peft_config(lora))
        write_tensors(place / ADAPTER, lora_tensors(lora.model), metadata)


def nearness(run: Tensor, export: Tensor, labels: tuple[int, ...]) -> Nearness:
    """Compare two predictive distributions, given as draws of log-probabilities (`S x n x C`)."""
    p, q = posterior_predictive(run), posterior_predictive(export)
    kl = (p.exp() * (p - q)).nan_to_num(0.0).sum(-1).clamp_min(0)  # 0 log 0 is 0
    truth = torch.tensor(labels)
    same = (p.argmax(-1) == q.argmax(-1)).double().mean()
    return Nearness(
        len(kl), float(kl.mean()), float(kl.max()), nll(p, truth), nll(q, truth), 100 * float(same)
    )
