"""Frozen language models: loading, checks, their parts, and the layers that adapters target."""

from importlib import import_module

from bara_pyro.lazy import uncollected

with uncollected():  # a fifth faster
    import_module("transformers.modeling_utils")
