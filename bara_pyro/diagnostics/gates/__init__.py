"""Diagnostics of the gates: draws, sparsity, effective rank, token maps."""
