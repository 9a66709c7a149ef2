"""Inspect a fitted model: its calibration, its gates, and the quality of its posterior."""
