"""Old names of modules and classes, kept for one version with a DeprecationWarning."""

import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType
from typing import Any

MOVED = {
    "bara_pyro.core.backbone": "bara_pyro.lm.backbone",
    "bara_pyro.core.distance": "bara_pyro.posthoc.distance",
    "bara_pyro.core.loading": "bara_pyro.lm.loading",
    "bara_pyro.core.quantized": "bara_pyro.lm.quantized",
    "bara_pyro.core.targets": "bara_pyro.lm.targets",
    "bara_pyro.core.one_pass": "bara_pyro.posthoc.one_pass",
    "bara_pyro.diagnostics.bounds": "bara_pyro.extras.bounds",
    "bara_pyro.diagnostics.gates.full_draws": "bara_pyro.diagnostics.full_draws",
    "bara_pyro.diagnostics.posterior.weighing": "bara_pyro.diagnostics.posterior.importance",
    "bara_pyro.generation": "bara_pyro.extras.replies.generation",
    "bara_pyro.harness": "bara_pyro.extras.lmeval.harness",
    "bara_pyro.hub": "bara_pyro.extras.hub.upload",
    "bara_pyro.methods.best_temperature": "bara_pyro.posthoc.temperature",
    "bara_pyro.methods.bisection": "bara_pyro.bisection",
    "bara_pyro.peft": "bara_pyro.extras.hub.peft",
    "bara_pyro.pretrained": "bara_pyro.extras.hub.pretrained",
    "bara_pyro.reward": "bara_pyro.extras.replies.reward",
    "bara_pyro.runs.acquire": "bara_pyro.extras.active.acquire",
    "bara_pyro.runs.export": "bara_pyro.extras.hub.export",
    "bara_pyro.runs.rehearsal": "bara_pyro.runs.split_half",
    "bara_pyro.runs.trainer": "bara_pyro.extras.hub.trainer",
    "bara_pyro.sandbox": "bara_pyro.extras.replies.sandbox",
    "bara_pyro.serving": "bara_pyro.extras.serve.http",
}
"""Old module name -> new module name; its submodules are found as well."""
RENAMED = {
    "bara_pyro.core.adapter": {
        name: f"bara_pyro.core.sampling.{name}"
        for name in ("by_draw", "draw_plate_shape", "local_sample", "tempered")
    },
    "bara_pyro.core.svi": {
        name: f"bara_pyro.core.optimizers.{name}" for name in ("adamw", "linear_schedule")
    },
    "bara_pyro.data.preferences": {"Pair": "PreferencePair"},
    "bara_pyro.diagnostics.parts": {"Part": "InspectionPart"},
    "bara_pyro.extras.serve.http.app": {"Limits": "ServerLimits"},
    "bara_pyro.microworld": {"load_task": "micro_task"},
    "bara_pyro.report": {"Scale": "ColourScale"},
    "bara_pyro.runs.split_half": {
        "check_rehearsal": "check_split_half",
        "fit_rehearsed": "fit_split_half",
        "rehearsal_of": "split_half_system",
        "rehearsal_steps": "split_half_steps",
        "rehearsed_steps": "calibrated_steps",
        "write_rehearsed": "write_split_half",
    },
}
"""Module -> old name -> new name, with the new module if the object moved."""
KEPT = {"bara_pyro.peft"}
"""Old names without a warning: PEFT shows this one if bara_pyro is missing (`runs.peft_files.PEFT_TYPE`)."""


class OldNames(MetaPathFinder, Loader):
    """Import hook that resolves an old module name to the moved module, so that classes are identical."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for a moved module; None for any other name."""
        return spec_from_loader(fullname, self) if _now(fullname) else None

    def exec_module(self, module: ModuleType) -> None:
        """Replace the empty module by the moved one."""
        old = module.__name__
        now = _now(old)
        if old in MOVED and old not in KEPT:
            sentence = f"{old} is now {now}: the old name goes with the next version."
            warnings.warn(sentence, DeprecationWarning, stacklevel=2)
        sys.modules[old] = import_module(now)


def _now(name: str) -> str:
    """Return the new name of a module, or ""."""
    for old, new in MOVED.items():
        if name == old or name.startswith(f"{old}."):
            return new + name.removeprefix(old)
    return ""


def old_names(module: str) -> Callable[[str], Any]:
    """Return a `__getattr__` for a module that also finds its old names."""

    def load(name: str) -> Any:
        now = RENAMED[module].get(name)
        if now is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        sentence = f"{module}.{name} is now {now}: the old name goes with the next version."
        warnings.warn(sentence, DeprecationWarning, stacklevel=2)
        place, _, attribute = now.rpartition(".")
        return getattr(import_module(place or module), attribute)

    return load


def warn_renamed(old: str, new: str) -> None:
    """Warn the caller of a function or property that it, or an argument of it, has a new name."""
    sentence = f"{old} is now {new}: the old name goes with the next version."
    warnings.warn(sentence, DeprecationWarning, stacklevel=3)


def find_moved() -> None:
    """Install the import hook first: Python would load a file of a moved package once per name."""
    sys.meta_path.insert(0, OldNames())
