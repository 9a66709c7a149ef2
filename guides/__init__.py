"""Guides of all methods, one family per file; a file is imported when its guide is first used."""

from bara_pyro.lazy import lazy

_HOME = {
    "AmortizedGuide": "amortized",
    "ContextualGuide": "contextual",
    "CoupledWeibullGuide": "coupled",
    "DeltaGuide": "delta",
    "DeviationGuide": "normal",
    "EnsembleGuide": "ensemble",
    "FVAEGuide": "fvae",
    "GammaGuide": "gamma",
    "LaplaceGuide": "laplace",
    "LogNormalGuide": "lognormal",
    "NormalGuide": "normal",
    "PointGuide": "point",
    "PosthocGuide": "posthoc",
    "PriorGuide": "prior",
    "ScalaBLGuide": "scalabl",
    "VBLLGuide": "vbll",
    "WeibullGuide": "weibull",
    "register_guide": "families",
}

__all__ = sorted(_HOME)
__getattr__, __dir__ = lazy(__name__, _HOME)
