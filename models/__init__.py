"""Pyro models of all methods, one per file; a file is imported when its model is first used."""

from bara_pyro.lazy import lazy

_HOME = {
    "AdaLoRA": "adalora",
    "BaRA": "bara",
    "CLoRA": "clora",
    "DropoutLoRA": "dropout",
    "Ensemble": "ensemble",
    "FVAE": "fvae",
    "GaussianLoRA": "gaussian_lora",
    "LoRA": "lora",
    "PolarVBLL": "polar_vbll",
    "PosthocLoRA": "posthoc",
    "ScalaBL": "scalabl",
    "VBLL": "vbll",
}

__all__ = sorted(_HOME)
__getattr__, __dir__ = lazy(__name__, _HOME)
