"""Trains in several processes, forks of this one, which is imported once for all of them.

Run as a program by `test_ranks.py`: each scenario is a function of the folder that it writes to.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from forks import processes
from safetensors.torch import save_file

from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.program import AdaptedLM
from bara_pyro.core.svi import SVI
from bara_pyro.core.terms import ElboTerms
from bara_pyro.data.types import Batch
from bara_pyro.processes import ALONE, joined
from bara_pyro.runs import train as training
from bara_pyro.runs.config import load_config
from bara_pyro.runs.steps import make_svi, micro_batches
from bara_pyro.runs.system import build_system

TWO = 2
REPEATS = 200
SETTINGS: dict[str, dict[str, object]] = {
    **{name: {"method.name": name} for name in ("lora", "bara-gate")},
    "two steps": {"method.name": "blob", "method.recipe": "reproduction"},
    "calibrated": {"method.name": "bara-gate", "adapter.calibrated": True},
}
# Phi alone: the noise of the local gates is one a row in any case.
GLOBAL = {"method.name": "bara-gate", "method.latent": "phi"}


def trained(out: Path, count: int, before: Callable[[], None] | None = None, **settings: object) -> list:
    """Train a run in `count` processes, going on with what is there."""

    def work() -> None:
        if before is not None:
            before()
        config = load_config(overrides=BASE | {key.replace("__", "."): v for key, v in settings.items()})
        training.train(build_system(config), out, resume=True)

    return processes(count, work, out)


def noise_of_rows() -> None:
    """Let the noise of a micro-batch follow from its rows, whichever process has them."""
    terms = MeanFieldELBO.terms

    def seeded(self: MeanFieldELBO, model: AdaptedLM, guide: SiteGuide, batch: Batch) -> ElboTerms:
        torch.manual_seed(sum(ord(letter) * place for place, letter in enumerate("".join(batch.ids))))
        return terms(self, model, guide, batch)

    MeanFieldELBO.terms = seeded  # type: ignore[method-assign]


def at_step(number: int, rank: int | None, act: Callable[[], None]) -> Callable[[], None]:
    """Do something in one process, or in each, when it begins a step, from 1."""
    step, steps = SVI.step, [0]

    def stepped(self: SVI, *batches: Batch) -> float:
        steps[0] += 1
        if steps[0] == number and rank in (None, int(os.environ.get("RANK", "0"))):
            act()
        return step(self, *batches)

    def arm() -> None:
        SVI.step = stepped  # type: ignore[method-assign]

    return arm


def kill(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def note_noise(folder: Path) -> Callable[[], None]:
    """Write down what this process would draw next."""

    def note() -> None:
        file = folder / f"noise{os.environ.get('RANK', '0')}.json"
        file.write_text(json.dumps(torch.rand(4).tolist()))

    return note


def break_loss() -> None:
    """Let this process's loss be infinite."""
    terms = MeanFieldELBO.terms

    def infinite(self: MeanFieldELBO, *args: object) -> ElboTerms:
        found = terms(self, *args)  # type: ignore[arg-type]
        return ElboTerms(found.loss * torch.inf, found.nll, found.kl, found.extra)

    MeanFieldELBO.terms = infinite  # type: ignore[method-assign]


def gradients(out: Path, count: int) -> list:
    """Average the gradients of one step over many draws, in one process or in several."""

    def work() -> None:
        system = build_system(load_config(overrides=BASE | GLOBAL))
        split, c = system.split("train"), system.config.train
        with torch.no_grad():
            for name, value in system.model.named_parameters():
                if name.endswith("lora_B"):
                    value.copy_(torch.linspace(-0.3, 0.3, value.numel()).view_as(value))
        with joined(torch.device("cpu"), 60.0) as ranks:
            svi = make_svi(system)
            svi.ranks = ranks if ranks.size > 1 else None
            torch.manual_seed(17 + ranks.rank)
            rows = micro_batches(system, split, c, 0, ranks if count > 1 else ALONE)
            every = []
            for _ in range(REPEATS):
                svi.gradients(*rows)
                every.append(torch.cat([p.grad.flatten() for p in svi.parameters if p.grad is not None]))
            draws = torch.stack(every).double()
            if ranks.first:
                save_file({"mean": draws.mean(0), "variance": draws.var(0)}, out)

    return processes(count, work, out)


def main() -> None:
    root = Path(sys.argv[2])
    torch.set_num_threads(1)
    ends: dict[str, list] = {}
    for name, own in SETTINGS.items():
        ends[f"{name}: 2"] = trained(root / name / "two", TWO, noise_of_rows, **own)
        ends[f"{name}: 1"] = trained(root / name / "one", 1, noise_of_rows, **own, train__accumulate=2)
    ends["lora at once"] = trained(root / "lora" / "whole", 1, **SETTINGS["lora"])
    own = {"method.name": "bara"}
    out = root / "stopped"
    ends["whole"] = trained(out / "whole", TWO, **own)
    ends["killed"] = trained(out / "killed", TWO, at_step(6, 1, kill(signal.SIGKILL)), **own)
    ends["killed first"] = trained(out / "first", TWO, at_step(6, 0, kill(signal.SIGKILL)), **own)
    ends["interrupted"] = trained(out / "interrupted", TWO, at_step(5, 1, kill(signal.SIGINT)), **own)
    for name in ("killed", "first", "interrupted"):
        ends[f"{name}, again"] = trained(out / name, TWO, **own)
    ends["infinite"] = trained(out / "infinite", TWO, at_step(4, 1, break_loss), **own)
    ends["noise"] = trained(out / "noise", TWO, at_step(1, None, note_noise(root)), **own)
    ends["uneven"] = trained(out / "uneven", TWO, **own, train__batch_size=3)
    for count in (1, TWO):
        ends[f"gradients {count}"] = gradients(root / f"gradients{count}", count)
    print(json.dumps(ends))


if __name__ == "__main__":
    BASE: dict[str, object] = json.loads(sys.argv[1])
    main()
