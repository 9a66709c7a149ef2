"""Variational families, one a file."""
