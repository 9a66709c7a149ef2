"""Corrections that are fitted after training and change predictions: temperature, distance, one pass."""
