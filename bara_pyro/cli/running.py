"""Training and evaluating with a progress bar, for the commands that do."""

from pathlib import Path
from typing import Any

from bara_pyro.cli.terminal import progress
from bara_pyro.runs.config import RunConfig
from bara_pyro.runs.evaluate import evaluate_system
from bara_pyro.runs.system import System, build_system
from bara_pyro.runs.train import train as fit
from bara_pyro.runs.train import train_seconds


def run(
    config: RunConfig, out: Path, *, resume: bool = False, system: System | None = None, name: str = ""
) -> dict[str, Any]:
    """Train and evaluate one configuration with a progress bar; return what metrics.json holds."""
    system = system or build_system(config)
    label = name or f"{config.method.name} on {system.task.name}"
    with progress(f"train {label}", config.train.steps) as advance:
        fit(
            system,
            out,
            resume=resume,
            on_step=lambda step, parts: advance(completed=step, note=f"nll {parts['nll']:.3f}"),
        )
    return evaluate_with_progress(system, out, label, wall_clock_train_s=train_seconds(out))


def evaluate_with_progress(system: System, out: Path, label: str, **extra: Any) -> dict[str, Any]:
    """Evaluate a fitted system with a progress bar."""
    rows = len(system.split(system.config.task.evaluate_on))
    with progress(f"evaluate {label}", rows * len(system.config.predict.samples)) as advance:
        return evaluate_system(system, out, on_rows=advance, **extra)
