"""What the tests of this folder share."""

SAMPLES = 6
"""Posterior draws of the engine that is served."""
