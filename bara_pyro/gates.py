"""What the gates of a fitted BaRA do: draws of Phi, theta and their product, and how sparse they are."""

from collections.abc import Iterable
from typing import Any

import torch
from pyro.distributions import Distribution
from torch import Tensor

from bara_pyro.data.types import Batch
from bara_pyro.guide import Posterior, SiteGuide
from bara_pyro.metrics import sparsity
from bara_pyro.program import AdaptedLM


class _Recorder(Posterior):
    """Draws from the guide and keeps the last token's values."""

    def __init__(self, guide: SiteGuide) -> None:
        super().__init__(guide)
        self.values: dict[str, Tensor] = {}

    def value(self, name: str, fn: Distribution) -> Tensor:
        drawn = super().value(name, fn)
        local = name in self.guide.model.latents.local_sites
        self.values[name] = drawn[:, -1] if local else drawn
        return drawn


@torch.no_grad()
def gate_sparsity(
    model: AdaptedLM, guide: SiteGuide, batches: Iterable[Batch], *, tau: float = 0.1, seed: int = 0
) -> dict[str, float]:
    """Return the share of gates below `tau`, one draw a batch, at the last token (Section V-D of the paper).

    Args:
        model: the program.
        guide: its fitted guide.
        batches: rows to look at.
        tau: threshold.
        seed: of the draws.

    Returns:
        Percentages `phi`, `theta` and `psi` (the product, entry by entry), over all adapted modules; without
        the keys that the program has no latent for (none for LoRA).
    """
    sites = (*model.latents.global_sites, *model.latents.local_sites)
    if not any(site.split("/")[0] in ("phi", "theta") for site in sites):
        return {}  # no gates: not worth a forward pass
    seen: dict[str, list[Tensor]] = {"phi": [], "theta": [], "psi": []}
    with torch.random.fork_rng([model.backbone.device] if model.backbone.device.type == "cuda" else []):
        torch.manual_seed(seed)
        for batch in batches:
            with _Recorder(guide) as recorder:
                model.forward(batch.to(model.backbone.device))
            for key, value in _gates(recorder.values, model).items():
                seen[key].append(value.flatten().cpu())
    return {key: sparsity(torch.cat(values), tau) for key, values in seen.items() if values}


def _gates(values: dict[str, Tensor], model: AdaptedLM) -> dict[str, Tensor]:
    """Return `phi` (`modules x r`), `theta` and `psi` (`B x modules x r`), those that there are."""
    out: dict[str, Any] = {}
    if "phi" in values:
        out["phi"] = values["phi"]
    names = [name for name in model.latents.local_sites if name.startswith("theta/") and name in values]
    if names:
        out["theta"] = torch.stack([values[name] for name in names], dim=1)
    if out:
        out["psi"] = out.get("theta", 1.0) * out.get("phi", torch.ones(()))
    return out
