"""Draws for ArviZ: groups, files, plots, PSIS-LOO."""
