"""Frozen language models: loading, checks, their parts, and the layers that adapters target."""
