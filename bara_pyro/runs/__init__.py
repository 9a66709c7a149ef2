"""Runs: settings, folder, training, prediction and evaluation."""
